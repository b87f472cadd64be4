"""The numbers of requests, and those that were cut to 16 bits on their way."""

from __future__ import annotations

import pytest

from pyromq.wire.codes import RequestCode, code_name, whole_code


@pytest.mark.parametrize(("cut", "code"), [(3442, 200050), (3443, 200051), (3448, 200056), (3543, 200151)])
def test_a_cut_code_is_made_whole(cut: int, code: int) -> None:
    assert whole_code(cut) == code


@pytest.mark.parametrize("code", [-1, -0x8000, 0, 10, 0x7FFF])
def test_other_codes_stay_what_they_are(code: int) -> None:
    assert whole_code(code) == code


def test_every_known_code_is_made_whole_from_its_low_bits() -> None:
    for code in RequestCode:
        assert whole_code(code & 0xFFFF) == code


def test_a_code_has_a_name_for_people() -> None:
    assert code_name(310) == "SEND_MESSAGE_V2"
    assert code_name(-7) == "request code -7"
