"""Runs the operator's program for each broker: without a shell, with the broker's name and address put in.

Except for brokers of tests, PyroMQ starts programs only here, from the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import tempfile
from collections.abc import Mapping
from typing import IO

from pyromq.errors import ConfigError

#: Most output shown of a failed program.
QUOTED_BYTES = 500
_PLACE = re.compile(r"\{(\w*)\}")


def words_of(command: str, values: Mapping[str, str]) -> list[str]:
    """The words of a command line; `{name}` within a word becomes that value, and stays in that word.

    Raises ConfigError for a command that cannot be understood.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"{command!r} is no command: {error}", "command") from None
    unknown = sorted({name for word in words for name in _PLACE.findall(word)} - values.keys())
    if unknown or not words:
        what = f"{{{unknown[0]}}} is not known" if unknown else "it is empty"
        known = ", ".join(f"{{{name}}}" for name in values)
        raise ConfigError(f"{command!r} cannot be run: {what}; what can be put in is {known}", "command")
    return [_PLACE.sub(lambda place: values[place[1]], word) for word in words]


async def run(words: list[str], timeout_s: float) -> None:
    """Returns when it has ended well. Raises ConfigError when it has not, with the end of what it said."""
    shown = shlex.join(words)
    with tempfile.TemporaryFile() as said:  # no pipe: a server that it leaves running would hold it open
        try:
            code = await _ended(words, said, timeout_s)
        except TimeoutError:
            raise ConfigError(f"`{shown}` did not end within {timeout_s:g} s", "command") from None
        except OSError as error:
            raise ConfigError(f"`{shown}` cannot be run: {error.strerror or error}", "command") from None
        if code:
            said.seek(max(said.tell() - QUOTED_BYTES, 0))
            told = said.read(QUOTED_BYTES).decode(errors="replace").strip() or "it said nothing"
            raise ConfigError(f"`{shown}` failed with exit code {code}: {told}", "command")


async def _ended(words: list[str], said: IO[bytes], timeout_s: float) -> int:
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(timeout_s):
            return await process.wait()
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the program together with its caller."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
