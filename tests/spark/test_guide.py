"""The guide of the pipeline is one story, from a broker to a replay, run here as a reader would try it.

Commands run in a directory of their own; Python blocks in one other interpreter, which keeps its session and its
names from block to block.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from pages import BLOCKS, ROOT, USUAL_ADDRESS, Block, Desk, commands_in, files_of

pytestmark = pytest.mark.spark

GUIDE = ROOT / "docs" / "guides" / "spark.md"
#: Runs one block after the other, and says `done` after each; ends with the traceback of one that fails.
INTERPRETER = """
import json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    block = json.loads(line)
    exec(compile(block["text"], block["name"], "exec"), names)
    print("done", flush=True)
"""


class Interpreter:
    """Like a notebook. Leaving the block ends it."""

    def __init__(self, desk: Desk) -> None:
        self._errors = desk.directory / "python.log"
        with self._errors.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", INTERPRETER], cwd=desk.directory, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=60)

    def run(self, block: Block, text: str) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"name": block.name, "text": text}) + "\n")
        self._process.stdin.flush()
        said: list[str] = []
        for line in self._process.stdout:
            if line == "done\n":
                return
            said.append(line)
        raise AssertionError(f"{block.name}\n{''.join(said)}\n{self._errors.read_text(encoding='utf-8')[-6000:]}")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.clear()


def test_the_story_of_the_guide(desk: Desk) -> None:
    page = [block for block in BLOCKS if block.page == GUIDE]
    assert {"console", "python"} <= {block.language for block in page}
    for name, text in files_of(GUIDE).items():
        (desk.directory / name).write_text(text, encoding="utf-8")
    with Interpreter(desk) as interpreter:
        for block in page:
            for command in commands_in(block):
                desk.do(command)
            if block.language == "python":
                interpreter.run(block, block.text.replace(USUAL_ADDRESS, desk.name_server))
