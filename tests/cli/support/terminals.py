"""`pyromq …` on a terminal of its own, as a person sees it: what is typed reaches it, Ctrl-C too."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from cli.support.programs import SECONDS, command, environment

CTRL_C = b"\x03"


class Terminal:
    """Leaving the block ends the program if nobody has."""

    def __init__(self, *arguments: str | Path, cwd: Path, columns: int = 80, lines: int = 24, **more: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        kept = {name: value for name, value in environment(**more).items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            command(arguments), cwd=cwd, env={**kept, "TERM": "xterm-256color"}, stdin=slave, stdout=slave,
            stderr=slave, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self._changed = threading.Condition()
        self._said = b""
        self._is_open = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        os.close(self._master)

    @property
    def said(self) -> str:
        """Everything, with the codes that move the cursor and colour."""
        with self._changed:
            return self._said.decode(errors="replace")

    def until(self, pattern: str, seconds: float = SECONDS) -> None:
        with self._changed:
            found = self._changed.wait_for(
                lambda: re.search(pattern, self._said.decode(errors="replace")) or not self._is_open, seconds
            )
        assert found, f"no {pattern!r} within {seconds} s"
        assert re.search(pattern, self.said), f"ended without {pattern!r}:\n{self.said[-2000:]}"

    def type(self, what: bytes) -> None:
        os.write(self._master, what)

    def interrupt_question(self) -> int:
        """Ctrl-C where something is asked, until it is heard; what the program returned. Python's readline misses one
        that comes just before it begins to wait for a key."""
        for _ in range(int(SECONDS)):
            self.type(CTRL_C)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2.0)
                break
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return code

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # Linux says so when the last one has closed the other side
            while data := os.read(self._master, 1 << 16):
                with self._changed:
                    self._said += data
                    self._changed.notify_all()
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
