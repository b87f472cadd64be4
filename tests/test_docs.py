"""The documentation is true: its examples run, its commands work, its links lead somewhere, its tables are current."""

from __future__ import annotations

import ast
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import pyromq.errors
import pyromq.testing
from pyromq.errors import PyroMQError

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BIN = Path(sys.executable).parent

BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
#: The first line of a block that is a file.
FILE = re.compile(r"# ([\w-]+\.(?:toml|conf))\n")
SECONDS = 120


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
EXAMPLES = [block for block in BLOCKS if block.language == "python"]
PAGES_WITH_COMMANDS = sorted({block.page for block in BLOCKS if block.language in ("bash", "console")})


def run(command: list[str], directory: Path, **environment: str) -> str:
    """What it prints. Fails, with that, when it fails."""
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


#: Where a reader's own broker is, after `pyromq up`.
USUAL_ADDRESS = "localhost:9876"


@pytest.fixture(scope="module")
def name_servers() -> Iterator[str]:
    """What `pyromq up` would have started, for all examples that need one."""
    with pyromq.testing.broker() as mq:
        yield mq.name_servers


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: block.name)
def test_an_example_runs(block: Block, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = block.text
    if USUAL_ADDRESS in text:
        text = text.replace(USUAL_ADDRESS, request.getfixturevalue("name_servers"))
    run([sys.executable, "-W", "error", "-c", text], tmp_path)


def commands_of(page: Path) -> list[str]:
    """The commands of a page in order: each line of a `bash` block, the lines with a `$` of a `console` block."""
    found: list[str] = []
    for block in BLOCKS:
        if block.page == page and block.language == "bash":
            found += block.text.replace("\\\n", " ").splitlines()
        elif block.page == page and block.language == "console":
            found += [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    alone = [command for line in found for command in line.split(" && ")]
    return [command for command in alone if command.strip() and not command.startswith("#")]


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run(page: Path, desk: Desk) -> None:
    """All of them one after the other in one empty directory, with the page's files in it, as a reader would."""
    for name, text in files_of(page).items():
        (desk.directory / name).write_text(text, encoding="utf-8")
    for command in commands_of(page):
        words = shlex.split(command, comments=True)
        environment: dict[str, str] = {}
        while "=" in words[0]:
            name, _, environment[name] = words.pop(0).partition("=")
        program = words[0].removeprefix(".venv/bin/")
        if program == "make":  # would set up, run or test everything: is there such a target?
            run(["make", "-n", *words[1:]], ROOT)
        elif program == "pytest":  # this is one: are those tests there?
            run([sys.executable, "-m", "pytest", "--collect-only", *words[1:]], ROOT, **environment)
        elif program == "pyromq" and words[1] in SERVERS:
            desk.serve([program, *words[1:]], environment)
        else:
            run([program, *words[1:]], desk.directory, **(desk.environment | environment))


#: Commands that run until they are told to stop, and what they say when they serve.
SERVERS = ("up", "nameserver", "broker")
READY = b"PyroMQ is up"


class Desk:
    """The reader's directory and terminals. Servers run on until the page is done, on ports that were free: the first
    name server where everybody looks for one, all others anywhere.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers: list[subprocess.Popen[bytes]] = []
        self.name_server_port = free_port()
        self.environment = {"NAMESRV_ADDR": f"127.0.0.1:{self.name_server_port}"}

    def serve(self, words: list[str], environment: dict[str, str]) -> None:
        ports = {
            "PYROMQ_NAMESERVER_LISTEN_PORT": "0" if self.servers else str(self.name_server_port),
            "PYROMQ_BROKER_LISTEN_PORT": "0",
        }
        with (self.directory / f"{len(self.servers)}.log").open("wb") as log:
            server = subprocess.Popen(
                [str(BIN / words[0]), *words[1:]],
                cwd=self.directory,
                env=os.environ | self.environment | ports | environment,
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.clear()


def files_of(page: Path) -> dict[str, str]:
    """Blocks of settings that begin with the name of a file: `# broker.toml`."""
    found = {block.text: FILE.match(block.text) for block in BLOCKS if block.page == page}
    return {name[1]: text for text, name in found.items() if name}


#: `pyromq store recover DIR --truncate-at POSITION` in a sentence or a table: program words, then the rest.
MENTION = re.compile(r"`pyromq (?P<words>[a-z]+(?: [a-z]+)*)(?P<rest>(?: [^`\n]+)?)`")


def mentions() -> dict[str, set[str]]:
    """Commands that the pages mention, with the options that they mention of each."""
    found: dict[str, set[str]] = {}
    for page in PAGES:
        for mention in MENTION.finditer(BLOCK.sub("", page.read_text(encoding="utf-8"))):
            found.setdefault(mention["words"], set()).update(re.findall(r"--[a-z-]+", mention["rest"]))
    return found


@pytest.mark.parametrize(("words", "options"), mentions().items(), ids=lambda value: str(value))
def test_a_mentioned_command_exists(words: str, options: set[str], tmp_path: Path) -> None:
    shown = run(["pyromq", *words.split(), "--help"], tmp_path, COLUMNS="200")
    assert not {option for option in options if option not in shown}


def test_make_run_and_make_test_do_what_the_readme_says() -> None:
    def steps(target: str) -> str:
        # These tests may run under `make test` themselves: its flags would change what the inner make prints.
        alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        command = ["make", "--always-make", "--no-print-directory", "-n", target]
        return subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, check=True).stdout

    assert re.search(r"scripts/setup\.sh\n.*/pyromq up$", steps("run").strip(), re.DOTALL)
    assert re.search(r"scripts/setup\.sh\n.*ruff check.*mypy.*scripts/test\.sh$", steps("test").strip(), re.DOTALL)
    script = (ROOT / "scripts" / "test.sh").read_text(encoding="utf-8")
    left_out = set(re.findall(r"--ignore=(tests/\w+)", script))
    chosen = set(re.findall(r"pytest\" (?:-rs )?(tests/\w+)", script))
    assert left_out <= chosen, "what one lane leaves out another one runs"
    assert re.search(r"PYROMQ_KERNEL=python \S*pytest", script)


def test_every_target_has_help() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [phony] = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^make ([\w-]+) +\S", shown, re.MULTILINE)) == set(phony.split())


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for found in LINK.finditer(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        target, _, anchor = found["target"].partition("#")
        if target.startswith(("http://", "https://")):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.is_relative_to(ROOT), f"{found['target']} leads out of the tree"
        assert path.exists(), f"{found['target']} leads nowhere"
        assert not anchor or anchor in anchors(path), f"{found['target']}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page: Path) -> None:
    """`src/pyromq/config.py` in a sentence is a promise too."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    named = re.findall(r"`((?:src|tests|docs|scripts|benchmarks)/[\w./-]+)`", text)
    assert not [path for path in named if not (ROOT / path).exists()]


def test_every_page_can_be_found_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            links = LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8")))
            waiting += [(page.parent / link.partition("#")[0]).resolve() for link in links if "://" not in link]
    assert set(PAGES) - seen == set()


def test_the_map_has_every_module_of_the_store() -> None:
    named = set(re.findall(r"`(\w+)`", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")))
    modules = {path.stem for path in (ROOT / "src" / "pyromq" / "store").glob("[a-z]*.py")}
    assert modules - named == set()


def test_generated_parts_are_current() -> None:
    run([sys.executable, str(ROOT / "scripts" / "gen_docs.py"), "--check"], ROOT)


def test_the_drawing_of_the_errors_has_all_of_them() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)", pyromq.errors.__doc__ or "")) | {"PyroMQError"}
    classes = {
        name
        for name, value in vars(pyromq.errors).items()
        if isinstance(value, type) and issubclass(value, PyroMQError)
    }
    assert drawn == classes


def test_examples_are_formatted_like_code() -> None:
    """They are parsed, so that a page cannot hide a mistake behind a block that is never run."""
    for block in EXAMPLES:
        ast.parse(block.text)
    assert EXAMPLES
    run_here = {"bash", "console", "python"}
    run_by_the_interop_tests = {"java", "go"}  # tests/interop/test_guides.py runs each of them as it stands
    files = {"toml", "ini"}
    shown = {"", "mermaid", "json", "text"}
    assert {block.language for block in BLOCKS} <= run_here | run_by_the_interop_tests | files | shown
    unnamed = [block.name for block in BLOCKS if block.language in files and not FILE.match(block.text)]
    assert not unnamed, "begin with the name of the file, so that a command of the page can be given it"
