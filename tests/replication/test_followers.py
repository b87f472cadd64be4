"""The primary's acknowledged mark, from the reports of its replicas and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import BadFrame, ConfigError
from pyromq.replication.followers import AckRule, Follower, Followers, SyncRule
from pyromq.replication.identity import Identity

RULE = SyncRule(max_gap=100, max_silence_ms=1000)


def of(name: str) -> Identity:
    return Identity(name, 1, f"{name}:10911")


def level(name: str, position: int, heard_ms: int = 0) -> Follower:
    return Follower(name, position, position, heard_ms, heard_ms, of(name))


def joined(*names: str) -> Followers:
    followers = Followers()
    for name in names:
        followers = followers.joined(name, 0, 0, identity=of(name))
    return followers


def test_a_copy_counts_from_its_report_not_from_what_was_sent() -> None:
    followers = joined("a").sent("a", 500)
    assert followers.replicated(2, 500) == 0
    assert followers.heard("a", 300, 1).replicated(2, 500) == 300


def test_a_stranger_who_claims_more_than_was_sent_is_not_believed() -> None:
    followers = joined("a").sent("a", 500)
    with pytest.raises(BadFrame, match="not believed"):
        followers.heard("a", 501, 1)


def test_a_log_that_became_shorter_must_connect_again() -> None:
    followers = Followers([level("a", 500)])
    with pytest.raises(BadFrame, match="shorter"):
        followers.heard("a", 499, 1)


def test_the_second_copy_is_the_best_replica_and_the_third_the_next() -> None:
    followers = Followers([level("a", 10), level("b", 30), level("c", 20)])
    assert [followers.replicated(copies, 100) for copies in (1, 2, 3, 4, 5)] == [100, 30, 20, 10, 0]


def test_one_who_is_not_in_sync_does_not_count_where_that_is_asked() -> None:
    followers = Followers([level("near", 450, heard_ms=900), level("far", 300), level("silent", 500, heard_ms=-2000)])
    in_sync = followers.in_sync(RULE, end=500, now_ms=900)
    assert in_sync == {"near"}
    assert followers.replicated(2, 500, in_sync) == 450
    assert followers.replicated(3, 500, in_sync) == 0


def test_one_that_speaks_and_takes_nothing_is_not_in_sync() -> None:
    stuck = Followers([level("a", 450)]).sent("a", 500)
    for now_ms in (500, 1000):
        stuck = stuck.heard("a", 450, now_ms)
        assert stuck.in_sync(RULE, 500, now_ms)
    stuck = stuck.heard("a", 450, 1001)
    assert not stuck.in_sync(RULE, 500, 1001)
    assert stuck.in_sync(RULE, 450, 1001), "where there is nothing to take, nothing is missing"
    assert stuck.heard("a", 480, 1002, level_ms=900).in_sync(RULE, 500, 1002)


def test_who_left_promises_nothing() -> None:
    followers = Followers([level("a", 500)]).left("a")
    assert followers.replicated(2, 500) == 0


@given(st.lists(st.integers(0, 100), max_size=6), st.integers(1, 8), st.integers(0, 100))
def test_replicated_is_exactly_what_so_many_logs_have(reported: list[int], copies: int, end: int) -> None:
    followers = Followers(level(str(number), position) for number, position in enumerate(reported))
    mark = followers.replicated(copies, end)

    def logs_with(position: int) -> int:
        return 1 + sum(other >= position for other in reported)

    assert mark <= end
    assert mark == 0 or logs_with(mark) >= copies
    assert mark == end or logs_with(mark + 1) < copies


@given(st.data())
def test_the_mark_never_goes_back_while_nobody_leaves(data: st.DataObject) -> None:
    followers, end, mark = joined("a", "b"), 0, 0
    for _ in range(data.draw(st.integers(0, 20))):
        name = data.draw(st.sampled_from(["a", "b"]))
        one = followers.by_name[name]
        end += data.draw(st.integers(0, 50))
        followers = followers.sent(name, data.draw(st.integers(one.sent, end)))
        followers = followers.heard(name, data.draw(st.integers(one.reported, followers.by_name[name].sent)), 0)
        assert followers.replicated(2, end) >= mark
        mark = followers.replicated(2, end)


def test_too_few_in_sync_accept_nothing() -> None:
    assert AckRule(copies=2, min_in_sync=2).needed(in_sync=1) is None
    assert AckRule(copies=2, min_in_sync=1).needed(in_sync=1) == 2
    assert AckRule(copies=3, min_in_sync=1, adapts=True).needed(in_sync=2) == 2
    assert AckRule(copies=2, all_in_sync=True).needed(in_sync=3) == 3
    assert AckRule(copies=2, all_in_sync=True, adapts=True).needed(in_sync=1) == 1


def test_a_promise_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be"):
        AckRule(copies=1, min_in_sync=2)


def test_who_has_no_log_yet_has_nothing_of_what_is_below_its_beginning() -> None:
    followers = Followers().joined("a", 4096, 0, reported=0, identity=of("a")).sent("a", 5000)
    assert followers.replicated(2, 5000) == 0
    assert followers.heard("a", 0, 1).replicated(2, 5000) == 0, "a sign of life is no log that became shorter"
    assert followers.heard("a", 4500, 1).replicated(2, 5000) == 4500


def test_two_connections_of_one_identity_are_one_copy() -> None:
    old = Follower("10.0.0.2:1", 500, 500, 0, 0, of("a"))
    new = Follower("10.0.0.2:2", 400, 400, 0, 0, of("a"))
    followers = Followers([old, new])
    assert followers.replicated(2, 500) == 500
    assert followers.replicated(3, 500) == 0
    assert len(followers.in_sync(RULE, 500, 0)) == 1


def test_a_follower_without_an_identity_counts_for_nothing() -> None:
    followers = Followers().joined("stranger", 0, 0).sent("stranger", 500).heard("stranger", 500, 1, level_ms=1)
    assert followers.replicated(2, 500) == 0
    assert followers.copies == 0
    assert followers.in_sync(RULE, 500, 1) == frozenset()
    assert len(followers) == 1, "it is shown"


def test_a_first_report_counts_only_if_it_was_proved() -> None:
    claimed = Followers().joined("a", 500, 0, identity=of("a"))
    claimed = claimed.heard("a", 500, 0, level_ms=0)
    assert claimed.replicated(2, 500) == 0, "nothing was sent on this connection"
    assert claimed.in_sync(RULE, 500, 0) == {"a"}, "else nothing would be accepted that could be sent to it"
    assert claimed.sent("a", 600).heard("a", 500, 1).replicated(2, 600) == 0
    assert claimed.sent("a", 600).heard("a", 600, 1).replicated(2, 600) == 600
    proved = Followers().joined("a", 500, 0, identity=of("a"), proved=True)
    assert proved.replicated(2, 600) == 500
