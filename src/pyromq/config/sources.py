"""Sources of settings: a TOML file, a RocketMQ file, the environment, flags. Each returns `path → Given`.

`Given` keeps the file and line of a value for error texts.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pyromq.config.fields import BadValue, nearest, paths_of, tables_of
from pyromq.config.plain_file import NotAFile, read_plain_file
from pyromq.config.properties import Entry, parse_properties
from pyromq.config.rocketmq_keys import RELIED_ON, Key
from pyromq.config.rocketmq_names import KNOWN_TO_ROCKETMQ
from pyromq.errors import ConfigError

#: Refuse larger files: they are no settings.
MAX_FILE_BYTES = 1024 * 1024

#: Variables that Kubernetes sets for a service called `pyromq-broker`: not settings.
_OF_KUBERNETES = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_.*)?)")


#: Some of the files that come with RocketMQ carry their licence as an XML comment, which Java reads as settings.
_XML_COMMENT = re.compile(r"\A\s*<!--.*?-->", re.DOTALL)


class Given(NamedTuple):
    value: object
    #: File and line, variable or option.
    where: str


@dataclass(slots=True)
class Found:
    """Settings and warnings of one source."""

    given: dict[str, Given] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def read_settings(path: Path) -> bytes:
    """Read a file of settings. Raises ConfigError."""
    try:
        if path.is_dir():
            raise ConfigError(f"{path} is a directory; give the file with the settings")
        data = read_plain_file(path, MAX_FILE_BYTES)
    except NotAFile as error:
        raise ConfigError(f"{error}: give a file with the settings, at most 1 MiB") from None
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}; check the name given with --config") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"the settings in {path} cannot be read: {why}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is larger than 1 MiB, so it is no file of settings")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data:
        raise ConfigError(f"{path} is not UTF-8 text; save it as UTF-8")
    return data.removeprefix(b"\xef\xbb\xbf")


# --- TOML --------------------------------------------------------------------------------------------------------


def from_toml(settings: type, keys: Sequence[Key], data: bytes, path: Path) -> Found:
    """Read TOML with the names of the dataclasses. Raises ConfigError."""
    try:
        text = data.decode("utf-8")
        tree = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}, line {line}: TOML is UTF-8, and byte {data[error.start]:#04x} is not") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    known = dict(paths_of(settings))
    tables = set(tables_of(settings))
    found = Found()
    for name, value in _leaves(tree, tables):
        where = _toml_place(path, text, name)
        if name in tables:
            raise ConfigError(f"{where}: {name} is a table; write its settings below [{name}]", name)
        if name not in known:
            raise ConfigError(f"{where}: there is no setting {name}{_suggest(name, known, keys)}", name)
        found.given[name] = Given(value, where)
    return found


def _leaves(tree: Mapping[str, object], tables: set[str], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, dict) and name in tables:
            yield from _leaves(value, tables, f"{name}.")
        else:
            yield name, value


def _toml_place(path: Path, text: str, name: str) -> str:
    """Return file and line of a key, or the file alone if the key does not begin a line."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([\w.\s-]+?)\s*\]", line):
            table = re.sub(r"\s", "", header[1]) + "."
            if table == name + ".":
                return f"{path}, line {number}"
        elif (key := re.match(r"\s*([\w.-]+)\s*=", line)) and table + key[1] == name:
            return f"{path}, line {number}"
    return str(path)


def _suggest(name: str, known: Mapping[str, object], keys: Sequence[Key]) -> str:
    for key in keys:
        if key.name.lower() == name.lower():
            return f"; {key.name} is RocketMQ's name for {key.path}"
    return nearest(name, known)


# --- RocketMQ's key=value ----------------------------------------------------------------------------------------


def from_rocketmq(keys: Sequence[Key], data: bytes, path: Path) -> Found:
    """Read RocketMQ's keys; one warning lists the keys without effect. Raises ConfigError for unknown keys."""
    known = {key.name: key for key in keys}
    found = Found()
    idle: dict[str, str] = {}
    for entry in _last_of_each(_parse(data, path), found.warnings, path):
        where = f"{path}, line {entry.line}"
        if entry.key in known:
            key = known[entry.key]
            found.given[key.path] = Given(_take(key, entry, where), f"{where} ({entry.key})")
        elif entry.key in KNOWN_TO_ROCKETMQ:
            idle[entry.key] = entry.value
        else:
            raise ConfigError(_unknown_key(entry, where), entry.key)
    if idle:
        found.warnings.append(_idle_warning(idle, path))
    _leave_room_to_resume(found)
    return found


def _parse(data: bytes, path: Path) -> list[Entry]:
    """Decode as UTF-8, or else as Latin-1, which Java uses for such files."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    try:
        return parse_properties(_XML_COMMENT.sub(lambda found: "\n" * found.group().count("\n"), text))
    except ConfigError as error:
        raise ConfigError(f"{path}, {error}") from None


def _last_of_each(entries: list[Entry], warnings: list[str], path: Path) -> list[Entry]:
    """Return the last entry of each key, as Java does, and warn of repeated keys."""
    last: dict[str, Entry] = {}
    for entry in entries:
        if entry.key in last:
            lines = f"lines {last[entry.key].line} and {entry.line}"
            warnings.append(f"{path}: {entry.key} is given more than once ({lines}); the last one counts")
        last[entry.key] = entry
    return list(last.values())


def _take(key: Key, entry: Entry, where: str) -> object:
    try:
        return key.form.take(entry.value)
    except BadValue as error:
        raise ConfigError(f"{where}: {entry.key} = {entry.value!r} cannot work: {error}", entry.key) from None


def _unknown_key(entry: Entry, where: str) -> str:
    if entry.key.startswith("["):
        return f"{where}: {entry.key} is a table of TOML, and this file is read as key=value; give it the ending .toml"
    return f"{where}: RocketMQ has no setting {entry.key}{nearest(entry.key, KNOWN_TO_ROCKETMQ)}"


def _idle_warning(idle: Mapping[str, str], path: Path) -> str:
    missed = {RELIED_ON[key] for key, value in idle.items() if key in RELIED_ON and value.strip().lower() == "true"}
    missing = f". Beware: it asks for {' and '.join(sorted(missed))}, which is not there" if missed else ""
    return f"{path}: these settings of RocketMQ change nothing here: {', '.join(sorted(idle))}{missing}"


def _leave_room_to_resume(found: Found) -> None:
    """Set `resume_below` 5 % under `refuse_at`: RocketMQ has one threshold for both."""
    refuse = found.given.get("store.retention.refuse_at")
    if refuse is not None:
        assert isinstance(refuse.value, float)
        found.given["store.retention.resume_below"] = Given(round(refuse.value - 0.05, 2), refuse.where)


# --- environment and flags ---------------------------------------------------------------------------------------


def from_environment(settings: type, prefix: str, environ: Mapping[str, str]) -> Found:
    """Read `PREFIX_LISTEN_PORT`, `PREFIX_STORE__FLUSH__SYNC`: two underscores separate tables. Ignore empty values."""
    known = {prefix + path.upper().replace(".", "__"): path for path, _ in paths_of(settings)}
    found = Found()
    for name, value in environ.items():
        if name in known:
            if value.strip():
                found.given[known[name]] = Given(value, f"environment variable {name}")
        elif name.startswith(prefix) and not _is_of_kubernetes(name.removeprefix(prefix), value):
            path = name.removeprefix(prefix).lower().replace("__", ".")
            near = nearest(path, known.values(), {path: variable for variable, path in known.items()}.__getitem__)
            raise ConfigError(f"there is no setting for the environment variable {name}{near}", name)
    return found


def _is_of_kubernetes(name: str, value: str) -> bool:
    """Return whether Kubernetes set the variable. Its `…_PORT` is a URL; a number is a misspelt setting."""
    return _OF_KUBERNETES.fullmatch(name) is not None and (name != "PORT" or "://" in value)


def from_flags(settings: type, overrides: Mapping[str, object]) -> Found:
    """Read command-line values by path; skip `None`."""
    known = dict(paths_of(settings))
    found = Found()
    for path, value in overrides.items():
        if path not in known:
            raise ConfigError(f"there is no setting {path}{nearest(path, known)}", path)
        if value is not None:
            found.given[path] = Given(value, "command line")
    return found
