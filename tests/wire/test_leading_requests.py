"""Requests about who leads, and the list of epochs in RocketMQ's form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import BadRequest
from pyromq.wire.bodies.epochs import BrokerEpochs, EpochEntry
from pyromq.wire.requests.client import Request, decode_request, encode_request
from pyromq.wire.requests.roles import GetBrokerEpochs, PromoteBroker, RestartBroker, StepDown


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (GetBrokerEpochs(name="pair", broker_id=1, address="b:1"), 1007),
        (PromoteBroker(epoch=3, role="SYNC_MASTER", reason="why", position=1 << 40, handed_over=True), 17001),
        (StepDown(to="b:1", timeout_ms=5, reason="why"), 17002),
        (RestartBroker(reason="why"), 17003),
    ],
)
def test_a_request_is_read_as_it_was_written(request_: Request, code: int) -> None:
    command = encode_request(request_, 7)
    assert command.code == code
    read = decode_request(command)
    read.command = None
    assert read == request_


def test_rocketmqs_own_form_is_read() -> None:
    body = {
        "brokerId": 2, "brokerName": "pair", "clusterName": "c", "maxOffset": 900,
        "epochList": [
            {"epoch": 1, "startOffset": 0, "endOffset": 500}, {"epoch": 4, "startOffset": 500, "endOffset": 2**63 - 1}
        ],
    }  # fmt: skip
    told = BrokerEpochs.decode(json.dumps(body).encode())
    assert (told.newest, told.end, told.member) == (4, 900, "")
    assert told.entries[0] == EpochEntry(1, 0, 500)


def test_epochs_out_of_their_order_are_none() -> None:
    told = BrokerEpochs(entries=(EpochEntry(2, 0), EpochEntry(1, 10)))
    with pytest.raises(BadRequest, match="in their order"):
        BrokerEpochs.decode(told.encode())


@given(st.integers(0, 9), st.integers(0, 1 << 62), st.text(max_size=5))
def test_a_list_is_read_as_it_was_written(number: int, end: int, name: str) -> None:
    told = BrokerEpochs(
        cluster=name, name=name, broker_id=number, entries=(EpochEntry(number, end, end, name),), end=end, start=number,
        number=number, member=name, role=name, address=name, ha_address=name,
    )  # fmt: skip
    assert BrokerEpochs.decode(told.encode()) == told
