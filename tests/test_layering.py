"""Imports point one way: a module uses its own layer or a lower one, and nothing uses itself in a circle."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

#: Rooms of the house, lowest layer first. A new room is put here, on purpose.
LAYERS = [
    {"errors", "version", "clock", "config", "metrics", "accelerated", "model", "files"},
    {"wire", "records", "filters", "auth", "raft"},
    {"store", "net"},
    {"replication", "backup"},
    {"nameserver", "controller", "broker", "proxy", "accel"},
    # The package itself re-exports the public names, so it may import every layer.
    {"client", "admin", "cli", "demo", "dashboard", "spark", "sync", "testing", "__main__", ""},
]
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
PEOPLE = len(LAYERS) - 1

#: Only decide and calculate: no files, no network, no threads.
PURE = LAYERS[1] | {"model"}
INPUT_OUTPUT = {
    "asyncio", "concurrent", "fcntl", "io", "mmap", "multiprocessing", "os", "pathlib", "select", "selectors",
    "shutil", "signal", "socket", "ssl", "tempfile", "threading",
}  # fmt: skip

#: Nothing that the network can reach may start programs, run text, or load objects.
FORBIDDEN_MODULES = {"code", "codeop", "marshal", "pickle", "pty", "runpy", "shelve", "subprocess"}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "importlib.import_module", "os.system", "os.popen", "os.fork",
    "os.execv", "os.execve", "os.execvp", "os.spawnv", "os.posix_spawn", "asyncio.create_subprocess_exec",
    "asyncio.create_subprocess_shell",
}  # fmt: skip


class Import(NamedTuple):
    name: str
    #: Runs when the module is imported, not later and not only for the type checker.
    at_import: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for suffix in ("py", "pyx") for path in sorted(SOURCE.rglob(f"*.{suffix}"))}


def room_of(module: str) -> str:
    """`pyromq.files.disk` is in the room `files`, `pyromq.clock` in `clock`, and the package itself in ''."""
    return [*module.split("."), ""][1]


def layer_of(module: str) -> int:
    """A room that has no layer yet counts as the highest; a test asks for one."""
    return LAYER_OF.get(room_of(module), PEOPLE)


def imports_of(module: str) -> Iterator[Import]:
    path = MODULES[module]
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".pyx":
        for name in re.findall(r"^\s*(?:from|c?import)\s+([\w.]+)", text, re.MULTILINE):
            yield Import(name, at_import=True)
        return
    yield from _walk(ast.parse(text).body, at_import=True)


def _walk(body: list[ast.stmt], *, at_import: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "imports are absolute"
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield Import(whole if whole in MODULES else node.module, at_import)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _walk(node.body, at_import=False)
            yield from _walk(node.orelse, at_import=at_import)
        else:
            later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for name in ("body", "orelse", "finalbody", "handlers"):
                for inner in getattr(node, name, []):
                    statements = inner.body if isinstance(inner, ast.ExceptHandler) else [inner]
                    yield from _walk(statements, at_import=at_import and not later)


def ours(module: str) -> Iterator[Import]:
    return (one for one in imports_of(module) if one.name.split(".")[0] == "pyromq")


def outside(module: str) -> set[str]:
    return {one.name for one in imports_of(module)} - {one.name for one in ours(module)}


def test_every_room_has_a_layer() -> None:
    assert {room_of(module) for module in MODULES} <= LAYER_OF.keys()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_its_layer_or_a_lower_one(module: str) -> None:
    layer = layer_of(module)
    too_high = {one.name for one in ours(module) if layer_of(one.name) > layer}
    assert not too_high


@pytest.mark.parametrize("module", [module for module in MODULES if room_of(module) != "accel"])
def test_nothing_imports_the_accelerated_ways_by_name(module: str) -> None:
    """They are optional: `accelerated` loads them where they are, and `broker.wiring` plugs them in."""
    assert not {one.name for one in ours(module) if room_of(one.name) == "accel"}


@pytest.mark.parametrize("path", sorted((SOURCE / "pyromq/accel").glob("*.p[yx]*")), ids=lambda path: path.name)
def test_compiled_modules_of_accel_need_nothing_above_records(path: Path) -> None:
    """The store loads them: an import of the store would be a cycle."""
    if path.suffix in (".pyx", ".pxd"):
        names = re.findall(r"^\s*(?:from|c?import)\s+(pyromq[\w.]*)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert {room_of(name) for name in names} <= LAYERS[0] | LAYERS[1] | {"accel"}


def test_the_front_door_opens_no_room_before_somebody_asks_for_it() -> None:
    assert not [one for one in ours("pyromq") if one.at_import]


def test_no_cycles_at_import_time() -> None:
    edges = {module: {one.name for one in ours(module) if one.at_import} for module in MODULES}
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, "import cycle: " + " -> ".join([*way[way.index(module) :], module])
        if module not in done:
            for name in sorted(edges.get(module, set()) - {module}):
                visit(name, (*way, module))
            done.add(module)

    for module in sorted(edges):
        visit(module, ())


@pytest.mark.parametrize("module", [module for module in MODULES if room_of(module) in PURE])
def test_pure_modules_do_no_input_or_output(module: str) -> None:
    assert not {name.split(".")[0] for name in outside(module)} & INPUT_OUTPUT


def test_only_the_clock_reads_the_time() -> None:
    readers = {module for module in MODULES if "time" in outside(module) and layer_of(module) < PEOPLE}
    assert readers == {"pyromq.clock"}


@pytest.mark.parametrize("module", [module for module in MODULES if layer_of(module) < PEOPLE])
def test_server_modules_start_no_programs_and_run_no_text(module: str) -> None:
    assert not {name.split(".")[0] for name in outside(module)} & FORBIDDEN_MODULES
    if MODULES[module].suffix == ".py":
        calls = (node for node in ast.walk(ast.parse(MODULES[module].read_text("utf-8"))) if isinstance(node, ast.Call))
        assert not {ast.unparse(call.func) for call in calls} & FORBIDDEN_CALLS


def test_everything_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (name for names in project["optional-dependencies"].values() for name in names)
    declared = {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in [*project["dependencies"], *extras]}
    compiled_only = {"cpython", "libc", "cython"}
    used = {name.split(".")[0] for module in MODULES for name in outside(module)}
    assert used - sys.stdlib_module_names - compiled_only <= declared


def test_the_checks_see_what_they_should(tmp_path: Path) -> None:
    """A rule that can find nothing is no rule."""
    body = ast.parse(
        "import os\n"
        "if TYPE_CHECKING:\n    import pyromq.cli\nelse:\n    try:\n        import isal\n"
        "    except ImportError:\n        import zlib\n"
        "def later():\n    import pickle\n"
    ).body
    found = dict(_walk(body, at_import=True))
    assert found == {"os": True, "pyromq.cli": False, "isal": True, "zlib": True, "pickle": False}
