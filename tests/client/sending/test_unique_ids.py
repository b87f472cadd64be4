"""Ids of messages: all different, in RocketMQ's form, with a time that can be read back."""

from __future__ import annotations

from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.sending.unique_ids import UniqueIds

NOW_MS = 1_800_000_000_000


def local_ms(*when: int) -> int:
    """By the local calendar."""
    return int(datetime(*when).timestamp() * 1000)  # noqa: DTZ001


def since_month_began_ms(unique_id: str) -> int:
    """The time in an id, as RocketMQ's tools read it."""
    return int(unique_id[20:28], 16)


def salts() -> UniqueIds:
    numbers = iter(range(1, 1000))
    return UniqueIds("10.1.2.3", 0x12345, lambda size: next(numbers).to_bytes(size, "big"))


def test_an_id_has_the_form_that_other_clients_make() -> None:
    made = salts().next(NOW_MS)
    assert len(made) == 32
    assert made == made.upper()
    data = bytes.fromhex(made)
    assert data[:4] == bytes([10, 1, 2, 3])
    assert data[4:6] == b"\x23\x45"
    assert data[6:10] == b"\0\0\0\1"


def test_the_time_of_an_id_can_be_read_back() -> None:
    late = local_ms(2026, 1, 31, 23, 30)
    assert since_month_began_ms(salts().next(late)) == late - local_ms(2026, 1, 1)


@given(st.lists(st.integers(-3_600_000, 40 * 24 * 3_600_000), min_size=1, max_size=300))
def test_no_two_ids_are_equal_however_the_clock_jumps(jumps: list[int]) -> None:
    ids = salts()
    made = [ids.next(NOW_MS + jump) for jump in jumps for _ in range(3)]
    assert len(set(made)) == len(made)
    assert all(len(one) == 32 for one in made)


def test_ids_grow_within_a_month_even_when_the_clock_steps_back() -> None:
    ids = salts()
    made = [ids.next(NOW_MS), ids.next(NOW_MS - 5_000), ids.next(NOW_MS), ids.next(NOW_MS + 1)]
    assert made == sorted(made)


def test_more_ids_than_the_counter_holds_in_one_millisecond_go_on_into_the_next() -> None:
    ids = salts()
    made = {ids.next(NOW_MS) for _ in range(70_000)}
    assert len(made) == 70_000


def test_a_client_without_an_ipv4_address_takes_chance_instead() -> None:
    ids = UniqueIds("::1", 7, lambda size: b"\xab" * size)
    assert ids.next(NOW_MS).startswith("ABABABAB0007ABABABAB")


def test_december_is_followed_by_january() -> None:
    ids = salts()
    december = local_ms(2026, 12, 31, 23, 59, 59)
    first, second = ids.next(december), ids.next(december + 2_000)
    assert first[:20] != second[:20], "a new month has a new salt"
    assert since_month_began_ms(second) == 1_000
