"""What an acknowledgement of this broker means, as one mark of the log: everything below it may be acknowledged.

    async flush, async master   in the page cache here                  the mark is `appended`
    sync flush                  on the disk here                        it is `synced`
    sync master                 the same, and in the logs of slaves     it is the smaller of that and what they reported

Whoever acknowledges waits for this mark and for nothing else. A send that waited too long for slaves is stored here and
perhaps nowhere else: its answer says so.

After a start nothing counts as acknowledged on a broker that waits for slaves, until slaves have confirmed it in this
life: a repeated send, or the repeated end of a transaction, waits like a first one.

Consumers see the log up to the visible mark. It moves with the acknowledged mark, except that after a start it begins
where readers were before. What no slave has is lost when one takes over, and its place in the queue is given to another
message: a consumer that had been there would never see that one. With `visibility = "replicated"` a master shows
everything after too few slaves have been in sync for `timeout_ms`, until enough are again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.errors import NotEnoughReplicas, NotNow, PyroMQError
from pyromq.replication.followers import Followers, Promise, SyncRule
from pyromq.store.watermarks import Watermark, Watermarks
from pyromq.wire.codes import ResponseCode

#: How often it is looked whether slaves are still in sync; and how long it is believed that all are, while they report:
#: the more of them are in sync, the more is asked for before anything is acknowledged.
LOOK_SECONDS = 0.5
BELIEVED_SECONDS = 0.05


class BrokerPromise:
    """Follows the store's marks and what slaves report."""

    def __init__(self, config: BrokerConfig, marks: Watermarks, clock: Clock) -> None:
        replication = config.replication
        self._own = marks.synced if config.store.flush.sync else marks.appended
        self._end = marks.appended
        self._clock = clock
        self._followers = Followers()
        #: Those that were in sync at the last look, and until when that is believed.
        self._in_sync: frozenset[str] = frozenset()
        self._believed_until = 0.0
        self._rule = SyncRule(replication.max_gap_bytes, replication.peer_timeout_ms)
        self.timeout_s = replication.timeout_ms / 1000
        #: Were there enough slaves at the last look, and since when there are not.
        self._had_slaves = False
        self._lacks_slaves_since = clock.monotonic()
        #: Since when too few of them are in sync and have caught up; None: there are enough.
        self._lacks_copies_since: float | None = self._lacks_slaves_since
        #: Readers see everything when that has been so for a while.
        self._shows_when_alone = replication.hides and not replication.hides_when_alone
        self._marks = marks
        #: Until then it is known well enough that nobody else leads; None: there is nobody to ask.
        self._look_by: float | None = None
        #: Why nothing is accepted at the moment, however many copies there are; None: it is.
        self._closed: str | None = None
        #: None: nobody is waited for.
        self.terms: Promise | None = None
        #: Everything below may be acknowledged.
        self.mark = self._own
        #: Everything below may be read by consumers, where they are held back until slaves confirm; else None.
        self._visible: Watermark | None = None
        if config.copies > 1:
            self.terms = Promise(
                copies=config.copies,
                min_in_sync=replication.min_in_sync,
                all_in_sync=replication.all_in_sync,
                adapts=replication.adapts,
            )
            self.mark = Watermark("acknowledged")
            if replication.hides:
                self._visible = Watermark("visible", min(self._own.value, marks.shown))
                marks.show_only(self._visible)
            else:
                marks.show_all()
            if config.store.flush.sync or replication.adapts:  # else no slave has more than is promised here
                self._own.listen(lambda _: self._move_to(self.replicated()))
                self._move_to(self.replicated())
        else:
            marks.show_all()

    @property
    def waits_for_slaves(self) -> bool:
        return self.terms is not None

    @property
    def has_slaves(self) -> bool:
        """Is there a slave, waited for or not?"""
        return len(self._followers) > 0

    def fail(self, error: PyroMQError) -> None:
        """The log here no longer grows: whoever waits for copies of it is told."""
        if self.terms is not None:
            self.mark.fail(lambda: error)

    def looked(self, good_for_s: float) -> None:
        """Nobody else leads, as far as could be found out just now. A process that was stopped for longer looks again
        before it takes anything: somebody may have been chosen meanwhile."""
        self._look_by = self._clock.monotonic() + good_for_s

    @property
    def is_stale(self) -> bool:
        """Is it too long ago that somebody looked?"""
        return self._look_by is not None and self._clock.monotonic() > self._look_by

    def close(self, why: str) -> None:
        """Nothing more is accepted: what is in the log now is all there is."""
        self._closed = why

    def open_again(self) -> None:
        self._closed = None

    @contextlib.asynccontextmanager
    async def nothing_hidden(self) -> AsyncIterator[None]:
        """Make every stored message visible, and refuse sends for the block.

        Raises NotNow if slaves do not confirm the log within the time that a send waits.
        """
        if self._visible is None:
            yield
            return
        await self._all_acknowledged()
        if self._closed is not None:
            raise NotNow(f"{self._closed}; try again in a moment")
        self.close("a topic is being removed: try again in a moment")
        try:
            await self._all_acknowledged()
            yield
        finally:
            self.open_again()

    async def _all_acknowledged(self) -> None:
        end = self._end.value
        try:
            async with asyncio.timeout(self.timeout_s):
                await self.mark.wait(end)
        except TimeoutError:
            raise NotNow(
                f"slaves have not confirmed the log up to {end} within {self.timeout_s} s: nothing is removed; bring "
                "them back and try again"
            ) from None

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    def slaves_changed(self, followers: Followers) -> None:
        """One came, went, or reported."""
        are_the_same = followers.by_name.keys() == self._followers.by_name.keys()
        self._followers = followers
        if self.terms is not None and are_the_same and self._clock.monotonic() < self._believed_until:
            self._move_to(self._replicated(self._in_sync, self.terms))
        else:
            self.look()

    def look(self) -> None:
        """To be called now and then as well: a slave that has been silent for a while is not in sync."""
        if self.terms is None:
            return
        in_sync = self._in_sync = self.in_sync()
        had_slaves, self._had_slaves = self._had_slaves, self._are_enough_with(in_sync, self.terms)
        if had_slaves and not self._had_slaves:
            self._lacks_slaves_since = self._clock.monotonic()
        if self._shows_when_alone:
            self._show(has_copies=1 + self._followers.caught_up(in_sync) >= self.terms.copies)
        have_all = not self._shows_when_alone or self._lacks_copies_since is None
        is_all_well = have_all and len(in_sync) == self._followers.copies
        self._believed_until = self._clock.monotonic() + BELIEVED_SECONDS if is_all_well else 0.0
        self._move_to(self._replicated(in_sync, self.terms))

    def _show(self, *, has_copies: bool) -> None:
        """One that has just come and has far to go, or goes again, holds nobody back."""
        now = self._clock.monotonic()
        if has_copies:
            if self._lacks_copies_since is not None:
                self._lacks_copies_since = None
                assert self._visible is not None
                self._marks.show_only(self._visible)
        elif self._lacks_copies_since is None:
            self._lacks_copies_since = now
        elif now >= self._lacks_copies_since + self.timeout_s:
            self._marks.show_all()

    async def watch(self) -> None:
        """For as long as the broker runs, where sends wait for slaves."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def _move_to(self, replicated: int) -> None:
        position = min(self._own.value, replicated)
        if self._visible is not None and position > self._visible.value:
            self._visible.advance(position)  # first: a client that was answered finds its message
        if position > self.mark.value:
            self.mark.advance(position)

    def in_sync(self) -> frozenset[str]:
        return self._followers.in_sync(self._rule, self._end.value, int(self._clock.monotonic() * 1000))

    def replicated(self) -> int:
        """Everything below has the copies that an acknowledged message needs."""
        return self._end.value if self.terms is None else self._replicated(self.in_sync(), self.terms)

    def _replicated(self, in_sync: frozenset[str], terms: Promise) -> int:
        needed = terms.needed(1 + len(in_sync))
        if needed is None:
            return self.mark.value
        among = in_sync if terms.all_in_sync else None
        return self._followers.replicated(needed, self._end.value, among)

    @property
    def is_open(self) -> bool:
        """Are there enough copies in sync for a message to be accepted?"""
        if self.is_closed or self.is_stale:
            return False
        return self.terms is None or self.terms.needed(1 + len(self.in_sync())) is not None

    @property
    def is_within_reach(self) -> bool:
        """Is there somebody to wait for? Slaves of a master that has just started are about to come, and one that has
        just gone may be restarting: both have as long as a send waits."""
        return self._are_enough or self._clock.monotonic() < self._lacks_slaves_since + self.timeout_s

    @property
    def _are_enough(self) -> bool:
        """Are there as many slaves connected as a message needs?"""
        return self.terms is None or self._are_enough_with(self.in_sync(), self.terms)

    def _are_enough_with(self, in_sync: frozenset[str], terms: Promise) -> bool:
        return 1 + self._followers.copies >= (terms.needed(1 + len(in_sync)) or terms.min_in_sync)

    def check(self) -> None:
        """Raises NotEnoughReplicas when a message would not get its copies: it is refused before it is stored.

        And NotNow while somebody else is about to lead.
        """
        if self._closed is not None:
            raise NotNow(f"{self._closed}; the message was not stored")
        if self.is_stale:
            raise NotNow(
                "this broker stood still, and looks first whether another one leads by now: the message was not "
                "stored; try again"
            )
        if not self.is_open and self.terms is not None:
            raise NotEnoughReplicas(
                f"the copies in sync are {1 + len(self.in_sync())}, this broker's own included, and "
                f"{self.terms.min_in_sync} must be: the message was not stored; bring slaves back, or lower "
                "replication.min_in_sync"
            )

    def late_code(self) -> ResponseCode:
        """What a send is told that waited too long: there is nobody to wait for, or somebody is slow."""
        return ResponseCode.FLUSH_SLAVE_TIMEOUT if self._are_enough else ResponseCode.SLAVE_NOT_AVAILABLE
