"""Settings name their faults; errors have advice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyromq import accelerated
from pyromq.config import DELAY_LEVELS, GIB, FlushConfig, RetentionConfig, StoreConfig, parse_delay_levels
from pyromq.errors import ConfigError, CorruptLog, StoreLocked

ROOT = Path("/store")


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        (FlushConfig, {"interval_ms": 0}, "flush.interval_ms = 0 cannot work: it must be above 0"),
        (FlushConfig, {"amount_bytes": -1}, "flush.amount_bytes = -1 cannot work"),
        (FlushConfig, {"recover_point_interval_ms": 0}, "flush.recover_point_interval_ms = 0 cannot work"),
        (FlushConfig, {"recover_point_bytes": 0}, "flush.recover_point_bytes = 0 cannot work"),
        (RetentionConfig, {"max_age_hours": 0}, "retention.max_age_hours = 0 cannot work"),
        (RetentionConfig, {"resume_below": 0.95}, r"retention.resume_below = 0.95 cannot work: .*refuse_at \(0.9\)"),
        (RetentionConfig, {"refuse_at": 1.5}, "retention.resume_below = 0.85 cannot work"),
        (RetentionConfig, {"resume_below": float("nan")}, "retention.resume_below = nan cannot work"),
        (RetentionConfig, {"interval_ms": 0}, "retention.interval_ms = 0 cannot work"),
        (StoreConfig, {"segment_bytes": 4095}, "store.segment_bytes = 4095 cannot work: .*multiple of 4096"),
        (StoreConfig, {"segment_bytes": 5000}, "store.segment_bytes = 5000 cannot work"),
        (StoreConfig, {"segment_bytes": 2 * GIB}, "just under 2 GiB"),
        (StoreConfig, {"queue_file_entries": 0}, "store.queue_file_entries = 0 cannot work"),
        (StoreConfig, {"index_slots": 0}, "store.index_slots = 0 cannot work"),
        (StoreConfig, {"index_entries": 1}, "store.index_entries = 1 cannot work: it must be above 1"),
        (StoreConfig, {"max_body_bytes": 0}, "store.max_body_bytes = 0 cannot work: 1 byte to 64 MiB"),
        (StoreConfig, {"max_body_bytes": 65 << 20}, "1 byte to 64 MiB"),
        (StoreConfig, {"recovery_threads": -1}, "store.recovery_threads = -1 cannot work"),
        (StoreConfig, {"prefault_bytes": -1}, "store.prefault_bytes = -1 cannot work"),
        (StoreConfig, {"transient_commit_ms": 0}, "store.transient_commit_ms = 0 cannot work"),
        (StoreConfig, {"delay_levels": "1s 5x"}, "'5x' is not a number followed by s, m, h or d"),
        (StoreConfig, {"delay_levels": "s"}, "'s' is not a number"),
        (StoreConfig, {"delay_levels": "-1s"}, "'-1s' is not a number"),
        (StoreConfig, {"delay_levels": " "}, "at least one level is needed"),
    ],
)
def test_a_setting_that_cannot_work_is_named(kind: Any, settings: dict[str, Any], sentence: str) -> None:
    if kind is StoreConfig:
        settings = {"root": ROOT, **settings}
    with pytest.raises(ConfigError, match=sentence):
        kind(**settings)


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        StoreConfig(root=ROOT).segment_bytes = 4096  # type: ignore[misc]


def test_the_delay_levels_are_rocketmqs() -> None:
    delays = parse_delay_levels(DELAY_LEVELS)
    assert len(delays) == 18
    assert (delays[0], delays[4], delays[17]) == (1000, 60_000, 7_200_000)
    assert parse_delay_levels("2d") == (172_800_000,)


@pytest.mark.parametrize(
    ("choice", "wanted", "required"), [(None, True, False), ("auto", True, False), ("python", False, False),
                                       ("compiled", True, True)],
)  # fmt: skip
def test_which_form_runs(monkeypatch: pytest.MonkeyPatch, choice: str | None, wanted: bool, required: bool) -> None:
    monkeypatch.delenv("PYROMQ_KERNEL", raising=False)
    if choice is not None:
        monkeypatch.setenv("PYROMQ_KERNEL", choice)
    assert (accelerated.wanted(), accelerated.required()) == (wanted, required)


def test_another_choice_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYROMQ_KERNEL", "fast")
    with pytest.raises(ConfigError, match="PYROMQ_KERNEL=fast is not one of auto, python, compiled"):
        accelerated.wanted()


def test_errors_are_for_people() -> None:
    assert "in use by process 7; stop it first" in str(StoreLocked(ROOT, 7))
    assert "in use by another process" in str(StoreLocked(ROOT, None))
    assert str(CorruptLog(ROOT, 5, "rot", "look")) == f"{ROOT}: rot at position 5; look"
