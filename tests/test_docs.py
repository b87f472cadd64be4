"""The documentation is true: its examples run, its commands work, its links lead somewhere, its tables are current."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyromq.errors
import pyromq.testing
from pages import BLOCK, BLOCKS, FILE, LINK, PAGES, ROOT, USUAL_ADDRESS, Block, Desk, commands_in, files_of, run
from pyromq.errors import PyroMQError

EXAMPLES = [block for block in BLOCKS if block.language == "python"]
#: One story from its first block to its last, with a Spark session for all of it: tests/spark/test_guide.py tells it.
TOLD_ELSEWHERE = {ROOT / "docs" / "guides" / "spark.md"}
ALONE = [block for block in EXAMPLES if block.page not in TOLD_ELSEWHERE]
PAGES_WITH_COMMANDS = sorted({block.page for block in BLOCKS if commands_in(block)} - TOLD_ELSEWHERE)


@pytest.fixture(scope="module")
def name_servers() -> Iterator[str]:
    """The servers of `pyromq up`, for all examples that need them."""
    with pyromq.testing.broker() as mq:
        yield mq.name_servers


@pytest.mark.parametrize("block", ALONE, ids=lambda block: block.name)
def test_an_example_runs(block: Block, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = block.text
    if USUAL_ADDRESS in text:
        text = text.replace(USUAL_ADDRESS, request.getfixturevalue("name_servers"))
    run([sys.executable, "-W", "error", "-c", text], tmp_path)


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run(page: Path, desk: Desk) -> None:
    """All of them one after the other in one empty directory, with the page's files in it, as a reader would."""
    for name, text in files_of(page).items():
        (desk.directory / name).write_text(text, encoding="utf-8")
    for block in BLOCKS:
        for command in commands_in(block) if block.page == page else ():
            desk.do(command)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.clear()


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
    assert re.search(r"scripts/setup\.sh\n.*scripts/run_tests\.py$", steps("test").strip(), re.DOTALL)
    checks = steps("check")
    for job in runpy.run_path(str(ROOT / "scripts" / "run_tests.py"))["JOBS"]:
        if job.name in ("lint", "formatting", "types"):
            command = [Path(job.command[0]).name, *job.command[1:]]
            assert " ".join(command) in checks
            checks = checks.replace(" ".join(command), "")
    assert not re.search("ruff|mypy", checks), "make test runs all that make check does"


def test_make_test_runs_every_file_once_and_what_is_compiled_in_both_forms() -> None:
    jobs = runpy.run_path(str(ROOT / "scripts" / "run_tests.py"))["JOBS"]
    times: Counter[Path] = Counter()
    for job in jobs:
        if "pytest" not in job.command or job.environment.get("PYROMQ_KERNEL") == "python":
            continue
        paths = [ROOT / word for word in job.command if word.startswith("tests")]
        ignored = [ROOT / word.removeprefix("--ignore=") for word in job.command if word.startswith("--ignore=")]
        found = {file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py"))}
        times.update(file for file in found if not any(file.is_relative_to(path) for path in ignored))
    everything = set((ROOT / "tests").rglob("test_*.py"))
    assert {file: times[file] for file in everything if times[file] != 1} == {}
    assert set(times) == everything
    assert any(job.environment.get("PYROMQ_KERNEL") == "python" and "tests/store" in job.command for job in jobs)


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


def test_the_map_has_every_folder() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "pyromq"
    folders = {path.parent.relative_to(package).as_posix() for path in package.rglob("__init__.py")} - {"."}
    assert {folder for folder in folders if not re.search(rf"(?<![\w/]){folder}/", text)} == set()


def test_the_map_names_only_what_there_is() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "pyromq"
    named = set(re.findall(r"`((?:\w+/)+\w+(?:\.\w+)?)`", text))
    assert named
    roots = (ROOT, package)
    found = {name for name in named if any((root / name).exists() or (root / f"{name}.py").exists() for root in roots)}
    assert named - found == set()


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
