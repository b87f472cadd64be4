"""A file that is made once, where nothing below can refuse a name that is taken: object stores, as Arrow reaches them.

A writer puts a claim next to the name, then lists the claims and the file. If another claim or the file exists, the
writer gives up. Large object stores list every completed write, so of two concurrent writers the second to list sees
the first one's claim, or its file. Both may give up; two never continue.

A claim whose owner died blocks the name until it is `STALE_SECONDS` old, by the clock of the store. The one assumption
is that no writer pauses that long between listing and writing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final
from uuid import uuid4

from pyarrow import fs

STALE_SECONDS: Final = 600.0


def create_once(files: fs.FileSystem, path: str, write: Callable[[], None], *, suffix: str) -> bool:
    """Write a file unless it exists; False if it does, or another writer has claimed it. Raises OSError.

    Claims have the name of the file with more behind it, and end with the suffix.
    """
    if _is_there(files, path):
        return False
    directory, _, name = path.rpartition("/")
    claim = f"{path}.{uuid4().hex}{suffix}"
    _put(files, claim)
    try:
        if _other_claims(files, directory, name, claim, suffix) or _is_there(files, path):
            return False
        write()
        return True
    finally:
        _remove(files, claim)


def _is_there(files: fs.FileSystem, path: str) -> bool:
    return bool(files.get_file_info(path).type != fs.FileType.NotFound)


def _put(files: fs.FileSystem, claim: str) -> None:
    if files.type_name in ("local", "hdfs"):
        files.create_dir(claim.rpartition("/")[0], recursive=True)
    with files.open_output_stream(claim, compression=None) as stream:
        stream.write(b"claimed\n")


def _other_claims(files: fs.FileSystem, directory: str, name: str, own: str, suffix: str) -> bool:
    found = [
        info
        for info in files.get_file_info(fs.FileSelector(directory))
        if info.base_name.startswith(f"{name}.") and info.base_name.endswith(suffix)
    ]
    now_s = max((_time_s(info) for info in found if info.path == own), default=0.0)
    others = [info for info in found if info.path != own]
    stale = [info for info in others if now_s - _time_s(info) > STALE_SECONDS]
    for info in stale:
        _remove(files, info.path)
    return len(stale) < len(others)


def _time_s(info: fs.FileInfo) -> float:
    return float(info.mtime_ns or 0) / 1e9


def _remove(files: fs.FileSystem, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        files.delete_file(path)
