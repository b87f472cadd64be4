"""The manifest: any content is read back; a change is noticed; an impossible manifest is refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.backup.manifest import (
    Chunk,
    Manifest,
    SavedFile,
    Source,
    checksum,
    chunk_path,
    decode,
    encode,
    manifest_path,
    number_of,
    why_impossible,
)
from pyromq.backup.planning import (
    SegmentPlan,
    Until,
    chunks_since,
    kept_chunks,
    segment_plans,
    stretches,
    why_not_going_on,
)
from pyromq.errors import CorruptBackup
from pyromq.store.offline.readable_log import LogFile, ReadableLog

SEGMENT = 4096
SHA = "ab" * 32


def chunk(start: int, end: int, first_ms: int = 0, last_ms: int = 0, size: int | None = None) -> Chunk:
    kept = end - start if size is None else size
    return Chunk(chunk_path(1, start, end, SHA), start, end, kept, 1, first_ms, last_ms, SHA, SHA)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Chunks one behind the other, each in one segment, in time."""
    at = start = draw(st.integers(0, 50)) * SEGMENT
    chunks, now = [], draw(st.integers(0, 1000))
    for _ in range(draw(st.integers(0, 12))):
        left = SEGMENT - at % SEGMENT
        size = draw(st.sampled_from([left, left, max(left // 2, 1), max(left // 3, 1)]))
        later = now + draw(st.integers(0, 50))
        chunks.append(chunk(at, at + size, now, later, draw(st.integers(1, size)) if size == left else size))
        at, now = at + size, later
    files = [SavedFile(f"config/{name}.json", f"files/{SHA}", 3, SHA) for name in draw(st.sets(st.sampled_from("abc")))]
    source = Source(draw(st.text(max_size=20)), draw(st.text(max_size=20)), "host")
    return Manifest(
        1, draw(st.integers(0, 1 << 60)), "pyromq", source, 1, SEGMENT, start, at, tuple(chunks), tuple(files)
    )


@given(manifests())
def test_what_is_written_is_read(manifest: Manifest) -> None:
    assert decode(encode(manifest), "m") == manifest


@given(manifests(), st.data())
def test_a_changed_byte_is_noticed(manifest: Manifest, data: st.DataObject) -> None:
    raw = bytearray(encode(manifest))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 6))
    with contextlib.suppress(CorruptBackup):
        assert decode(bytes(raw), "m") == manifest  # white space, or an escape of another case


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_a_sentence(raw: bytes) -> None:
    with pytest.raises(CorruptBackup, match="cannot be used"):
        decode(raw, "m")


def rewritten(manifest: Manifest, **changes: Any) -> bytes:
    """With a checksum that matches: the change is deliberate."""
    content = json.loads(encode(manifest))
    del content["checksum"]
    content.update(changes)
    return json.dumps({**content, "checksum": checksum(content)}).encode()


SMALL = Manifest(1, 0, "pyromq", Source("a", "b", "c"), 1, SEGMENT, 0, 200, (chunk(0, 100), chunk(100, 200)))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": 2}, "version 2"),
        ({"format": "other"}, "no manifest"),
        ({"start": 50}, "no chunk holds"),
        ({"end": 300}, "the chunks end at 200"),
        ({"segment_bytes": 128}, "not within one segment"),
        ({"segment_bytes": 0}, "cannot be used"),
        ({"chunks": [{}]}, "cannot be used"),
        ({"chunks": "x"}, "cannot be used"),
        ({"files": [{"name": "../passwd.json", "file": "files/x", "bytes": 1, "sha256": SHA}]}, "no small file"),
        ({"files": [{"name": "config/a.json", "file": "../x", "bytes": 1, "sha256": SHA}]}, "no name in a backup"),
        ({"unknown": 1}, "cannot be used"),
        ({"segment_bytes": 4096.5}, "segment_bytes cannot be 4096.5"),
        ({"made_ms": True}, "made_ms cannot be True"),
        ({"number": 1 << 80}, "number cannot be"),
        ({"source": {"name": 1, "directory": "", "host": ""}}, "name cannot be 1"),
        ({"start": -4096, "end": -4096, "chunks": []}, "start cannot be -4096"),
        ({"files": [{"name": "config/a.json", "file": "files/x", "bytes": "1", "sha256": SHA}]}, "bytes cannot be '1'"),
    ],
)
def test_what_cannot_be_is_refused_however_well_it_is_signed(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(CorruptBackup, match=why):
        decode(rewritten(SMALL, **changes), "m")


def test_names_and_numbers() -> None:
    assert manifest_path(7) == "manifests/00000007.json"
    assert number_of("00000007.json") == 7
    assert [number_of(name) for name in ("7.json", "00000007.json.x", "0000000a.json", "")] == [None] * 4


# --- planning ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 5), st.integers(0, 8), st.integers(0, SEGMENT - 1), st.integers(0, 9 * SEGMENT))
def test_stretches_cover_the_log_from_a_position_on(first: int, count: int, tail: int, begin: int) -> None:
    bases = [(first + number) * SEGMENT for number in range(count + 1)]
    files = tuple(LogFile(Path(f"{base}"), base, SEGMENT) for base in bases)
    log = ReadableLog(Path(), SEGMENT, files, bases[0], bases[-1] + tail, live=False)
    found = stretches(log, begin)
    at = max(begin, log.start)
    for each in found:
        assert each.start == at
        assert each.base <= each.start < each.end <= each.base + each.size
        at = each.end
    assert at == max(log.end, at)


@given(manifests(), st.integers(0, 2000) | st.none(), st.integers(0, 70 * SEGMENT) | st.none())
def test_a_plan_has_every_chunk_that_is_kept_once(
    manifest: Manifest, time_ms: int | None, position: int | None
) -> None:
    until = Until(time_ms, position)
    plans = segment_plans(manifest, until)
    planned = [each for plan in plans for each in plan.chunks]
    assert tuple(planned) == kept_chunks(manifest, until) == manifest.chunks[: len(planned)]
    assert all(until.covers(each) for each in planned[:-1])
    assert all(plan.until is None for plan in plans[:-1])
    for plan in plans:
        assert {each.start // SEGMENT for each in plan.chunks} == {plan.base // SEGMENT}
    if planned and plans[-1].until is None:
        assert until.covers(planned[-1])
    if len(planned) < len(manifest.chunks):
        rest = manifest.chunks[len(planned)]
        assert until.leaves_out(rest) or not until.covers(planned[-1])


@settings(max_examples=50)
@given(manifests(), st.integers(0, 2000))
def test_pruning_keeps_whole_segments_and_the_last(manifest: Manifest, before_ms: int) -> None:
    kept = chunks_since(manifest, before_ms)
    assert kept == manifest.chunks[len(manifest.chunks) - len(kept) :]
    dropped = manifest.chunks[: len(manifest.chunks) - len(kept)]
    assert all(each.last_ms < before_ms for each in dropped)
    if kept:
        assert kept[0].start % SEGMENT == 0 or not dropped
    assert bool(kept) == bool(manifest.chunks)


def log(start: int, end: int, segment_bytes: int = SEGMENT) -> ReadableLog:
    return ReadableLog(Path(), segment_bytes, (), start, end, live=False)


@pytest.mark.parametrize(
    ("now", "same_tail", "why"),
    [
        (log(0, 200), True, None),
        (log(0, 500), True, None),
        (log(0, 500), None, None),
        (log(200, 500), None, None),
        (log(0, 199), None, "it was cut"),
        (log(201, 500), None, "removed too soon"),
        (log(0, 500), False, "are not those in the backup"),
        (log(0, 500, 8192), True, "8192 bytes"),
    ],
)
def test_whether_a_log_goes_on_from_a_backup(now: ReadableLog, same_tail: bool | None, why: str | None) -> None:
    found = why_not_going_on(SMALL, now, same_tail=same_tail)
    assert found is None if why is None else found is not None and why in found


def test_a_plan_that_is_cut_says_so() -> None:
    until = Until(position=150)
    assert segment_plans(SMALL, until) == [SegmentPlan(0, SEGMENT, SMALL.chunks, until)]
    assert why_impossible(SMALL) is None
