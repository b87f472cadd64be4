"""Compressed bodies: read back whole, refused when broken, and never larger than the limit."""

from __future__ import annotations

import contextlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import ConfigError, UnreadableBody
from pyromq.records.compression import check_compression, compress, decompress

NAMES = ["zlib", "lz4", "zstd"]
TEXT = b"the same words again and again, " * 400


@pytest.mark.parametrize("name", NAMES)
@given(body=st.binary(max_size=2000) | st.binary(min_size=1, max_size=20).map(lambda piece: piece * 300))
def test_what_was_compressed_is_read_back(name: str, body: bytes) -> None:
    smaller, flags = compress(body, name)
    assert len(smaller) <= len(body)
    assert decompress(smaller, flags, limit=max(1, len(body))) == body


@pytest.mark.parametrize(("name", "flags"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
def test_the_flags_are_those_of_rocketmq(name: str, flags: int) -> None:
    assert compress(TEXT, name)[1] == flags


def test_old_clients_say_only_that_a_body_is_compressed_and_mean_zlib() -> None:
    assert decompress(compress(TEXT, "zlib")[0], 0x1) == TEXT


def test_what_gets_no_smaller_stays_as_it_was() -> None:
    assert compress(b"short", "zlib") == (b"short", 0)


def test_a_body_that_is_not_compressed_is_not_touched() -> None:
    assert decompress(b"plain", 0x300) == b"plain"


@pytest.mark.parametrize("name", NAMES)
def test_a_small_body_that_stands_for_a_huge_one_is_refused(name: str) -> None:
    bomb, flags = compress(bytes(8 << 20), name)
    with pytest.raises(UnreadableBody, match="limit"):
        decompress(bomb, flags, limit=1 << 20)


@pytest.mark.parametrize("name", NAMES)
def test_a_body_of_exactly_the_limit_is_read(name: str) -> None:
    body, flags = compress(TEXT, name)
    assert decompress(body, flags, limit=len(TEXT)) == TEXT
    with pytest.raises(UnreadableBody, match="limit"):
        decompress(body, flags, limit=len(TEXT) - 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kept", [0, 1, 10, -1])
def test_a_body_that_is_cut_off_is_refused(name: str, kept: int) -> None:
    body, flags = compress(TEXT, name)
    with pytest.raises(UnreadableBody, match="cannot be decompressed"):
        decompress(body[:kept], flags)


@pytest.mark.parametrize("name", NAMES)
@given(noise=st.binary(max_size=200))
def test_whatever_the_bytes_are_there_is_a_body_or_an_error(name: str, noise: bytes) -> None:
    _, flags = compress(TEXT, name)
    with contextlib.suppress(UnreadableBody):
        decompress(noise, flags, limit=1 << 20)


def test_an_unknown_form_is_named() -> None:
    with pytest.raises(UnreadableBody, match="form 7"):
        decompress(b"...", 0x701)


def test_java_reads_only_lz4_frames_of_independent_blocks() -> None:
    assert lz4.frame.get_frame_info(compress(TEXT, "lz4")[0])["block_linked"] is False


def test_a_zstandard_frame_that_does_not_tell_its_size_is_read() -> None:
    packed = zstandard.ZstdCompressor().compressobj()
    body = packed.compress(TEXT) + packed.flush()
    assert decompress(body, 0x201) == TEXT


def test_an_unknown_name_is_a_setting_that_cannot_be_used() -> None:
    with pytest.raises(ConfigError, match="gzip"):
        check_compression("gzip")
