"""Writes the parts of docs/ that come from the code: settings, commands, errors, record layout and recover point.

    python scripts/gen_docs.py            write them
    python scripts/gen_docs.py --check    say which are out of date, and fail if one is

A generated part stands between two comments, `<!-- generated: name -->` and `<!-- end -->`; what is around it is
written by hand. `tests/test_docs.py` runs the check.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from pyromq.cli.app import app
from pyromq.config.rocketmq_keys import BROKER_KEYS, NAME_SERVER_KEYS
from pyromq.config.runtime import RUNTIME_SETTINGS, RuntimeSetting

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "pyromq"
DOCS = ROOT / "docs"

PART = re.compile(r"(?P<begin><!-- generated: (?P<name>[a-z-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


# --- settings ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    default: str
    text: str


#: Which dataclasses of a module of config/ are described, and how their settings are addressed in a file.
SETTINGS_OF = {
    "broker": {
        "BrokerConfig": "",
        "TransactionConfig": "transaction.",
        "IdempotenceConfig": "idempotence.",
        "OverloadConfig": "overload.",
    },
    "replication": {"ReplicationConfig": "replication."},
    "limits": {"LimitsConfig": "limits."},
    "store": {"StoreConfig": "store.", "FlushConfig": "store.flush.", "RetentionConfig": "store.retention."},
    "nameserver": {"NameServerConfig": ""},
}


def settings(module: str) -> str:
    """One table per dataclass of a module of config/: the name, the default, and the `#:` comment above it."""
    source = (PACKAGE / "config" / f"{module}.py").read_text(encoding="utf-8")
    nodes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    parts: list[str] = []
    for name, prefix in SETTINGS_OF[module].items():
        rows = [[f"`{prefix}{one.name}`", one.default, one.text] for one in _settings_of(nodes[name], source)]
        parts.append(f"### `{name}`\n\n{ast.get_docstring(nodes[name])}\n\n" + table(["name", "default", ""], rows))
    return "\n".join(parts)


def rocketmq_keys(names: str) -> str:
    """RocketMQ's keys and ours; for a broker also whether the key may be changed while it runs."""
    keys = {"broker": BROKER_KEYS, "nameserver": NAME_SERVER_KEYS}[names]
    running = {setting.key: _range(setting) for setting in RUNTIME_SETTINGS} if names == "broker" else {}
    head = ["RocketMQ", "here", *(["while it runs"] if running else [])]
    rows = [[f"`{key.name}`", f"`{key.path}`", *([running.get(key.name, "")] if running else [])] for key in keys]
    return table(head, rows)


def _range(setting: RuntimeSetting) -> str:
    return "true, false" if setting.kind == "bool" else f"{setting.least} to {setting.most}"


def _settings_of(node: ast.ClassDef, source: str) -> Iterator[Setting]:
    lines = source.splitlines()
    text = ""
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            # A field without a comment shares the one above it.
            text = _comment_above(lines, field.lineno) or text
            kind = ast.unparse(field.annotation)
            if kind.endswith("Config"):
                yield Setting(field.target.id, "", f"See `{kind}`.")
            else:
                if _is_fixed(field.value):
                    continue
                default = _default(field.value)
                plain = default.replace(" ", "") if field.target.id.endswith("_port") else default
                yield Setting(field.target.id, plain, text or (ast.get_docstring(node) or ""))


def _is_fixed(value: ast.expr | None) -> bool:
    """Return whether a field is a constant, which no file sets."""
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "fixed"


def _comment_above(lines: list[str], line_number: int) -> str:
    found: list[str] = []
    at = line_number - 2
    while lines[at].strip().startswith("#:"):
        found.insert(0, lines[at].strip()[2:].strip())
        at -= 1
    return " ".join(found)


def _default(value: ast.expr | None) -> str:
    """As people say it: sizes with their unit, switches as on and off."""
    if value is None:
        return "required"
    if ast.unparse(value) in ("None", "()"):
        return "none"
    if isinstance(value, ast.Constant):
        if isinstance(value.value, bool):
            return "on" if value.value else "off"
        if isinstance(value.value, (int, float)):
            return f"{value.value:,}".replace(",", " ")
        return f"`{ast.unparse(value)}`"
    if isinstance(value, ast.BinOp):
        unit = ast.unparse(value.right).replace("IB", "iB")
        return f"{ast.unparse(value.left)} {unit}"
    return f"`{_constant(ast.unparse(value))}`"


def _constant(name: str) -> str:
    """The value of a constant of the store's settings."""
    source = (PACKAGE / "config" / "store.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return str(ast.literal_eval(node.value))
    return name


# --- commands ----------------------------------------------------------------------------------------------------


def commands() -> str:
    """Every command with its help and its options, in the order of the help."""
    return "\n".join(_commands_of(typer.main.get_command(app), ["pyromq"]))


def _commands_of(command: Any, names: list[str]) -> Iterator[str]:
    inner = {name: command.get_command(None, name) for name in command.list_commands(None)}
    for name, one in inner.items():
        words = [*names, name]
        is_group = hasattr(one, "list_commands")
        if not is_group or one.invoke_without_command:
            yield _command(one, words)
        if is_group:
            yield from _commands_of(one, words)


def _command(command: Any, words: list[str]) -> str:
    shown = [parameter for parameter in command.params if "--help" not in parameter.opts]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    usage = " ".join([*words, *(_argument(one) for one in arguments)])
    parts = [f"### `{usage}`\n\n{_folded(command.help or '')}\n"]
    rows = [[f"`{_argument(one)}`", "", one.help or ""] for one in arguments if one.help]
    rows += [_option_row(one) for one in shown if one.param_type_name == "option"]
    return "\n".join([*parts, table(["", "default", ""], rows)])


def _argument(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _option_row(option: Any) -> list[str]:
    ways = " ".join(f"`{one}`" for one in [*option.opts, *option.secondary_opts])
    default = option.default
    shown = "" if default in (None, False, "") or callable(default) else f"`{getattr(default, 'value', default)}`"
    variable = f" Or in the environment: `{option.envvar}`." if option.envvar else ""
    return [ways + (f" {option.metavar}" if option.metavar else ""), shown, (option.help or "") + variable]


def _folded(text: str) -> str:
    """Paragraphs on one line each, as Markdown likes them."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


# --- errors ------------------------------------------------------------------------------------------------------


def errors() -> str:
    """The tree of errors.py, as its classes have it, with each sentence of the drawing in its docstring."""
    source = (PACKAGE / "errors.py").read_text(encoding="utf-8")
    module = ast.parse(source)
    drawn = dict(re.findall(r"[├└]── (\w+) +(\S.+)", ast.get_docstring(module) or ""))
    rows: list[list[str]] = []
    codes: dict[str, str] = {}
    for node in (node for node in module.body if isinstance(node, ast.ClassDef)):
        parent = ast.unparse(node.bases[0])
        codes[node.name] = _code(node, source) or codes.get(parent, "")
        text = drawn.get(node.name) or ast.get_docstring(node) or ""
        parent = "" if parent == "Exception" else f"`{parent}`"
        rows.append([f"`{node.name}`", parent, codes[node.name], text[:1].upper() + text[1:].rstrip(".") + "."])
    return table(["error", "is a", "response code", ""], rows)


def _code(node: ast.ClassDef, source: str) -> str | None:
    """`code = 13  # MESSAGE_ILLEGAL` as `13 MESSAGE_ILLEGAL`."""
    for statement in node.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "code":
            comment = source.splitlines()[statement.lineno - 1].partition("#")[2].strip()
            return f"{ast.unparse(statement.value)} {comment}".strip()
    return None


# --- files -------------------------------------------------------------------------------------------------------


def record_layout() -> str:
    """The table in the docstring of records/layout.py."""
    docstring = ast.get_docstring(ast.parse((PACKAGE / "records" / "layout.py").read_text(encoding="utf-8"))) or ""
    rows: list[list[str]] = []
    for line in docstring.splitlines():
        found = re.fullmatch(r"    (?P<offset>[\d. ]{6})  (?P<bytes>[\d/+n ]{5})  (?P<text>\S.*)", line)
        if found:
            rows.append([found["offset"].strip(), found["bytes"].strip(), found["text"].strip()])
    return table(["offset", "bytes", "field"], rows)


#: Bytes of a struct code.
_SIZES = {"q": 8, "i": 4, "I": 4}


def recover_point() -> str:
    """The fields of the recover point's `_SLOT` in store/durability/checkpoint.py, one commented line each."""
    source = (PACKAGE / "store" / "durability" / "checkpoint.py").read_text(encoding="utf-8")
    body = source.partition("_SLOT = struct.Struct(\n")[2].partition("\n)")[0]
    rows: list[list[str]] = []
    offset = 0
    for code, text in re.findall(r'">?(\w+)"\s+# (.+)', body):
        size = _SIZES[code] if code in _SIZES else int(code[:-1])
        rows.append([str(offset), str(size), text])
        offset += size
    rows.append([str(offset), "4", "CRC-32 of the bytes before"])
    return table(["offset", "bytes", "field"], rows)


GENERATORS: dict[str, Callable[[], str]] = {
    **{f"settings-{module}": partial(settings, module) for module in SETTINGS_OF},
    **{f"keys-{program}": partial(rocketmq_keys, program) for program in ("broker", "nameserver")},
    "commands": commands,
    "errors": errors,
    "record-layout": record_layout,
    "recover-point": recover_point,
}


def fill(text: str) -> str:
    """A page with its generated parts made anew."""
    return PART.sub(lambda part: f"{part['begin']}{GENERATORS[part['name']]()}{part['end']}", text)


def out_of_date() -> dict[Path, str]:
    """Pages whose generated parts are not what the code says, with what they should be."""
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
    return {path: fill(text) for path, text in pages.items() if fill(text) != text}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is out of date")
    check = parser.parse_args().check
    pages = out_of_date()
    for path, text in pages.items():
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'out of date, run `make docs`' if check else 'written'}")
    return 1 if check and pages else 0


if __name__ == "__main__":
    sys.exit(main())
