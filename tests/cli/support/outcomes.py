"""What a demo may have measured, for tests of what is made of it."""

from __future__ import annotations

from pyromq.demo.ledger import Account
from pyromq.demo.outcome import Backlog, Burst, Compared, LaneFigures, Messages, Outage, Outcome

IN_LINE = LaneFigures(160, 160, failed=0, gave_up=0, per_second=19.4, p50_ms=205.1, p99_ms=231.7, max_ms=240.0)
QUEUED = LaneFigures(640, 640, failed=0, gave_up=0, per_second=76.2, p50_ms=51.4, p99_ms=58.9, max_ms=61.0)
#: In line, when everybody comes at once.
CROWDED = LaneFigures(
    1_004, 467, failed=0, gave_up=537, per_second=26.3, p50_ms=1_046.2, p99_ms=1_996.4, max_ms=2_000.0
)


def outcome(*, lost: int = 0, twice: int = 0) -> Outcome:
    """With so many messages that the SMS service never saw, or saw again."""
    services = {name: Account(1_800, 0, 0) for name in ("push", "coupon", "gift")}
    return Outcome(
        seconds=43.0,
        sign_up=Compared(IN_LINE, QUEUED),
        burst=Burst(20.0, 200.0, 4.0, Compared(CROWDED, QUEUED), Backlog("SMS", 431, 7.9)),
        outage=Outage(5.0, Compared(IN_LINE, QUEUED), Backlog("coupon", 101, 1.3)),
        messages=Messages(1_800, 0.61, 2.4, {"SMS": Account(1_800 - lost, twice, lost), **services}),
    )
