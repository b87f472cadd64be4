"""Ratchets: small rules that keep the tree readable. Exceptions to a limit are named here, and may only shrink."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyromq

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "pyromq"

MAX_FILE_LINES = 1000
MAX_FUNCTION_LINES = 70
#: Functions over the limit, with their lines. Take one out when it gets shorter; put none in.
LONG_FUNCTIONS: dict[str, int] = {}

#: Not part of the tree: built, downloaded, or a tool's own.
SKIPPED = {".git", ".venv", "build", "dist", "node_modules", "pyromq-data", "site", "__pycache__"}
TEXT = {".md", ".py", ".pyi", ".pyx", ".pxd", ".toml", ".sh", ".java", ".xml", ".c", ".h", ".txt", ".json", ".yml", ""}

#: Built from pieces, so that this file does not hold what it looks for.
UNFINISHED = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "HA" + "CK"]))
#: Directories of a developer's machine.
WORKPLACE = re.compile(r"(?<![\w.~/$}])/(?:work|home|root|Users|mnt|builds?)/\w")
ISSUE_NUMBER = re.compile(r"(?:(?<![\w&/#])#\d{1,5}\b|\b(?:issue|ticket|PR|MR|task)[ -]?#?\d+\b)", re.IGNORECASE)
ADDRESS = re.compile(r"https?://([\w.-]+)")
#: Hosts that documentation and build files may name.
HOSTS = {"maven.apache.org", "rocketmq.apache.org", "www.apache.org", "www.w3.org", "github.com", "www.python.org"}


def tree() -> Iterator[Path]:
    """Every text file that a checkout has."""
    stack = [ROOT]
    while stack:
        for path in sorted(stack.pop().iterdir()):
            if path.name in SKIPPED or path.name.endswith((".egg-info", "_cache")) or path.name == ".hypothesis":
                continue
            if path.is_dir():
                stack.append(path)
            elif path.suffix in TEXT and path.name != ".gitignore":
                yield path


TREE = [path for path in tree() if path.name != "LICENSE"]
PYTHON = [path for path in TREE if path.suffix == ".py"]
MODULES = [path for path in PYTHON if path.is_relative_to(SOURCE)]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield f"{shown(path)}:{node.name}", node.end_lineno - node.lineno + 1


def lines_that_match(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{shown(path)}:{number}: {line.strip()}"
        for path in TREE
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_files_are_not_too_long() -> None:
    sizes = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in TREE}
    assert not {path: size for path, size in sizes.items() if size > MAX_FILE_LINES}


def test_functions_are_not_too_long() -> None:
    long = {name: size for path in MODULES for name, size in functions(path) if size > MAX_FUNCTION_LINES}
    grown = {name: size for name, size in long.items() if size > LONG_FUNCTIONS.get(name, 0)}
    assert not grown, "split these"
    assert long.keys() == LONG_FUNCTIONS.keys(), "take the ones that got shorter out of LONG_FUNCTIONS"


@pytest.mark.parametrize("path", PYTHON, ids=shown)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert path.name == "conftest.py" or ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_nothing_is_left_unfinished() -> None:
    assert not lines_that_match(UNFINISHED)


def test_the_tree_names_no_workplace() -> None:
    assert not lines_that_match(WORKPLACE)


def test_the_tree_names_no_issue_numbers() -> None:
    assert not lines_that_match(ISSUE_NUMBER)


def test_the_tree_names_only_public_hosts() -> None:
    named = {host for path in TREE for host in ADDRESS.findall(path.read_text(encoding="utf-8"))}
    assert named - HOSTS - {"127.0.0.1", "localhost"} == set()


@pytest.mark.parametrize("path", [path for path in MODULES if "cli" not in path.parts], ids=shown)
def test_only_the_command_line_prints(path: Path) -> None:
    calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    assert "print" not in {ast.unparse(call.func) for call in calls}


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_every_exemption_names_its_rule(path: Path) -> None:
    """`noqa` and `type: ignore` switch off one rule, never all of them."""
    with path.open("rb") as file:
        comments = [token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT]
    assert not [text for text in comments if re.search(r"noqa(?!: ?[A-Z]+\d)|type: ignore(?!\[)", text)]


def test_the_patterns_find_what_they_look_for() -> None:
    assert UNFINISHED.search("# TO" + "DO: later")
    assert WORKPLACE.search("see /ho" + "me/me/notes")
    assert not WORKPLACE.search("~/work/notes and build/work/notes")
    assert ISSUE_NUMBER.search("fixes #" + "12")
    assert ISSUE_NUMBER.search("see issue " + "12")
    assert not ISSUE_NUMBER.search("&#" + "12; topic#12 [x](page.md#3)")


def test_the_public_names() -> None:
    """The public names of `pyromq`. A change here is a change for users."""
    assert set(pyromq.__all__) == {
        "Admin", "BatchOptions", "ClientOptions", "ConsumeFrom", "Credentials", "DeadLetter", "Decision",
        "Handling", "Hook", "Message", "MessageQueue", "Producer", "PullConsumer", "PushConsumer", "ReceivedMessage",
        "RetryLater", "SendReceipt", "SendStatus", "Sending", "TransactionProducer", "__version__", "strategies",
    }  # fmt: skip
    assert all(hasattr(pyromq, name) for name in pyromq.__all__)
