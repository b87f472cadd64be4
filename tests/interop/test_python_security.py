"""Our client over TLS and with access keys, against Apache RocketMQ's name server and broker that want both.

Two Apache clusters are started: one that speaks nothing but TLS, and one that wants every request signed and takes TLS
as well as plain text. PyroMQ's broker is spoken to over TLS through a proxy that ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from interop.support.apache import ApacheCluster
from interop.support.cluster import PyromqCluster
from interop.support.java_client import CONF, eventually
from interop.support.loopback import enter_private_network
from interop.support.python_client import push, tell, until_owned
from pyromq import (
    Admin,
    ConsumeFrom,
    Credentials,
    Decision,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
)
from pyromq.errors import NoPermission, PyroMQError, TlsFailed, TopicNotFound

pytestmark = pytest.mark.interop

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
SECRET = "open-sesame-4711"
WRONG_SECRET = "open-wheat-0815"
ALICE = Credentials("alice", SECRET)


# --- the servers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Papers:
    """A certificate of 127.0.0.1 and 127.0.0.2, and the authority that made it; all of them files."""

    authority: Path
    certificate: Path
    key: Path

    def trusting(self) -> ssl.SSLContext:
        """Return a client's context that trusts only this authority."""
        return ssl.create_default_context(cafile=str(self.authority))

    def serving(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context

    def jvm_options(self, mode: str) -> list[str]:
        return [
            f"-Dtls.server.mode={mode}",
            f"-Dtls.server.certPath={self.certificate}",
            f"-Dtls.server.keyPath={self.key}",
        ]


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    place = tmp_path_factory.mktemp("papers")
    made = Papers(place / "authority.pem", place / "certificate.pem", place / "key.pem")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "127.0.0.2")
    authority.cert_pem.write_to_path(made.authority)
    certificate.private_key_pem.write_to_path(made.key)
    made.certificate.write_bytes(b"".join(one.bytes() for one in certificate.cert_chain_pems))
    return made


@contextlib.contextmanager
def running(cluster: ApacheCluster, **connection: Any) -> Iterator[ApacheCluster]:
    """Started, known to its name server; ended without the 13 s that a clean end takes."""
    cluster.start()
    try:
        tell(lambda: _until_known(cluster.namesrv_address, **connection))
        yield cluster
    finally:
        cluster.kill()


async def _until_known(name_server: str, **connection: Any) -> None:
    async with Producer(name_server, group="producers", **connection) as producer:
        while True:
            with contextlib.suppress(TopicNotFound):
                await producer.queues("any")
                return
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def sealed(papers: Papers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """Speaks TLS and nothing else."""
    options = [*papers.jvm_options("enforcing"), "-Dtls.enable=true"]
    made = ApacheCluster(tmp_path_factory.mktemp("sealed") / "store", broker_conf=CONF, jvm_options=options)
    with running(made, tls=papers.trusting()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def guarded(papers: Papers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """Wants requests signed by alice; TLS or not is up to the client."""
    place = tmp_path_factory.mktemp("guarded")
    providers = "org.apache.rocketmq.auth.authentication.provider"
    conf = {
        **CONF,
        "authenticationEnabled": "true",
        "authenticationProvider": f"{providers}.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{providers}.LocalAuthenticationMetadataProvider",
        "authConfigPath": str(place / "auth"),
        "initAuthenticationUser": json.dumps({"username": "alice", "password": SECRET}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": "broker", "secretKey": "of the broker"}),
    }
    made = ApacheCluster(place / "store", broker_conf=conf, jvm_options=papers.jvm_options("permissive"))
    with running(made, credentials=ALICE) as cluster:
        yield cluster


async def make(topic: str, name_server: str, **connection: Any) -> None:
    async with Admin(name_server, **connection) as admin:
        await admin.topics.create(topic, queues=4)


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
def test_large_messages_and_many_in_flight_over_tls(
    sealed: ApacheCluster, papers: Papers, topic: str, group: str, loop: str
) -> None:
    large = [os.urandom(1 << 20) for _ in range(8)]
    servers, tls = sealed.namesrv_address, papers.trusting()

    async def story() -> None:
        await make(topic, servers, tls=tls)
        consumer, inbox = push(servers, group, topic, tls=tls)
        async with Producer(servers, group="producers", tls=tls, compress_above=None) as producer, consumer:
            await asyncio.gather(
                *(producer.send(topic, body, timeout_s=20) for body in large),
                *(producer.send(topic, str(number), timeout_s=20) for number in range(1000)),
            )
            await inbox.nothing_more(1008, for_s=0.3)
            stats = await _described(topic, servers, tls=tls)
        got = {message.body for message in inbox.messages}
        assert got == {*large, *(str(number).encode() for number in range(1000))}
        assert stats == 1008

    tell(story, loop=LOOPS[loop])


async def _described(topic: str, name_server: str, **connection: Any) -> int:
    async with Admin(name_server, **connection) as admin:
        return (await admin.topics.stats(topic)).messages


@pytest.mark.parametrize("loop", LOOPS)
def test_a_server_whose_certificate_nobody_vouches_for_is_not_spoken_to(
    sealed: ApacheCluster, topic: str, loop: str
) -> None:
    async def story() -> None:
        for attempt in _attempts(sealed.namesrv_address, topic, tls=True):
            with pytest.raises(TlsFailed, match=r"do not agree on TLS: .*certificate verify failed"):
                await attempt()

    tell(story, loop=LOOPS[loop])


def test_a_certificate_of_another_machine_is_not_taken(sealed: ApacheCluster, papers: Papers, topic: str) -> None:
    async def story() -> None:
        port = sealed.namesrv_address.partition(":")[2]
        for attempt in _attempts(f"localhost:{port}", topic, tls=papers.trusting()):
            with pytest.raises(TlsFailed, match="certificate is not valid for 'localhost'"):
                await attempt()

    tell(story)


def test_plain_text_to_a_server_that_wants_tls_is_an_error_and_no_hang(sealed: ApacheCluster, topic: str) -> None:
    async def story() -> None:
        for attempt in _attempts(sealed.namesrv_address, topic):
            async with asyncio.timeout(2):
                with pytest.raises(PyroMQError, match=r"does it perhaps want TLS \(`tls=`"):
                    await attempt()

    tell(story)


@pytest.mark.parametrize("loop", LOOPS)
def test_tls_to_a_server_that_speaks_plain_text_is_an_error_and_no_hang(
    plain: PyromqCluster, papers: Papers, topic: str, loop: str
) -> None:
    async def story() -> None:
        port = plain.namesrv_address.partition(":")[2]
        for attempt in _attempts(f"127.0.0.1:{port}", topic, tls=papers.trusting()):
            async with asyncio.timeout(2):
                with pytest.raises(TlsFailed, match="TLS"):
                    await attempt()

    tell(story, loop=LOOPS[loop])


def _attempts(name_server: str, topic: str, **connection: Any) -> list[Callable[[], Awaitable[object]]]:
    """The first request of every kind of client."""

    async def sending() -> None:
        async with Producer(name_server, group="producers", **connection) as producer:
            await producer.send(topic, b"never")

    async def handling() -> None:
        consumer, _ = push(name_server, "never", topic, **connection)
        async with consumer:
            pass

    async def polling() -> None:
        async with PullConsumer(name_server, group="never", **connection) as consumer:
            await consumer.subscribe(topic)

    return [sending, handling, polling, lambda: make(f"{topic}-new", name_server, **connection)]


# --- TLS to PyroMQ ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PyromqCluster]:
    """PyroMQ's servers in plain text at 127.0.0.1. The route names 127.0.0.2, where a proxy may stand."""
    with PyromqCluster(tmp_path_factory.mktemp("plain") / "store", {**CONF, "brokerIP1": "127.0.0.2"}) as cluster:
        yield cluster


@pytest.mark.parametrize("loop", LOOPS)
def test_tls_to_pyromq_through_a_proxy_that_ends_it(
    plain: PyromqCluster, papers: Papers, topic: str, group: str, loop: str
) -> None:
    async def story() -> None:
        tls = papers.trusting()
        ports = [int(address.partition(":")[2]) for address in (plain.namesrv_address, plain.broker_address)]
        async with _ending_tls(papers, ports[0]) as servers, _ending_tls(papers, ports[1]):
            await make(topic, servers, tls=tls)
            consumer, inbox = push(servers, group, topic, tls=tls)
            async with Producer(servers, group="producers", tls=tls) as producer, consumer:
                await asyncio.gather(*(producer.send(topic, str(number)) for number in range(300)))
                await inbox.nothing_more(300, for_s=0.2)
            assert await _described(topic, servers, tls=tls) == 300

    tell(story, loop=LOOPS[loop])


@contextlib.asynccontextmanager
async def _ending_tls(papers: Papers, port: int) -> AsyncIterator[str]:
    """TLS at 127.0.0.2, plain text to the same port of 127.0.0.1."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(pass_on, "127.0.0.2", port, ssl=papers.serving())
    try:
        yield f"127.0.0.2:{port}"
    finally:
        server.close()
        await asyncio.sleep(0.1)  # the peers see the close


# --- access keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "for-an-hour"])
def test_signed_requests_of_every_kind_are_accepted(
    guarded: ApacheCluster, topic: str, group: str, token: str | None
) -> None:
    """A security token is signed along with the rest; Apache's broker does not look at it."""
    servers, who = guarded.namesrv_address, Credentials("alice", SECRET, token)

    async def story() -> None:
        await make(topic, servers, credentials=who)
        consumer, inbox = push(servers, group, topic, credentials=who)
        in_order, ordered_inbox = push(servers, f"{group}-ordered", topic, credentials=who, ordered=True)
        async with consumer, in_order, Producer(servers, group="producers", credentials=who) as producer:
            await until_owned(in_order, 4, topic)
            await producer.send(topic, b"one", keys="k", tags="t")
            await producer.send_batch([Message(topic, b"two"), Message(topic, b"three")])
            await producer.send_one_way(Message(topic, b"four"))
            await _transact(topic, servers, who)
            await inbox.nothing_more(5, for_s=0.2)
            await ordered_inbox.received(5)
            assert sorted(await _polled(topic, servers, who)) == sorted(inbox.bodies)
        assert sorted(inbox.bodies) == sorted(ordered_inbox.bodies) == ["four", "one", "paid", "three", "two"]
        async with Admin(servers, credentials=who) as admin:
            assert (await admin.consumers.lag(group)).lag == 0

    tell(story)


async def _transact(topic: str, servers: str, who: Credentials) -> None:
    """One that is committed at once, and one of which the broker has to ask and learns that it is undone."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def check(_: ReceivedMessage) -> Decision:
        loop.call_soon_threadsafe(asked.set)
        return Decision.ROLLBACK

    async with TransactionProducer(servers, group=f"{topic}-tx", check=check, credentials=who) as producer:
        await producer.send_in_transaction(Message(topic, b"paid"), lambda _: Decision.COMMIT)
        await producer.send_in_transaction(Message(topic, b"undone"), lambda _: Decision.UNKNOWN)
        async with asyncio.timeout(30):
            await asked.wait()


async def _polled(topic: str, servers: str, who: Credentials) -> list[str]:
    async with PullConsumer(
        servers, group=f"{topic}-pull", credentials=who, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        await consumer.subscribe(topic)
        got = list[str]()
        async with asyncio.timeout(30):
            while len(got) < 5:
                got += [message.text for message in await consumer.poll()]
        return got


def test_requests_replies_and_redeliveries_are_signed(guarded: ApacheCluster, topic: str, group: str) -> None:
    servers = guarded.namesrv_address

    async def story() -> None:
        await make(topic, servers, credentials=ALICE)
        consumer = PushConsumer(servers, group=group, credentials=ALICE, consume_from=ConsumeFrom.FIRST, retry_delay=1)
        async with Producer(servers, group="askers", credentials=ALICE) as producer:

            @consumer.on(topic)
            async def handle(one: ReceivedMessage) -> None:
                if one.delivery_attempt == 1:
                    raise ValueError("not yet")
                await producer.reply(one, f"re: {one.text}")

            async with consumer:
                reply = await producer.request(Message(topic, b"hello"), timeout_s=20)
        assert reply.text == "re: hello"

    tell(story)


def test_keys_and_tls_together(guarded: ApacheCluster, papers: Papers, topic: str, group: str) -> None:
    servers, connection = guarded.namesrv_address, {"tls": papers.trusting(), "credentials": ALICE}

    async def story() -> None:
        await make(topic, servers, **connection)
        consumer, inbox = push(servers, group, topic, **connection)
        async with consumer, Producer(servers, group="producers", **connection) as producer:  # type: ignore[arg-type]
            await producer.send(topic, b"hello")
            await inbox.received(1)

    tell(story)


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        (Credentials("alice", WRONG_SECRET), "the secret key is not the one that belongs to this access key"),
        (Credentials("mallory", WRONG_SECRET, "a-token"), "does not accept this access key: check the credentials"),
        (None, "wants to know who asks: give credentials"),
    ],
    ids=["wrong secret", "unknown user", "no keys"],
)
def test_whoever_is_not_let_in_is_told_what_to_do_and_does_not_storm(
    guarded: ApacheCluster, topic: str, caplog: pytest.LogCaptureFixture, who: Credentials | None, reason: str
) -> None:
    caplog.set_level(logging.DEBUG)
    servers = guarded.namesrv_address
    errors = list[BaseException]()

    async def story() -> None:
        await make(topic, servers, credentials=ALICE)
        for attempt in [*_attempts(servers, topic, credentials=who), lambda: _refused_half(topic, servers, who)]:
            async with asyncio.timeout(3):
                with pytest.raises(NoPermission, match=reason) as refused:
                    await attempt()
            errors.append(refused.value)

    tell(story)
    said = caplog.text + "".join(map(repr, errors))
    for secret in (SECRET, WRONG_SECRET, "a-token"):
        assert secret not in said
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 6, caplog.text


async def _refused_half(topic: str, servers: str, who: Credentials | None) -> None:
    async with TransactionProducer(
        servers, group="never", check=lambda _: Decision.COMMIT, credentials=who
    ) as producer:
        await producer.send_in_transaction(Message(topic, b"never"), lambda _: pytest.fail("no half, no local work"))


def test_refused_sends_are_few_and_nothing_is_stored(guarded: ApacheCluster, topic: str) -> None:
    """Refusals are counted in the log of Apache's broker."""
    servers = guarded.namesrv_address
    nobody = Credentials("eve", WRONG_SECRET)

    def turned_away() -> int:
        return guarded.log("auth_audit.log").count("User:eve is authenticated failed")

    async def story() -> None:
        await make(topic, servers, credentials=ALICE)
        async with Producer(servers, group="producers", credentials=nobody, attempts=3) as producer:
            for _ in range(5):
                with pytest.raises(NoPermission):
                    await producer.send(topic, b"never")
            await asyncio.sleep(0.5)
        assert await _described(topic, servers, credentials=ALICE) == 0
        assert await asyncio.to_thread(eventually, turned_away, lambda count: count >= 15) <= 16  # and a goodbye

    tell(story)


def test_keys_are_not_shown() -> None:
    assert SECRET not in f"{Credentials('alice', SECRET, SECRET)!r} {Credentials('alice', SECRET, SECRET)}"


# --- the command line ------------------------------------------------------------------------------------------------


def _pyromq(servers: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PYROMQ_")}
    return subprocess.run(
        [sys.executable, "-m", "pyromq", *arguments, "-n", servers],
        env={**settings, "NO_COLOR": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=enter_private_network(),
    )


def test_the_command_line_with_keys_over_tls(guarded: ApacheCluster, papers: Papers, topic: str) -> None:
    keys = {"PYROMQ_ACCESS_KEY": "alice", "PYROMQ_SECRET_KEY": SECRET, "PYROMQ_TLS": str(papers.authority)}
    servers = guarded.namesrv_address
    for command in (
        ["topic", "create", topic],
        ["send", topic, "hello"],
        ["consume", topic, "--count", "1"],
    ):
        done = _pyromq(servers, *command, **keys)
        assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout
    refused = _pyromq(servers, "send", topic, "never", **{**keys, "PYROMQ_SECRET_KEY": WRONG_SECRET})
    assert refused.returncode == 1
    assert "check the credentials" in " ".join(refused.stderr.split())
    assert WRONG_SECRET not in refused.stderr


def test_the_command_line_says_what_is_wrong_with_tls(sealed: ApacheCluster, topic: str) -> None:
    for command in (["topic", "list"], ["send", topic, "never"]):
        plain_text = _pyromq(sealed.namesrv_address, *command)
        assert plain_text.returncode == 1
        assert "want TLS" in " ".join(plain_text.stderr.split())
        untrusted = _pyromq(sealed.namesrv_address, *command, PYROMQ_TLS="1")
        assert untrusted.returncode == 1
        assert "certificate verify failed" in " ".join(untrusted.stderr.split())
        assert "Traceback" not in plain_text.stderr + untrusted.stderr
