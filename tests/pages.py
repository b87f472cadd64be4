"""The pages of the documentation, and a desk where a reader would try what they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from pyromq.testing.brokers.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BIN = Path(sys.executable).parent

BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
#: The first line of a block that is a file.
FILE = re.compile(r"# ([\w-]+\.(?:toml|conf))\n")
#: Far more than any takes: a busy machine is not a slow program.
SECONDS = 300


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> list[Block]:
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found["language"], found["text"])
        for page in PAGES
        for text in [page.read_text(encoding="utf-8")]
        for found in BLOCK.finditer(text)
    ]


BLOCKS = blocks()


def run(command: list[str], directory: Path, **environment: str) -> str:
    """Return the command's output; if it fails, fail with that output."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"PATH": path, "NO_COLOR": "1"} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS,
        check=False,
    )
    output = done.stdout.decode(errors="replace")
    assert done.returncode == 0, f"{shlex.join(command)}\n{output}"
    return output


#: The address of a reader's own broker, after `pyromq up`.
USUAL_ADDRESS = "localhost:9876"


def commands_in(block: Block) -> list[str]:
    """Each line of a `bash` block, the lines with a `$` of a `console` block; none of others."""
    found: list[str] = []
    if block.language == "bash":
        found = block.text.replace("\\\n", " ").splitlines()
    elif block.language == "console":
        found = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    alone = [command for line in found for command in line.split(" && ")]
    return [command for command in alone if command.strip() and not command.startswith("#")]


def files_of(page: Path) -> dict[str, str]:
    """Blocks of settings that begin with the name of a file: `# broker.toml`."""
    found = {block.text: FILE.match(block.text) for block in BLOCKS if block.page == page}
    return {name[1]: text for text, name in found.items() if name}


#: Commands that run until they are stopped, and the line they print when they serve.
SERVERS = ("up", "nameserver", "broker")
READY = b"PyroMQ is up"


#: `pyromq` where the name server that everybody looks for has another port: the usual one may be taken here. A variable
#: would say the same, and hide that a page forgets to name one.
LAUNCH = """
import sys
from pyromq.cli import reaching
reaching.DEFAULT_NAME_SERVER = sys.argv.pop(1)
from pyromq.cli.app import main
main()
"""


class Desk:
    """The reader's directory and terminals. Servers run on until the page is done, on ports that were free: the first
    name server where everybody looks for one, all others anywhere.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers: list[subprocess.Popen[bytes]] = []
        self.name_server_port = free_port()
        self.name_server = f"127.0.0.1:{self.name_server_port}"
        self.pyromq = [sys.executable, "-c", LAUNCH, self.name_server]

    def do(self, command: str) -> None:
        """Run a command of a page and check that it succeeds, not its output."""
        words = shlex.split(command, comments=True)
        environment: dict[str, str] = {}
        while "=" in words[0]:
            name, _, environment[name] = words.pop(0).partition("=")
        program = words[0].removeprefix(".venv/bin/")
        if program == "make":  # would set up, run or test everything: is there such a target?
            run(["make", "-n", *words[1:]], ROOT)
        elif program == "pytest":  # this is one: are those tests there?
            run([sys.executable, "-m", "pytest", "--collect-only", "--assert=plain", *words[1:]], ROOT, **environment)
        elif program == "pyromq" and words[1] in SERVERS and (len(words) == 2 or words[2].startswith("-")):
            self.serve(_with_free_ports(words[1:]), environment)
        else:
            run([*(self.pyromq if program == "pyromq" else [program]), *words[1:]], self.directory, **environment)

    def serve(self, words: list[str], environment: dict[str, str]) -> None:
        ports = {
            "PYROMQ_NAMESERVER_LISTEN_PORT": "0" if self.servers else str(self.name_server_port),
            "PYROMQ_BROKER_LISTEN_PORT": "0",
        }
        with (self.directory / f"{len(self.servers)}.log").open("wb") as log:
            server = subprocess.Popen(
                [*self.pyromq, *words],
                cwd=self.directory,
                env=os.environ | ports | environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.servers.append(server)
        assert server.stdout
        first = server.stdout.readline()
        assert READY in first, f"{shlex.join(words)}\n{first!r}\n{Path(log.name).read_text(encoding='utf-8')}"

    def clear(self) -> None:
        """All of them stop cleanly; one that does not is ended, and fails the test."""
        codes: list[int] = []
        for server in reversed(self.servers):
            server.terminate()
            try:
                server.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.communicate()
            codes.append(server.returncode)
        assert not any(codes)


def _with_free_ports(words: list[str]) -> list[str]:
    """The ports that a page gives may be taken here."""
    return ["0" if before == "--port" else word for before, word in zip(["", *words], words, strict=False)]
