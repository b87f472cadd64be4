"""The network side of every client: requests, signatures, TLS, heartbeats, unregistering. Over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import orjson
import pytest
import trustme

from pyromq.auth.signature import signature
from pyromq.client.options import ClientOptions, Credentials, parse_name_servers
from pyromq.client.session import Session
from pyromq.errors import (
    BrokerError,
    CallTimeout,
    ClientClosed,
    ConfigError,
    NoPermission,
    SystemBusy,
    TopicNotFound,
    Unreachable,
)
from pyromq.net.connection import Connection
from pyromq.net.endpoint import Home
from pyromq.net.peer import Peer
from pyromq.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from pyromq.wire.codes import RequestCode
from pyromq.wire.command import Command
from pyromq.wire.requests.client import CheckClientConfig, GetConsumerList, NotifyMembersChanged
from pyromq.wire.responses import Response


class FakeServer:
    """Name server and broker in one: keeps what it was asked, and answers what the story wants."""

    def __init__(self) -> None:
        self.requests: list[Command] = []
        self.peers: list[Peer] = []
        self.answer: Response | Awaitable[Response] = Response()
        self.address = ""
        self.enough = 1 << 30
        self.has_enough = asyncio.Event()

    def handle(self, command: Command, peer: Peer) -> Response | Awaitable[Response]:
        self.requests.append(command)
        self.peers.append(peer)
        if len(self.requests) >= self.enough:
            self.has_enough.set()
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return Response(body=self.route().encode(standard=True))
        return self.answer

    def route(self) -> TopicRoute:
        return TopicRoute((QueueData("a", 1, 1, 6),), (BrokerData("c", "a", {0: self.address}),))

    def bodies(self, code: RequestCode) -> list[dict[str, object]]:
        return [orjson.loads(one.body) for one in self.requests if one.code == code]


@contextlib.asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    home = Home(fake.handle)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(home), "127.0.0.1", 0, ssl=tls)
    fake.address = f"localhost:{server.sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        server.close()
        for connection in tuple(home.connections):
            connection.abort()
        await server.wait_closed()


def story(tell: Callable[[FakeServer], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving() as server:
            await tell(server)

    asyncio.run(run())


# --- asking ----------------------------------------------------------------------------------------------------------


def test_an_answer_comes_back() -> None:
    async def tell(server: FakeServer) -> None:
        server.answer = Response(body=b"fine")
        async with Session(server.address) as session:
            assert (await session.ask(server.address, GetConsumerList(group="g"))).body == b"fine"

    story(tell)


@pytest.mark.parametrize(
    ("code", "kind"), [(2, SystemBusy), (16, NoPermission), (17, TopicNotFound), (1, BrokerError), (9999, BrokerError)]
)
def test_every_other_code_is_an_error_that_says_who_and_why(code: int, kind: type[Exception]) -> None:
    async def tell(server: FakeServer) -> None:
        server.answer = Response(code=code, reason="because")
        async with Session(server.address) as session:
            with pytest.raises(kind, match=f"^{server.address}: because$") as caught:
                await session.ask(server.address, GetConsumerList(group="g"))
        assert caught.value.code == code  # type: ignore[attr-defined]

    story(tell)


def test_an_answer_without_a_reason_is_an_error_with_one() -> None:
    async def tell(server: FakeServer) -> None:
        server.answer = Response(code=2)
        async with Session(server.address) as session:
            with pytest.raises(SystemBusy, match="SYSTEM_BUSY and gave no reason"):
                await session.ask(server.address, GetConsumerList(group="g"))

    story(tell)


def test_codes_that_the_caller_expects_are_no_errors() -> None:
    async def tell(server: FakeServer) -> None:
        server.answer = Response(code=22)
        async with Session(server.address) as session:
            answer = await session.ask(server.address, GetConsumerList(group="g"), ok={0, 22})
        assert answer.code == 22

    story(tell)


def test_a_server_that_does_not_answer_is_given_up_in_time() -> None:
    async def tell(server: FakeServer) -> None:
        server.answer = asyncio.get_running_loop().create_future()
        async with Session(server.address, options=ClientOptions(call_timeout_s=0.05)) as session:
            with pytest.raises(CallTimeout, match=r"within 0\.05 s"):
                await session.ask(server.address, GetConsumerList(group="g"))

    story(tell)


def test_an_address_where_nobody_is() -> None:
    async def tell(server: FakeServer) -> None:
        async with Session(server.address) as session:
            with pytest.raises(Unreachable, match=r"nobody answers at 127\.0\.0\.1:1 "):
                await session.ask("127.0.0.1:1", GetConsumerList(group="g"))

    story(tell)


def test_a_session_that_is_not_running_says_so() -> None:
    async def tell(server: FakeServer) -> None:
        session = Session(server.address)
        with pytest.raises(ClientClosed, match="use it within `async with`"):
            await session.ask(server.address, GetConsumerList(group="g"))
        async with session:
            with pytest.raises(ClientClosed, match="started already"):
                session.start()
        await session.close()
        with pytest.raises(ClientClosed):
            await session.ask(server.address, GetConsumerList(group="g"))

    story(tell)


@pytest.mark.parametrize("given", ["", " ; ", [], "localhost", "localhost:", "localhost:notaport", "localhost:99999"])
def test_addresses_that_are_none(given: str | list[str]) -> None:
    with pytest.raises(ConfigError, match="name server"):
        Session(given)


def test_several_name_servers_in_any_form() -> None:
    expected = ("a:1", "b:2")
    assert parse_name_servers("a:1;b:2") == parse_name_servers("a:1, b:2") == parse_name_servers(["a:1", "b:2"])
    assert parse_name_servers(" a:1 ; b:2;") == expected


def test_clients_of_one_process_have_different_names() -> None:
    assert Session("a:1").client_id != Session("a:1").client_id
    assert Session("a:1", options=ClientOptions(client_id="me")).client_id == "me"


@pytest.mark.parametrize("wrong", [{"call_timeout_s": 0}, {"heartbeat_s": -1}, {"client_id": " "}])
def test_options_that_cannot_be_used(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ClientOptions(**wrong)  # type: ignore[arg-type]


# --- who we are ------------------------------------------------------------------------------------------------------


def test_with_credentials_every_request_is_signed() -> None:
    async def tell(server: FakeServer) -> None:
        async with Session(server.address, credentials=Credentials("me", "secret")) as session:
            await session.ask(server.address, GetConsumerList(group="g"))
            await session.tell(server.address, CheckClientConfig(body=b"{}"))
            await session.ask(server.address, GetConsumerList(group="h"))
        for request in server.requests:
            assert request.fields["AccessKey"] == "me"
            assert request.fields["Signature"] == signature(request.fields, request.body, "secret")
        assert len(server.requests) == 3

    story(tell)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_side(authority: trustme.CA, host: str = "localhost") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    return context


def test_over_tls_to_a_server_whose_certificate_is_good(authority: trustme.CA) -> None:
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def run() -> None:
        async with serving(server_side(authority)) as server, Session(server.address, tls=trusting) as session:
            server.answer = Response(body=b"x" * 300_000)
            answers = await asyncio.gather(
                *(session.ask(server.address, GetConsumerList(group="g", body=b"y" * 100_000)) for _ in range(20))
            )
            assert all(len(answer.body) == 300_000 for answer in answers)
            assert all(len(request.body) == 100_000 for request in server.requests)

    asyncio.run(run())


@pytest.mark.parametrize("host", ["localhost", "elsewhere.example"])
def test_a_certificate_that_is_not_good_is_refused(authority: trustme.CA, host: str) -> None:
    """An untrusted one, or one for another machine."""
    context: ssl.SSLContext | bool = True
    if host != "localhost":
        context = ssl.create_default_context()
        authority.configure_trust(context)

    async def run() -> None:
        async with serving(server_side(authority, host)) as server, Session(server.address, tls=context) as session:
            with pytest.raises(Unreachable, match=r"do not agree on TLS: .*certificate verify failed"):
                await session.ask(server.address, GetConsumerList(group="g"))

    asyncio.run(run())


def test_tls_to_a_server_that_speaks_plain_text_is_an_error_and_no_hang() -> None:
    async def tell(server: FakeServer) -> None:
        async with Session(server.address, tls=True) as session:
            with pytest.raises(Unreachable):
                await session.ask(server.address, GetConsumerList(group="g"))

    story(tell)


# --- heartbeats ------------------------------------------------------------------------------------------------------


def test_brokers_hear_which_groups_a_client_is_in_and_when_it_goes() -> None:
    async def tell(server: FakeServer) -> None:
        async with Session(server.address) as session:
            await session.routes.of("orders")
            session.producer_groups.add("shop")
            await session.heartbeat()
        (beat,) = server.bodies(RequestCode.HEART_BEAT)
        assert beat["clientID"] == session.client_id
        assert beat["producerDataSet"] == [{"groupName": "shop"}]
        (farewell,) = [one for one in server.requests if one.code == RequestCode.UNREGISTER_CLIENT]
        assert farewell.fields["producerGroup"] == "shop"
        assert farewell.fields["clientID"] == session.client_id

    story(tell)


def test_they_hear_it_again_and_again() -> None:
    async def tell(server: FakeServer) -> None:
        async with Session(server.address, options=ClientOptions(heartbeat_s=0.01)) as session:
            await session.routes.of("orders")
            session.producer_groups.add("shop")
            server.enough = len(server.requests) + 3
            async with asyncio.timeout(5):
                await server.has_enough.wait()
        assert len(server.bodies(RequestCode.HEART_BEAT)) >= 3

    story(tell)


def test_a_client_without_groups_says_nothing() -> None:
    async def tell(server: FakeServer) -> None:
        async with Session(server.address) as session:
            await session.routes.of("orders")
            await session.heartbeat()
        assert [one.code for one in server.requests] == [RequestCode.GET_ROUTEINFO_BY_TOPIC]

    story(tell)


def test_a_broker_that_is_gone_does_not_stop_the_heartbeats(caplog: pytest.LogCaptureFixture) -> None:
    async def tell(server: FakeServer) -> None:
        async with Session(server.address) as session:
            await session.routes.of("orders")
            session.routes._brokers["gone"] = {0: "127.0.0.1:1"}
            session.producer_groups.add("shop")
            await session.heartbeat()
        assert len(server.bodies(RequestCode.HEART_BEAT)) == 1

    story(tell)
    assert "the heartbeat to 127.0.0.1:1 failed: nobody answers" in caplog.text


def test_a_broker_is_introduced_to_a_client_once_for_each_connection() -> None:
    async def tell(server: FakeServer) -> None:
        async with Session(server.address) as session:
            await session.routes.of("orders")
            session.producer_groups.add("shop")
            for _ in range(3):
                await session.introduce()
            assert len(server.bodies(RequestCode.HEART_BEAT)) == 1
            server.peers[-1].close("for the story")
            async with asyncio.timeout(5):
                while session.connected(server.address) is not None:  # noqa: ASYNC110  the system knows the moment
                    await asyncio.sleep(0)
            for _ in range(3):
                await session.introduce()
            assert len(server.bodies(RequestCode.HEART_BEAT)) == 2

    story(tell)


def test_a_broker_that_cannot_be_reached_is_not_introduced_again_and_again() -> None:
    async def tell(server: FakeServer) -> None:
        async with Session(server.address) as session:
            session.routes._brokers["gone"] = {0: "127.0.0.1:1"}
            session.producer_groups.add("shop")
            await session.introduce()
            session.heartbeat = None  # type: ignore[method-assign, assignment]  it would be called
            await session.introduce()

    story(tell)


# --- what brokers ask ------------------------------------------------------------------------------------------------


def test_a_broker_may_ask_its_client_something() -> None:
    async def tell(server: FakeServer) -> None:
        heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with Session(server.address) as session:
            session.on(NotifyMembersChanged, lambda notice, _: heard.set_result(notice.group))
            await session.ask(server.address, GetConsumerList(group="g"))
            server.peers[0].tell(NotifyMembersChanged(group="mailer"))
            async with asyncio.timeout(5):
                assert await heard == "mailer"
            answer = await server.peers[0].call(GetConsumerList(group="x"), 5)
            assert answer.code == 3  # an unknown code here

    story(tell)


# --- background tasks ------------------------------------------------------------------------------------------------


def test_what_runs_beside_ends_with_the_session_and_what_fails_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def tell(server: FakeServer) -> None:
        async def fails() -> None:
            raise ValueError("boom")

        async with Session(server.address) as session:
            endless = session.spawn(asyncio.sleep(3600))
            await asyncio.wait([session.spawn(fails())])
        assert endless.cancelled()

    story(tell)
    assert "boom" in caplog.text
