"""`pyromq broker promote`, `pyromq cluster`, `pyromq cluster roll`: told as an operator of a pair uses them."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from admin.members import member, slave
from cli.support.cluster_scene import Shell
from cli.support.pair_scene import Load, pair_in, until
from cli.support.programs import Program
from cli.support.terminals import Terminal
from pyromq.admin.leading import Leading
from pyromq.admin.promotion import Promotion
from pyromq.cli.admin import clusters

# --- looking ---------------------------------------------------------------------------------------------------------


def test_a_pair_shows_who_leads_who_is_in_sync_and_how_far(tmp_path: Path) -> None:
    with pair_in(tmp_path) as pair:
        pair.shell.ok("send", "orders", "one", "two", "three")
        until(lambda: all(one["disk_care"]["flush_max_ms"] for one in pair.shell.json("cluster")))
        listed = pair.shell.ok("cluster")
        assert re.search(r"pair +0 +sync master +1 +in sync: 1 +[\d.]+ [mµ]?s +[\d.]+ K?i?B", listed), listed
        assert re.search(r"pair +1 +slave +1 +level ", listed), listed
        status = pair.shell.ok("broker", "status", "pair")
        assert "role         sync master, epoch 1" in status
        assert f"in sync      slave 1 ({pair.address('b')})" in status
        assert re.search(r"flush +[\d.]+ [mµ]?s the last time, [\d.]+ [mµ]?s on average, p99 [\d.]+ [mµ]?s", status)
        assert re.search(r"to recover +[\d.]+ K?i?B of the log, after a crash", status)
        assert "copy         level" in pair.shell.ok("broker", "status", pair.address("b"))
        master, copy = pair.shell.json("cluster")
        assert (master["copies"]["role"], master["copies"]["epoch"]) == ("SYNC_MASTER", 1)
        (in_sync,) = master["copies"]["slaves"]
        assert (in_sync["broker_id"], in_sync["is_in_sync"], in_sync["lag_bytes"], in_sync["lag_ms"]) == (1, True, 0, 0)
        assert in_sync["has"] == master["copies"]["end"] == copy["copies"]["end"] > 0
        assert master["disk_care"]["flush_p99_ms"] >= 0

        pair.stop("a")
        until(lambda: "copies nobody" in pair.shell("cluster").stdout)
        alone = pair.shell.json("broker", "status", pair.address("b"))["copies"]
        assert (alone["is_connected"], bool(alone["problem"]), alone["lag_ms"] > 0) == (False, True, True)
        assert alone["master_end"] == alone["end"]


def test_while_there_is_no_master_a_slave_tells_what_there_is_and_changes_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pair_in(tmp_path) as pair:
        pair.shell.ok("send", "orders", "one", "two", "three")
        pair.shell.ok("group", "create", "billing")
        pair.shell.ok("consume", "orders", "--group", "billing", "--count", "3")
        progress = tmp_path / "b" / "config" / "consumerOffset.json"
        until(lambda: progress.exists() and "orders@billing" in progress.read_text(encoding="utf-8"))
        pair.stop("a")
        until(lambda: pair.shell("cluster").exit_code == 1)
        for command in ("cluster", "broker status pair"):
            looked = pair.shell(*command.split())
            assert looked.exit_code == 1, command
            assert "! pair has no master now (`pyromq broker promote pair` lets a slave lead)" in looked.stderr
        assert "billing" in pair.shell.ok("group", "list")
        assert "shown is what its slave 1 knows" in caplog.text
        assert "billing" in pair.shell.ok("consumer", "list")
        assert "of 3 messages" in pair.shell.ok("consumer", "lag", "billing")
        assert "orders" in pair.shell.ok("topic", "list")
        assert re.search(r"messages +3", pair.shell.ok("topic", "describe", "orders"))
        for command in (
            "topic create new --broker pair", "topic create new", "topic update orders --write-queues 2",
            "topic delete orders --yes", "group create new", "group update billing --max-retries 3",
            "group delete billing --yes", "consumer reset billing orders --to earliest --yes",
        ):  # fmt: skip
            refused = pair.shell(*command.split())
            assert (refused.exit_code, "pair has no master now" in refused.stderr) == (1, True), (
                command,
                refused.output,
            )


def test_who_looks_at_a_topic_goes_on_when_its_master_is_gone(tmp_path: Path) -> None:
    with pair_in(tmp_path, "ASYNC_MASTER") as pair:
        pair.shell.ok("send", "orders", "one")
        with Program("consume", "orders", cwd=tmp_path, NAMESRV_ADDR=pair.name_servers) as looking:
            looking.until("one")
            pair.stop("a")
            looking.until("trying again")
            pair.shell.ok("broker", "promote", "pair", "--yes", "--force")
            pair.shell.ok("send", "orders", "two")
            looking.until("two")
            assert looking.stop(signal.SIGINT) == 0
        assert (looking.out.count("one"), looking.out.count("two")) == (1, 1)


def test_a_slave_of_an_async_master_that_is_gone_is_promoted_by_force_only(tmp_path: Path) -> None:
    with pair_in(tmp_path, "ASYNC_MASTER") as pair:
        pair.shell.ok("send", "orders", "one")
        pair.stop("a")
        refused = pair.shell("broker", "promote", "pair", "--yes")
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "acknowledged messages may be lost" in refused.stderr
        assert "pyromq broker promote --force" in refused.stderr
        assert f"✓ {pair.address('b')} leads pair" in pair.shell.ok("broker", "promote", "pair", "--yes", "--force")


def test_a_member_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    with pair_in(tmp_path) as pair:
        pair.shell.ok("send", "orders", "one")
        gone = pair.address("b")
        pair.stop("b")
        nobody = pair.shell("broker", "forget-member", "pair", "127.0.0.1:1", "--yes")
        assert (nobody.exit_code, nobody.stdout) == (1, "")
        assert "is no known member" in nobody.stderr
        done = pair.shell.ok("broker", "forget-member", "pair", gone, "--yes")
        assert f"{pair.address('a')} knows these members now: none" in done


def test_a_roll_says_what_it_waits_for_before_it_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "WELL_SECONDS", 0.6)
    with pair_in(tmp_path) as pair:
        pair.stop("a")
        until(lambda: "has no master now" in pair.shell("cluster").stderr)
        refused = pair.shell("cluster", "roll", "--yes")
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr.startswith("waiting, 0.6 s at most: ")


def test_without_a_name_server_a_broker_is_asked_and_promoted_by_its_address(tmp_path: Path) -> None:
    with pair_in(tmp_path) as pair:
        pair.shell.ok("send", "orders", "one")
        pair.stop("a")
        nobody = Shell("127.0.0.1:1")
        assert "slave 1" in nobody.ok("broker", "status", pair.address("b"))
        by_name = nobody("broker", "status", "pair")
        assert "start one with `pyromq nameserver`" in by_name.stderr
        done = nobody("broker", "promote", pair.address("b"), "--yes")
        assert done.exit_code == 0, done.output
        assert "No name server that answers knows a master" in done.stderr
        assert f"✓ {pair.address('b')} leads pair" in done.stdout
        until(lambda: pair.roles() == {"b": "master"})


def test_options_of_the_list_are_not_taken_for_those_of_a_command() -> None:
    refused = Shell("127.0.0.1:1")("cluster", "--json", "roll")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--json is for looking at the cluster: put it behind 'roll'" in refused.stderr


# --- promote ---------------------------------------------------------------------------------------------------------


def test_a_master_that_lives_hands_over_and_becomes_a_slave(tmp_path: Path) -> None:
    with pair_in(tmp_path) as pair:
        pair.shell.ok("send", "orders", "one", "two", "three")
        asked = pair.shell("broker", "promote", "pair")
        assert (asked.exit_code, asked.stdout) == (1, "")
        assert f"The master at {pair.address('a')} lives and hands over: nothing will be missing." in asked.stderr
        assert f"This will let slave 1 at {pair.address('b')} lead pair, in epoch 2." in asked.stderr
        assert "nothing was done: there is no terminal to ask on" in asked.stderr

        done = pair.shell.ok("broker", "promote", "pair", "--yes")
        assert f"✓ {pair.address('b')} leads pair" in done
        assert "role         sync master, epoch 2" in done
        until(lambda: pair.roles() == {"a": "slave", "b": "master"})
        pair.until_in_sync(1)
        pair.shell.ok("send", "orders", "four")
        assert set(pair.stored(4)) == {"one", "two", "three", "four"}

        pair.shell.ok("broker", "promote", pair.address("a"), "--role", "async-master", "--yes")
        until(lambda: pair.roles() == {"a": "master", "b": "slave"})
        assert "role         async master, epoch 3" in pair.shell.ok("broker", "status", "pair")


def test_a_slave_leads_when_its_master_is_gone_and_the_master_comes_back_as_its_slave(tmp_path: Path) -> None:
    with pair_in(tmp_path, "ASYNC_MASTER") as pair:
        pair.shell.ok("send", "orders", "one", "two", "three")
        pair.until_in_sync(1)
        pair.stop("a")
        until(lambda: "copies nobody" in pair.shell("cluster").stdout)
        done = pair.shell("broker", "promote", "pair", "--id", "1", "--yes", "--force")
        assert done.exit_code == 0, done.output
        assert "No name server that answers knows a master: it is taken for gone." in done.stderr
        assert re.search(r"Slave 1 at [\d.:]+ has the log up to byte [\d,]+ in epoch 1; it had all that", done.stderr)
        assert "role         async master, epoch 2" in done.stdout
        pair.shell.ok("send", "orders", "four")
        pair.start("a", 0)
        until(lambda: pair.roles() == {"a": "slave", "b": "master"})
        pair.until_in_sync(1)
        assert set(pair.stored(4)) == {"one", "two", "three", "four"}


def test_what_cannot_be_promoted_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pair_in(tmp_path) as pair:
        for arguments, words in (
            (["pear"], "no broker is called 'pear': there are pair"),
            ([pair.address("a")], f"the master at {pair.address('a')} is the master already: nothing was done"),
            (["pair", "--id", "0"], "is the master already: nothing was done"),
            (["pair", "--id", "7"], f"has no slave 7: there is slave 1 at {pair.address('b')}"),
        ):
            refused = pair.shell("broker", "promote", *arguments, "--yes")
            assert (refused.exit_code, refused.stdout) == (1, ""), arguments
            assert words in refused.stderr, refused.stderr
        wrong = pair.shell("broker", "promote", "pair", "--role", "slave", "--yes")
        assert wrong.exit_code == 2
        pair.stop("b")
        lonely = pair.shell("broker", "promote", "pair", "--yes")
        assert "'pair' has no slave that a name server knows: there is nobody to promote" in lonely.stderr
    nobody = pair.shell("broker", "promote", "pair", "--yes")
    assert f"error: no name server answers at {pair.name_servers}" in nobody.stderr


def test_a_worse_slave_leads_only_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    worse, better = member(slave(1, 1000)), member(slave(2, 1200))
    promoted: list[Promotion] = []

    async def plan(self: Leading, broker: str, **_: object) -> Promotion:
        return Promotion("pair", worse, None, (better,))

    async def promote(self: Leading, promotion: Promotion, **_: object) -> None:
        promoted.append(promotion)

    async def leads(*_: object) -> object:
        return worse.status

    for name, instead in (
        ("plan", plan),
        ("promote", promote),
        ("until_leads", leads),
        ("until_followed", leads),
    ):
        monkeypatch.setattr(Leading, name, instead)
    shell = Shell("127.0.0.1:1")
    refused = shell("broker", "promote", "pair", "--id", "1", "--yes")
    assert (refused.exit_code, promoted) == (1, [])
    assert "slave 2 at 10.0.0.3:10911 has a better log" in refused.stderr
    assert "error: nothing was done: choose the better slave with --id 2, or say --force" in refused.stderr
    assert "✓ 10.0.0.2:10911 leads pair" in shell.ok("broker", "promote", "pair", "--id", "1", "--yes", "--force")


def test_on_a_terminal_of_80_columns_it_asks_and_shows_whole_rows(tmp_path: Path) -> None:
    with pair_in(tmp_path) as pair:
        where = ("-n", pair.name_servers)
        with Terminal("cluster", *where, cwd=tmp_path) as seen:
            assert seen.wait() == 0
        rows = [line.rstrip() for line in seen.said.splitlines() if line.lstrip().startswith("pair")]
        assert [len(row) <= 80 and row.split()[1] for row in rows] == ["0", "1", "0", "1"], seen.said
        assert "in sync: 1 " in rows[2]
        with Terminal("broker", "promote", "pair", *where, cwd=tmp_path) as asked:
            asked.until("Go on")
            asked.type(b"n\n")
            assert asked.wait() == 1
        assert "nothing was done" in asked.said
        with Terminal("broker", "promote", "pair", *where, cwd=tmp_path) as asked:
            asked.until("Go on")
            assert asked.interrupt_question() == 130
        assert "nothing was done" in asked.said
        with Terminal("cluster", "roll", *where, cwd=tmp_path) as asked:
            asked.until("Go on")
            asked.type(b"y\n")
            assert asked.wait() == 0, asked.said
        assert "restarted 2 brokers" in asked.said
        assert pair.roles() == {"a": "slave", "b": "master"}


# --- roll ------------------------------------------------------------------------------------------------------------


def test_a_roll_restarts_all_and_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with pair_in(tmp_path) as pair:
        before = {address["address"]: address["started_ms"] for address in pair.shell.json("cluster")}
        with Load(pair.name_servers) as load:
            done = pair.shell("cluster", "roll", "--yes", "--timeout", "30")
            assert done.exit_code == 0, done.output
            sent = len(load.acknowledged)
            until(lambda: len(load.acknowledged) > sent)
        assert "This will restart 2 brokers, one after the other." in done.stderr
        assert [re.sub(r", [\d.]+ m?s$", "", line) for line in done.stdout.splitlines()] == [
            f"✓ pair: restart slave 1 at {pair.address('b')}",
            f"✓ pair: hand over from {pair.address('a')} to {pair.address('b')}",
            "✓ restarted 2 brokers",
        ]
        assert load.failed == []
        assert pair.roles() == {"a": "slave", "b": "master"}
        after = {address["address"]: address["started_ms"] for address in pair.shell.json("cluster")}
        assert all(after[address] > started for address, started in before.items())
        assert set(load.acknowledged) <= set(pair.stored(len(load.acknowledged)))
        assert pair.shell("cluster", "roll", "--yes").exit_code == 0, "and again, the other way round"
        assert pair.roles() == {"a": "master", "b": "slave"}


def test_of_two_slaves_the_first_leads_and_the_other_follows_it(tmp_path: Path) -> None:
    with pair_in(tmp_path, slaves=2) as pair:
        with Load(pair.name_servers) as load:
            done = pair.shell("cluster", "roll", "--yes", "--timeout", "30")
            assert done.exit_code == 0, done.output
        assert load.failed == []
        pair.until_in_sync(2)
        assert pair.roles() == {"a": "slave", "b": "master", "c": "slave"}
        assert set(load.acknowledged) <= set(pair.stored(len(load.acknowledged)))


def test_a_master_alone_is_restarted_if_somebody_wants_that(tmp_path: Path) -> None:
    with pair_in(tmp_path, "ASYNC_MASTER", slaves=0) as pair:
        asked = pair.shell("cluster", "roll")
        assert asked.exit_code == 1
        assert "pair has no slave: until it is back, sends to it fail and nobody reads from it." in asked.stderr
        (before,) = pair.shell.json("cluster")
        assert f"✓ pair: restart the master at {pair.address('a')}" in pair.shell.ok("cluster", "roll", "--yes")
        (after,) = pair.shell.json("cluster")
        assert after["started_ms"] > before["started_ms"]


def test_a_roll_stops_at_a_command_that_fails_and_says_where(tmp_path: Path) -> None:
    with pair_in(tmp_path) as pair:
        failed = pair.shell("cluster", "roll", "--yes", "--command", "sh -c 'echo no unit for {id}; exit 4'")
        assert (failed.exit_code, failed.stdout) == (1, "")
        assert (
            f"error: stopped at 1 of 2 (pair: restart slave 1 at {pair.address('b')}): `sh -c 'echo no unit for 1; "
            "exit 4'` failed with exit code 4: no unit for 1; when that is well, run the same again"
        ) in failed.stderr
        unknown = pair.shell("cluster", "roll", "--yes", "--command", "restart {hots}")
        assert "{hots} is not known" in unknown.stderr
        idle = pair.shell("cluster", "roll", "--yes", "--timeout", "1", "--command", "true")
        assert f"{pair.address('b')} was told to restart, and is not back after 1 s" in idle.stderr
        assert pair.roles() == {"a": "master", "b": "slave"}
        assert "there is no such broker: a name server knows DefaultCluster/pair" in (
            pair.shell("cluster", "roll", "--broker", "pear").stderr
        )


# --- two logs that were led separately -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kept", "stored"), [("b", {"both", "of b"}), ("a", {"both", "of a"})])
def test_an_operator_sees_two_logs_and_keeps_one(tmp_path: Path, kept: str, stored: set[str]) -> None:
    with pair_in(tmp_path, "ASYNC_MASTER") as pair:
        pair.shell.ok("send", "orders", "both")
        until(lambda: "level" in pair.shell.ok("cluster"))
        pair.stop("a")
        pair.shell.ok("broker", "promote", "pair", "--force", "--yes")
        pair.shell.ok("send", "orders", "of b")
        pair.stop("b")
        pair.start("a", 0)
        until(lambda: pair.roles() == {"a": "master"})
        pair.shell.ok("send", "orders", "of a")
        pair.start("b", 1)
        until(lambda: "waits for a decision between two logs" in pair.shell("cluster").stdout)
        listed = pair.shell("cluster")
        assert re.search(r"the same up to position \d+", " ".join(listed.stderr.split()))
        assert f"that of {pair.address('a')}" in " ".join(listed.stderr.split())
        refused = pair.shell("broker", "promote", pair.address(kept), "--yes")
        assert (refused.exit_code, "say --force" in refused.stderr) == (1, True)
        assert "name the broker whose log is kept" in pair.shell("broker", "promote", "pair", "--yes", "--force").stderr
        pair.shell.ok("broker", "promote", pair.address(kept), "--yes", "--force")
        pair.until_in_sync(1)
        assert pair.roles() == {kept: "master", "ab".replace(kept, ""): "slave"}
        assert set(pair.stored(2)) == stored
