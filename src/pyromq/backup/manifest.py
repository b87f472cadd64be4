"""The manifest of a backup: what it holds, and how to tell that it still does.

A backup is a row of manifests, `manifests/00000001.json` and so on. Each tells the whole content at one time: every
chunk of the log, every small file, with lengths and SHA-256, and has a checksum of its own. It is written last and
never changed, so the newest one that is there is complete. Older ones stay: what they name stays too.

A chunk holds the records of `[start, end)` of the log, all in one segment. A segment that is full ends with a blank;
the chunk keeps its 8 bytes and not the room behind it, so a chunk may have fewer bytes than positions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from pyromq.errors import CorruptBackup

FORMAT = "pyromq-backup"
VERSION = 1
DIRECTORY = "manifests"
#: Bytes at the end of each chunk with a digest of their own: it tells whether a log continues a backup.
TAIL_BYTES = 4096

NAME_DIGITS = 8
#: No number in a manifest is larger.
MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of the log in one file."""

    file: str
    start: int
    end: int
    bytes: int
    records: int
    #: Store times of its first and its last record; 0 and 0 when it has none.
    first_ms: int
    last_ms: int
    sha256: str
    #: Of its last `TAIL_BYTES`, or of all when there are fewer.
    tail_sha256: str

    @property
    def written_end(self) -> int:
        """Behind the last byte that is kept; up to `end` there is the room behind a blank."""
        return self.start + self.bytes


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A small file of the store."""

    #: Its path in the store's directory.
    name: str
    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a backup."""

    #: As its owner calls it: the broker's name, usually.
    name: str
    directory: str
    host: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole content of a backup at one time."""

    number: int
    made_ms: int
    made_by: str
    source: Source
    #: Chunks of one log go on from each other. A log that does not go on from the last one begins another series.
    series: int
    segment_bytes: int
    #: Of the log: what the chunks hold, without gaps.
    start: int
    end: int
    chunks: tuple[Chunk, ...] = ()
    files: tuple[SavedFile, ...] = ()
    #: The number of the manifest before this one; 0: it is the first.
    previous: int = 0

    @property
    def path(self) -> str:
        return manifest_path(self.number)

    @property
    def records(self) -> int:
        return sum(chunk.records for chunk in self.chunks)

    @property
    def bytes(self) -> int:
        return sum(chunk.bytes for chunk in self.chunks)

    @property
    def names(self) -> set[str]:
        """Every file that it needs, except itself."""
        return {chunk.file for chunk in self.chunks} | {saved.file for saved in self.files}

    def going_on(self, chunks: tuple[Chunk, ...], end: int) -> Manifest:
        return replace(self, chunks=(*self.chunks, *chunks), end=end)


def manifest_path(number: int) -> str:
    return f"{DIRECTORY}/{number:0{NAME_DIGITS}d}.json"


def number_of(name: str) -> int | None:
    """The number in the name of a manifest; None: it is none."""
    stem = name.removesuffix(".json")
    is_one = name.endswith(".json") and len(stem) == NAME_DIGITS and stem.isascii() and stem.isdigit()
    return int(stem) if is_one else None


def chunk_directory(series: int) -> str:
    return f"log/{series:04d}"


def chunk_path(series: int, start: int, end: int, tail_sha256: str) -> str:
    """A run that is begun again replaces its own chunks. One of another store that runs at once does not: the name
    also has a digest of its content."""
    return f"{chunk_directory(series)}/{start:020d}-{end:020d}-{tail_sha256[:8]}"


def file_path(sha256: str) -> str:
    """Small files are named by what they hold: the same content is kept once."""
    return f"files/{sha256}"


# --- bytes and back ----------------------------------------------------------------------------------------------


def encode(manifest: Manifest) -> bytes:
    content = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    return json.dumps({**content, "checksum": checksum(content)}, indent=1).encode("ascii") + b"\n"


def checksum(content: Mapping[str, Any]) -> str:
    return sha256_of(json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii"))


def decode(data: bytes, name: str) -> Manifest:
    """Decode a manifest. Raises CorruptBackup if `encode` did not write it, or it is of another version."""
    try:
        content = json.loads(data)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError("it is no manifest of a backup")
        if content.get("version") != VERSION:
            raise ValueError(
                f"it has version {content.get('version')!r} of the format, and this program knows {VERSION}"
            )
        if content.pop("checksum", None) != checksum(content):
            raise ValueError("its checksum is of another content")
        return _built(content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptBackup(name, 0, f"the manifest cannot be used: {error}") from None


def _built(content: dict[str, Any]) -> Manifest:
    del content["format"], content["version"]
    content["source"] = Source(**content["source"])
    content["chunks"] = tuple(Chunk(**each) for each in content["chunks"])
    content["files"] = tuple(SavedFile(**each) for each in content["files"])
    manifest = Manifest(**content)
    parts: list[Manifest | Source | Chunk | SavedFile] = [manifest, manifest.source, *manifest.chunks, *manifest.files]
    for part in parts:
        _require_kinds(part)
    problem = why_impossible(manifest)
    if problem is not None:
        raise ValueError(problem)
    return manifest


def _require_kinds(part: Manifest | Source | Chunk | SavedFile) -> None:
    """Numbers are numbers, and of those that positions, lengths and times can be."""
    for field in fields(part):
        value = getattr(part, field.name)
        is_number = type(value) is int and 0 <= value <= MOST
        if (field.type == "int" and not is_number) or (field.type == "str" and not isinstance(value, str)):
            raise ValueError(f"{field.name} cannot be {value!r}")


def why_impossible(manifest: Manifest) -> str | None:
    """Return a statement of the manifest that cannot be true; None if there is none."""
    if manifest.segment_bytes <= 0:
        return f"no segment has {manifest.segment_bytes} bytes"
    at = manifest.start
    for chunk in manifest.chunks:
        if chunk.start != at:
            return f"no chunk holds the log from {at} to {chunk.start}"
        last = (chunk.end - 1) // manifest.segment_bytes
        if not chunk.start < chunk.end or chunk.start // manifest.segment_bytes != last:
            return f"the chunk {chunk.file} is not within one segment"
        if not 0 < chunk.bytes <= chunk.end - chunk.start:
            return f"the chunk {chunk.file} cannot have {chunk.bytes} bytes"
        at = chunk.end
    if at != manifest.end:
        return f"the chunks end at {at}, and the log at {manifest.end}"
    names = [*(chunk.file for chunk in manifest.chunks), *(saved.file for saved in manifest.files)]
    return next((f"{name!r} is no name in a backup" for name in names if not is_safe_name(name)), None) or next(
        (f"{saved.name!r} is no small file of a store" for saved in manifest.files if not _is_small_file(saved.name)),
        None,
    )


def is_safe_name(name: str) -> bool:
    """A name leads to a place inside the backup."""
    parts = name.split("/")
    return 0 < len(name) < 1024 and all(part not in ("", ".", "..") and "\0" not in part for part in parts)


def _is_small_file(name: str) -> bool:
    directory, _, rest = name.partition("/")
    return directory == "config" and is_safe_name(name) and "/" not in rest and rest.endswith(".json")


def sha256_of(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()
