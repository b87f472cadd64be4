"""The history of a lake of plain Parquet, as files of JSON, and what folding them gives. Pure.

`_pyromq/commits/00000000000000000007.json` is commit 7: the files that it adds and removes, and the next offset of
every queue. `_pyromq/checkpoints/` has all live files at every n-th commit, so readers do not read every commit.
Readers of plain Parquet skip every name that begins with `_`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pyromq.errors import LakeError
from pyromq.spark.lake.model import Change, DataFile, Head

COMMITS = "_pyromq/commits"
CHECKPOINTS = "_pyromq/checkpoints"
#: A reader refuses a newer format.
FORMAT = 1
_NAME = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class Commit:
    version: int
    run: str
    why: str
    at_ms: int
    offsets: Mapping[str, int]
    schema: pa.Schema
    added: Sequence[DataFile]
    #: Paths.
    removed: Sequence[str]


@dataclass(frozen=True, slots=True)
class State:
    """The lake at a commit."""

    version: int = 0
    offsets: Mapping[str, int] = field(default_factory=dict)
    schema: pa.Schema | None = None
    #: The live files, by path.
    files: Mapping[str, DataFile] = field(default_factory=dict)

    def after(self, commit: Commit) -> State:
        assert commit.version == self.version + 1, "commits are applied one after the other"
        gone = set(commit.removed)
        files = {path: file for path, file in self.files.items() if path not in gone}
        files.update((file.path, file) for file in commit.added)
        return State(commit.version, commit.offsets, commit.schema, files)

    def head(self) -> Head:
        return Head(self.version, self.offsets, self.schema)


def name_of(directory: str, version: int) -> str:
    return f"{directory}/{version:020}.json"


def version_in(name: str) -> int | None:
    """The number of a commit or checkpoint by its name; None when it is something else, a temporary file perhaps."""
    found = _NAME.fullmatch(name.rpartition("/")[2])
    return int(found[1]) if found else None


def commit_of(change: Change) -> Commit:
    removed = [file.path for file in change.removed]
    version = change.base.version + 1
    return Commit(version, change.run, change.why, change.at_ms, change.offsets, change.schema, change.added, removed)


def encode_commit(commit: Commit) -> bytes:
    form = {
        "format": FORMAT,
        "version": commit.version,
        "run": commit.run,
        "why": commit.why,
        "at_ms": commit.at_ms,
        "offsets": dict(sorted(commit.offsets.items())),
        "added": [file.as_json() for file in commit.added],
        "removed": list(commit.removed),
        "schema": _schema_text(commit.schema),
    }
    return json.dumps(form, indent=1).encode()


def decode_commit(data: bytes, name: str) -> Commit:
    form = _form(data, name)
    try:
        return Commit(
            form["version"], form["run"], form["why"], form["at_ms"], form["offsets"], _schema(form["schema"]),
            [DataFile.of_json(file) for file in form["added"]], form["removed"],
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as why:
        raise LakeError(f"{name} is no commit of a lake: {why!r}") from why


def encode_checkpoint(state: State) -> bytes:
    assert state.schema is not None, "there is a commit"
    form = {
        "format": FORMAT,
        "version": state.version,
        "offsets": dict(sorted(state.offsets.items())),
        "files": [file.as_json() for _, file in sorted(state.files.items())],
        "schema": _schema_text(state.schema),
    }
    return json.dumps(form).encode()


def decode_checkpoint(data: bytes, name: str) -> State:
    form = _form(data, name)
    try:
        files = {file["path"]: DataFile.of_json(file) for file in form["files"]}
        return State(form["version"], form["offsets"], _schema(form["schema"]), files)
    except (KeyError, TypeError, ValueError) as why:
        raise LakeError(f"{name} is no checkpoint of a lake: {why!r}; it can be removed, commits are enough") from why


def _form(data: bytes, name: str) -> dict[str, Any]:
    try:
        form = json.loads(data)
    except ValueError as why:
        raise LakeError(f"{name} is not JSON: {why}") from why
    if not isinstance(form, dict) or form.get("format") != FORMAT:
        raise LakeError(f"{name} is not of the format that is known here ({FORMAT}): a newer version wrote it")
    return form


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode("ascii")


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
