"""From a command to its handler, and from errors to answers."""

from __future__ import annotations

import asyncio

import pytest

from pyromq.errors import SystemBusy
from pyromq.net.peer import Peer
from pyromq.net.service import Answer, Service
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.client import GetMaxOffset, GetMinOffset, Heartbeat, Request
from pyromq.wire.responses import OffsetAnswer, Response


class Somebody:
    address = "10.0.0.1:5000"


PEER: Peer = Somebody()  # type: ignore[assignment]


def answered(answer: Answer) -> Response:
    assert isinstance(answer, Response)
    return answer


def refuse(_: Request, __: Peer) -> Answer:
    raise SystemBusy("come back later")


def fail(_: Request, __: Peer) -> Answer:
    raise KeyError("a secret")


def give_up(_: Request, __: Peer) -> Answer:
    raise asyncio.CancelledError


SERVICE = Service({GetMaxOffset: lambda request, _: OffsetAnswer(offset=request.queue_id), GetMinOffset: refuse})
OFFSET = {"topic": "t", "queueId": "3"}


def test_the_handler_gets_the_typed_request() -> None:
    assert SERVICE.handle(Command(code=30, fields=OFFSET), PEER) == OffsetAnswer(offset=3)


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        (Command(code=30, fields={"topic": "t"}), ResponseCode.INVALID_PARAMETER, "the field queueId is missing"),
        (Command(code=31, fields=OFFSET), ResponseCode.SYSTEM_BUSY, "come back later"),
        (Command(code=34), ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "HEART_BEAT is not supported here"),
        (Command(code=31337), ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request code 31337 is not supported"),
    ],
)
def test_errors_are_answers_with_a_code_and_a_sentence(command: Command, code: int, reason: str) -> None:
    answer = answered(SERVICE.handle(command, PEER))
    assert (answer.code, answer.reason) == (code, reason)


@pytest.mark.parametrize("handler", [fail, give_up])
def test_faults_are_in_the_log_and_not_in_the_answer(handler: object, caplog: pytest.LogCaptureFixture) -> None:
    service = Service({Heartbeat: handler})  # type: ignore[dict-item]
    answer = answered(service.handle(Command(code=34), PEER))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "secret" not in (answer.reason or "")
    assert "HEART_BEAT of 10.0.0.1:5000 failed" in caplog.text
