"""What an acknowledgement of this broker means, as one mark of the log: everything below it may be acknowledged.

    async flush, async master   in the page cache here                  the mark is `appended`
    sync flush                  on the disk here                        it is `synced`
    sync master                 the same, and in the logs of slaves     it is the smaller of that and what they reported

Whoever acknowledges waits for this mark and for nothing else. A send that waited too long for slaves is stored here and
perhaps nowhere else: its answer says so.
"""

from __future__ import annotations

from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.errors import NotEnoughReplicas, PyroMQError
from pyromq.replication.followers import Followers, Promise, SyncRule
from pyromq.store.watermarks import Watermark, Watermarks
from pyromq.wire.codes import ResponseCode


class BrokerPromise:
    """Follows the store's marks and what slaves report."""

    def __init__(self, config: BrokerConfig, marks: Watermarks, clock: Clock) -> None:
        replication = config.replication
        self._own = marks.synced if config.store.flush.sync else marks.appended
        self._end = marks.appended
        self._clock = clock
        self._followers = Followers()
        self._rule = SyncRule(replication.max_gap_bytes, replication.silence_ms)
        self.timeout_s = replication.timeout_ms / 1000
        #: None: nobody is waited for.
        self.terms: Promise | None = None
        #: Everything below may be acknowledged.
        self.mark = self._own
        if config.copies > 1:
            self.terms = Promise(
                copies=config.copies,
                least_in_sync=replication.least_in_sync,
                all_in_sync=replication.all_in_sync,
                adapts=replication.adapts,
            )
            self.mark = Watermark("promised", self._own.value)
            if config.store.flush.sync:  # without it no slave has more than is promised here
                self._own.listen(lambda _: self._moved())

    @property
    def waits_for_slaves(self) -> bool:
        return self.terms is not None

    def fail(self, error: PyroMQError) -> None:
        """The log here no longer grows: whoever waits for copies of it is told."""
        if self.terms is not None:
            self.mark.fail(lambda: error)

    def slaves_changed(self, followers: Followers) -> None:
        """One came, went, or reported."""
        self._followers = followers
        if self.terms is not None:
            self._moved()

    def _moved(self) -> None:
        position = min(self._own.value, self.replicated())
        if position > self.mark.value:
            self.mark.advance(position)

    def in_sync(self) -> frozenset[str]:
        return self._followers.in_sync(self._rule, self._end.value, int(self._clock.monotonic() * 1000))

    def replicated(self) -> int:
        """Everything below has the copies that an acknowledged message needs."""
        if self.terms is None:
            return self._end.value
        in_sync = self.in_sync()
        needed = self.terms.needed(1 + len(in_sync))
        if needed is None:
            return self.mark.value
        among = in_sync if self.terms.all_in_sync else None
        return self._followers.replicated(needed, self._end.value, among)

    @property
    def is_open(self) -> bool:
        """Are there enough copies in sync for a message to be accepted?"""
        return self.terms is None or self.terms.needed(1 + len(self.in_sync())) is not None

    @property
    def is_within_reach(self) -> bool:
        """Are there as many slaves connected as a message needs? Else there is nobody to wait for."""
        return self.terms is None or 1 + len(self._followers) >= (self.terms.needed(1 + len(self.in_sync())) or 0)

    def check(self) -> None:
        """Raises NotEnoughReplicas when a message would not get its copies: it is refused before it is stored."""
        if not self.is_open and self.terms is not None:
            raise NotEnoughReplicas(
                f"only {1 + len(self.in_sync())} copies are in sync, this broker's own included, and "
                f"{self.terms.least_in_sync} must be: the message was not stored; bring slaves back, or lower "
                "replication.least_in_sync"
            )

    def late_code(self) -> ResponseCode:
        """What a send is told that waited too long: there is nobody to wait for, or somebody is slow."""
        return ResponseCode.FLUSH_SLAVE_TIMEOUT if self.is_within_reach else ResponseCode.SLAVE_NOT_AVAILABLE
