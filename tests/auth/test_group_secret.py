"""Proofs of the group secret: of one purpose, of exact parts, and with a nonce that works once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pyromq.auth.group_secret import NONCE_SECONDS, GroupSecret, Nonces, load_group_secret

SECRET = GroupSecret(b"s" * 32)


def test_a_proof_is_of_its_purpose_its_parts_and_its_secret() -> None:
    proof = SECRET.proof("lead", "nonce", "broker-a")
    assert SECRET.verify(proof, "lead", "nonce", "broker-a")
    assert not SECRET.verify(proof, "follow", "nonce", "broker-a")
    assert not SECRET.verify(proof, "lead", "nonce", "broker-b")
    assert not SECRET.verify(proof, "lead", "noncebroker-a")
    assert not SECRET.verify(proof, "lead", "nonceb", "roker-a")
    assert not GroupSecret(b"t" * 32).verify(proof, "lead", "nonce", "broker-a")
    assert not SECRET.verify("", "lead")
    assert not SECRET.verify("ü\udcff", "lead")


def test_the_secret_is_not_shown() -> None:
    assert "ssss" not in repr(SECRET)


def test_programs_with_the_same_file_believe_each_other(tmp_path: Path) -> None:
    one, other = load_group_secret(tmp_path / "secret"), load_group_secret(tmp_path / "secret")
    assert one is not None
    assert other is not None
    assert other.verify(one.proof("lead", "x"), "lead", "x")


def test_without_a_usable_file_there_is_none_and_the_log_says_which_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "secret").touch(0o644)
    with caplog.at_level(logging.WARNING):
        assert load_group_secret(tmp_path / "secret") is None
    assert "replication.secret_file" in caplog.text


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_nonce_works_once() -> None:
    nonces = Nonces(Time())
    nonce = nonces.issue()
    assert nonces.is_good(nonce)
    assert nonces.redeem(nonce)
    assert not nonces.is_good(nonce)
    assert not nonces.redeem(nonce)


def test_a_nonce_expires_and_used_ones_are_forgotten_then() -> None:
    time = Time()
    nonces = Nonces(time)
    used, late = nonces.issue(), nonces.issue()
    assert nonces.redeem(used)
    time.now += NONCE_SECONDS + 1
    assert not nonces.is_good(used)
    assert not nonces.redeem(late)
    assert nonces.redeem(nonces.issue())
    assert len(nonces._used) == 1


def test_a_nonce_of_another_process_or_a_made_up_one_does_not_work() -> None:
    nonces = Nonces(Time())
    other = Nonces(Time()).issue()
    deadline, unique, signature = nonces.issue().split(".")
    for wrong in (other, "", "..", "zz.y.x", f"f{deadline}.{unique}.{signature}", f"{deadline}.0{unique}.{signature}"):
        assert not nonces.redeem(wrong)
