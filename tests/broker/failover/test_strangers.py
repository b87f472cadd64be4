"""A stranger decides nothing: every door by which a broker without the group secret could change another one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.support.fakes import FakePeer
from broker.support.leading_scene import TOPIC, Scene, copy_with, told, until
from broker.support.stranger import Stranger, surveyed
from proving import epochs_of, proved
from pyromq.auth.group_secret import GroupSecret, read_group_secret
from pyromq.auth.proofs import prove_question, prove_role_request
from pyromq.broker.failover import fencing, master_search
from pyromq.broker.failover.admission import Admission, is_this_machine
from pyromq.broker.failover.members import MAX_REGISTERED
from pyromq.broker.failover.replication import Replicating
from pyromq.broker.failover.trust import host_of
from pyromq.config import BrokerConfig
from pyromq.errors import CallFailed, NoPermission
from pyromq.net.service import Handler
from pyromq.replication.frames import PUSH
from pyromq.store.paths import StorePaths
from pyromq.wire.bodies.epochs import BrokerEpochs
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.client import GetMaxOffset
from pyromq.wire.requests.roles import GetBrokerEpochs, PromoteBroker, RestartBroker, RoleRequest, StepDown
from pyromq.wire.responses import Response


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(master_search, "AGAIN_SECONDS", 0.02)


def copies_of(scene: Scene, name: str) -> Replicating:
    copies = scene.of(name).copies
    assert copies is not None
    return copies


class Untouched:
    """The state that an attack must not change: the process, the role, the epochs, the members, the log."""

    def __init__(self, scene: Scene, name: str) -> None:
        self._scene, self._name = scene, name
        self._before = self._state()

    def _state(self) -> object:
        broker = self._scene.of(self._name)
        known = copies_of(self._scene, self._name)._leading.known
        quarantined = [*StorePaths.of(broker.config.store).root.glob("*aside*/*")]
        cut = [*StorePaths.of(broker.config.store).cut_off.glob("*")]
        return (
            self._scene.lives[self._name].changes, broker.config.role, broker.config.broker_id, known.epochs,
            known.number, {one.address for one in known.members}, quarantined, cut,
        )  # fmt: skip

    def check(self) -> None:
        broker = self._scene.of(self._name)
        assert broker.changed is not None
        assert not broker.changed.done()
        assert self._state() == self._before


async def settle(scene: Scene) -> None:
    await scene.send("first")
    await scene.follows("b", "a")
    leading = copies_of(scene, "a")._leading
    await until(lambda: [one.address for one in leading.known.members] == [scene.of("b").address])


# --- 1007: who led ----------------------------------------------------------------------------------------------------


def test_an_address_that_a_stranger_names_is_never_dialled(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await settle(scene)
        async with Stranger(scene).running() as stranger:
            stranger.claims_to_lead(await scene.epochs("a"))
            master = Untouched(scene, "a")
            for secret in (None, GroupSecret(b"another secret, made up by them!")):
                question = GetBrokerEpochs(name="pair", broker_id=7, address=stranger.address)
                prove_question(secret, question, "DefaultCluster")
                assert (await scene.ask("a", question)).code == ResponseCode.SUCCESS
            await surveyed(copies_of(scene, "a")._others)
            assert stranger.questions == []
            master.check()

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_broker_whose_name_was_taken_while_it_was_down_serves_what_it_has(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await settle(scene)
        await scene.stop("b")
        await scene.stop("a")
        async with Stranger(scene).running() as stranger:
            await stranger.register(0)
            await scene.start("a")
            broker = scene.of("a")
            assert broker.parts is not None
            registrar = broker.parts.registrar
            await until(lambda: registrar.conflict)
            assert stranger.address in registrar.conflict
            for destructive in ("empty", "remove", "delete", "clear"):
                assert destructive not in registrar.conflict
            assert not broker.config.is_slave
            assert scene.bodies("a") == ["first"]
            assert (await scene.ask("a", GetMaxOffset(topic=TOPIC, queue_id=0))).fields["offset"] == "1"

    told(tmp_path, story, "ASYNC_MASTER")


@pytest.mark.parametrize("broker_id", [0, 1, 7])
def test_a_stranger_that_registers_under_our_name_with_a_later_epoch_is_warned_of_and_ignored(
    tmp_path: Path, broker_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        await settle(scene)
        async with Stranger(scene).running() as stranger:
            stranger.claims_to_lead(await scene.epochs("a"), broker_id=broker_id)
            master, slave = Untouched(scene, "a"), Untouched(scene, "b")
            await stranger.register(broker_id)
            await until(lambda: stranger.questions)
            await surveyed(copies_of(scene, "a")._others)
            master.check()
            slave.check()
            assert not scene.seeks("b")

    with caplog.at_level(logging.WARNING):
        told(tmp_path, story, "ASYNC_MASTER")
    warnings = [one.getMessage() for one in caplog.records if "has not proved the group secret" in one.getMessage()]
    assert warnings
    assert len(warnings) <= 2  # of the master, and of the slave if it heard of it
    assert "replication.members" in warnings[0]


def test_a_lone_master_is_not_deposed_by_a_stranger_at_the_name_server(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("b")
        async with Stranger(scene).running() as stranger:
            stranger.claims_to_lead(await scene.epochs("a"))
            await stranger.register(5)
            await until(lambda: stranger.questions)
            await surveyed(copies_of(scene, "a")._others)
            Untouched(scene, "a").check()
            assert scene.lives["a"].changes == 0
            await scene.stop("a")
            await scene.start("a")  # a start asks as well
            assert not scene.of("a").config.is_slave
            assert copies_of(scene, "a").number == 1

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_proof_that_is_passed_on_from_another_address_is_not_believed(tmp_path: Path) -> None:
    """The stranger asks a real slave what it is asked, and says the same."""

    async def story(scene: Scene) -> None:
        await settle(scene)
        async with Stranger(scene).running() as stranger:
            real = await epochs_of(scene.line_to("b"))
            relayed: list[Command] = []

            def answer(command: Command) -> Response:
                task = asyncio.get_running_loop().create_task(
                    scene.client.call(scene.of("b").address, GetBrokerEpochs(**asked(command)), 5.0)
                )
                task.add_done_callback(lambda done: relayed.append(done.result()))
                proof = relayed[-1].fields["proof"] if relayed else ""
                return Response(body=bytes(relayed[-1].body) if relayed else real.encode(), more={"proof": proof})

            stranger.answer = answer
            await stranger.register(7)
            await until(lambda: len(relayed) > 1)
            assert all(one.fields.get("proof") for one in relayed)
            assert stranger.address not in {one.address for one in copies_of(scene, "a")._leading.known.members}

    def asked(command: Command) -> dict[str, object]:
        names = {"brokerName": "name", "brokerAddr": "address", "clusterName": "cluster"}
        given = {names.get(name, name): value for name, value in command.fields.items()}
        given.pop("brokerId", None)
        return dict(given)

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_stranger_is_told_nothing_by_which_it_could_pass_for_one_of_us(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await settle(scene)
        question = GetBrokerEpochs(name="pair", nonce="mine", proof="0" * 64)
        answer = await scene.ask("a", question)
        said = BrokerEpochs.decode(bytes(answer.body))
        assert (said.name, said.broker_id, said.newest) == ("pair", 0, 1)  # as RocketMQ's tell
        assert (said.member, said.nonce, said.ha_address, said.role, said.clock_ms) == ("", "", "", "", 0)
        assert not said.members
        assert "proof" not in answer.fields

    told(tmp_path, story, "ASYNC_MASTER")


# --- 17001 and following: role requests -------------------------------------------------------------------------------


def role_requests(scene: Scene) -> list[RoleRequest]:
    return [
        StepDown(to=scene.of("b").address), PromoteBroker(epoch=2), RestartBroker(reason="an attack"),
        StepDown(to="127.0.0.1:1"),
    ]  # fmt: skip


def test_role_requests_without_a_good_proof_change_nothing(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await settle(scene)
        master, slave = Untouched(scene, "a"), Untouched(scene, "b")
        secret, wrong = read_group_secret(), GroupSecret(b"another secret, made up by them!")
        for name, other in (("a", "b"), ("b", "a")):
            address = scene.of(name).address
            for request in role_requests(scene):
                refused = [await scene.client.call(address, request)]
                prove_role_request(wrong, request, (await scene.epochs(name)).nonce)
                refused.append(await scene.client.call(address, request))
                prove_role_request(secret, request, (await scene.epochs(other)).nonce)  # issued by another broker
                refused.append(await scene.client.call(address, request))
                prove_role_request(secret, request, "made up")
                refused.append(await scene.client.call(address, request))
                assert {one.code for one in refused} == {ResponseCode.NO_PERMISSION}
                assert all("secret" in str(one.reason) for one in refused[:2])
                assert "replication.secret_file" in str(refused[0].reason)
        master.check()
        slave.check()

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_captured_role_request_works_neither_again_nor_changed(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await settle(scene)
        line = scene.line_to("b")
        changed = await proved(line, RestartBroker(reason="of an operator"))
        changed.reason = "of a stranger"
        other = StepDown(to=scene.of("a").address, nonce=changed.nonce, proof=changed.proof)
        for request in (changed, other):
            assert (await line(request, 20.0)).code == ResponseCode.NO_PERMISSION
        captured = await proved(scene.line_to("a"), StepDown(to="127.0.0.1:1", timeout_ms=1))
        first = await scene.line_to("a")(captured, 20.0)
        assert first.code == ResponseCode.SERVICE_NOT_AVAILABLE, first.reason  # admitted; no broker is there
        again = await scene.line_to("a")(captured, 20.0)
        assert (again.code, "used before" in str(again.reason)) == (ResponseCode.NO_PERMISSION, True)

    told(tmp_path, story, "ASYNC_MASTER")


@contextlib.contextmanager
def admission_of(scene: Scene, name: str) -> Iterator[Admission]:
    copies = copies_of(scene, name)
    yield Admission(copies._others.trust, copies._leading)


def test_a_proof_from_another_machine_counts_only_from_one_of_a_known_broker(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await settle(scene)
        with admission_of(scene, "a") as admission:
            request = await proved(scene.line_to("a"), RestartBroker())
            with pytest.raises(NoPermission, match=r"203\.0\.113\.9 .*run the command on.*replication\.members"):
                await admission.check(request, FakePeer("203.0.113.9:4711"))
            known = copies_of(scene, "a")._leading
            members = tuple(replace(one, address="203.0.113.9:10911") for one in known.known.members)
            known.known = replace(known.known, members=members)
            await admission.check(request, FakePeer("203.0.113.9:4712"))  # its nonce is still good
            with pytest.raises(NoPermission, match="used before"):
                await admission.check(request, FakePeer("203.0.113.9:4712"))

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_machine_in_the_settings_may_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_with(monkeypatch, members=("5@203.0.113.9:10911",))

    async def story(scene: Scene) -> None:
        with admission_of(scene, "a") as admission:
            request = await proved(scene.line_to("a"), RestartBroker())
            await admission.check(request, FakePeer("203.0.113.9:4711"))

    told(tmp_path, story, "ASYNC_MASTER")


def test_without_a_secret_role_requests_are_refused_and_the_setting_is_named(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        with admission_of(scene, "a") as admission:
            copies_of(scene, "a")._others.trust.secret = None
            with pytest.raises(NoPermission, match=r"no group secret.*replication\.secret_file"):
                await admission.check(RestartBroker(proof="0" * 64), FakePeer("127.0.0.1:4711"))

    told(tmp_path, story, "ASYNC_MASTER")


def test_every_role_request_is_guarded(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        for name in ("a", "b"):
            parts = scene.of(name).parts
            assert parts is not None
            guarded: dict[type[RoleRequest], Handler] = {
                kind: handler for kind, handler in parts.handlers().items() if issubclass(kind, RoleRequest)
            }
            assert {PromoteBroker, StepDown, RestartBroker} <= guarded.keys()
            for kind, handler in guarded.items():
                with pytest.raises(NoPermission):
                    await handler(kind.__new__(kind), FakePeer("203.0.113.9:4711"))  # type: ignore[misc]

    told(tmp_path, story, "ASYNC_MASTER")


# --- slaves -----------------------------------------------------------------------------------------------------------


def test_a_slave_stays_with_its_master_when_a_name_server_names_a_stranger(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await settle(scene)
        async with Stranger(scene).running() as stranger:
            stranger.claims_to_lead(await scene.epochs("a"))
            slave = Untouched(scene, "b")
            parts = scene.of("b").parts
            assert parts is not None
            parts._master_is_at(stranger.address, stranger.ha_address)
            await until(lambda: stranger.questions)
            parts._master_is_at(scene.of("a").address, stranger.ha_address)  # the master's log, at another's port
            await scene.send("second")
            await scene.follows("b", "a")
            assert stranger.copies == 0
            assert copies_of(scene, "b").follows == (copies_of(scene, "a").address, scene.of("a").address)
            slave.check()

    told(tmp_path, story, "SYNC_MASTER")


def test_the_log_is_copied_where_the_master_says_not_where_a_name_server_does(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await settle(scene)
        master, copies = scene.of("a").address, copies_of(scene, "b")
        async with Stranger(scene).running() as stranger:
            copies.master_is_at(stranger.ha_address, master)  # as for the first master that is named
            with pytest.raises(CallFailed, match="gives its log at"):
                await copies._compare(stranger.ha_address)
            assert copies.follows == (copies_of(scene, "a").address, master)
            await scene.send("second")
            await scene.follows("b", "a")
            assert scene.bodies("b") == ["first", "second"]

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_slave_without_a_master_copies_nothing_of_a_stranger(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await settle(scene)
        family = await scene.epochs("a")
        await scene.stop("b")
        await scene.stop("a")
        async with Stranger(scene).running() as stranger:
            stranger.claims_to_lead(family)
            await stranger.register(0)
            await scene.start("b")
            slave = Untouched(scene, "b")
            await until(lambda: stranger.questions)
            assert stranger.copies == 0
            slave.check()
            assert scene.bodies("b") == ["first"]

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_new_slave_says_why_it_does_not_follow_a_stranger(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await settle(scene)
        await scene.stop("a")
        async with Stranger(scene).running() as stranger:
            stranger.claims_to_lead(await scene.epochs("b"))
            await stranger.register(0)
            await scene.start("c")
            replica = copies_of(scene, "c").replica
            assert replica is not None
            await until(lambda: "has not proved the group secret" in str(replica.state.problem))
            assert "replication.secret_file" in str(replica.state.problem)
            assert scene.of("c").store.log.end == 0

    told(tmp_path, story, "ASYNC_MASTER")


def test_no_log_is_quarantined_for_a_master_without_epochs_that_a_name_server_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It poses as a broker of Apache's whose log begins behind ours."""

    async def story(scene: Scene) -> None:
        await settle(scene)
        await scene.stop("b")
        await scene.stop("a")
        for file in StorePaths.of(scene.config("b").store).config.glob("leadership.json*"):
            file.unlink()  # a copy of Apache's log has none
        async with Stranger(scene).running() as stranger:
            stranger.stream = PUSH.pack(1 << 40, 0)
            await stranger.register(0)
            await scene.start("b")
            await until(lambda: "our log is kept" in caplog.text)
            Untouched(scene, "b").check()
            assert scene.bodies("b") == ["first"]
            assert scene.lives["b"].changes == 0

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_slave_with_epochs_follows_no_master_without_them(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await settle(scene)
        async with Stranger(scene).running() as stranger:
            parts = scene.of("b").parts
            assert parts is not None
            slave = Untouched(scene, "b")
            parts._master_is_at(stranger.address, stranger.ha_address)
            await until(lambda: stranger.questions)
            await scene.stop("a")
            await until(lambda: scene.seeks("b"))
            parts._master_is_at(stranger.address, stranger.ha_address)
            await until(lambda: len(stranger.questions) > 1)
            assert stranger.copies == 0
            slave.check()

    told(tmp_path, story, "ASYNC_MASTER")


# --- settings instead of a shared secret ------------------------------------------------------------------------------


def with_own_secrets(monkeypatch: pytest.MonkeyPatch, **of_slaves: object) -> None:
    """Every broker has a secret that no other one has; slaves have these settings."""
    usual = Scene.config

    def config(scene: Scene, name: str) -> BrokerConfig:
        given = usual(scene, name)
        more = {key: value(scene) if callable(value) else value for key, value in of_slaves.items() if name != "a"}
        settings = replace(given.replication, secret_file=scene.root / f"secret-{name}", **more)  # type: ignore[arg-type]
        return replace(given, replication=settings)

    monkeypatch.setattr(Scene, "config", config)


def address_of(scene: Scene, name: str, *, above: int = 0) -> str:
    return f"127.0.0.1:{scene._ports[name] + above}"


@pytest.mark.parametrize("setting", ["primary", "members"])
def test_a_master_in_the_settings_is_followed_without_a_shared_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    def value(scene: Scene) -> object:
        if setting == "primary":
            return address_of(scene, "a", above=1)
        return (f"0@{address_of(scene, 'a')}",)

    with_own_secrets(monkeypatch, **{setting: value})

    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("b")
        await scene.send("second")
        await scene.start("b")
        await scene.follows("b", "a")
        assert scene.bodies("b") == ["first", "second"]

    told(tmp_path, story, "ASYNC_MASTER")


def test_another_secret_is_not_enough_to_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        await settle(scene)
        with_own_secrets(monkeypatch)
        await scene.start("c")
        replica = copies_of(scene, "c").replica
        assert replica is not None
        await until(lambda: "has not proved the group secret" in str(replica.state.problem))
        assert scene.of("c").store.log.end == 0
        assert scene.of("c").address not in {one.address for one in copies_of(scene, "a")._leading.known.members}

    told(tmp_path, story, "ASYNC_MASTER")


def test_of_many_brokers_at_a_name_server_a_bounded_number_is_asked(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        others = copies_of(scene, "a")._others

        async def group(*_: object) -> dict[int, str]:
            return {number: f"127.0.0.1:{number}" for number in range(10_000, 0, -1)}

        others._group = group  # type: ignore[method-assign]
        assert list(await others.registered()) == list(range(1, MAX_REGISTERED + 1))

    told(tmp_path, story, "ASYNC_MASTER")


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1:1", "10.0.0.1"), ("[::ffff:10.0.0.1]:1", "10.0.0.1"), ("[::1]:1", "::1"),
        ("[fe80::1%eth0]:1", "fe80::1"), ("name:1", "name"), ("?", "?"),
    ],
)  # fmt: skip
def test_a_host_has_one_form(address: str, host: str) -> None:
    assert host_of(address) == host


@pytest.mark.parametrize(("host", "is_ours"), [("127.0.0.1", True), ("::1", True), ("192.0.2.1", False), ("?", False)])
def test_only_own_addresses_are_this_machine(host: str, is_ours: bool) -> None:
    assert is_this_machine(host) is is_ours
