"""A signed request says who sends it, in the form that RocketMQ's brokers check."""

from __future__ import annotations

import base64
import hashlib
import hmac

from pyromq.auth.signature import Credentials, sign, signature
from pyromq.wire.command import Command

CREDENTIALS = Credentials("reader", "very secret", "for an hour")


def test_the_signature_covers_the_values_in_the_order_of_their_names_and_the_body() -> None:
    fields = {"b": "2", "a": "1", "Z": "0", "AccessKey": "reader"}
    expected = hmac.new(b"k", b"reader" + b"0" + b"1" + b"2" + b"body", hashlib.sha1).digest()
    assert signature(fields, b"body", "k") == base64.b64encode(expected).decode()


def test_a_request_is_signed_in_its_fields() -> None:
    command = Command(code=310, fields={"a": "group", "b": "topic"}, body=b"hello")
    sign(command, CREDENTIALS)
    assert command.fields["AccessKey"] == "reader"
    assert command.fields["SecurityToken"] == "for an hour"
    unsigned = {name: value for name, value in command.fields.items() if name != "Signature"}
    assert command.fields["Signature"] == signature(unsigned, b"hello", "very secret")


def test_signing_again_gives_the_same() -> None:
    command = Command(code=310, fields={"a": "group"})
    sign(command, CREDENTIALS)
    first = command.fields["Signature"]
    sign(command, CREDENTIALS)
    assert command.fields["Signature"] == first


def test_another_body_field_or_secret_has_another_signature() -> None:
    one = signature({"a": "1"}, b"x", "k")
    assert one != signature({"a": "1"}, b"y", "k")
    assert one != signature({"a": "2"}, b"x", "k")
    assert one != signature({"a": "1"}, b"x", "other")


def test_the_secret_is_not_shown() -> None:
    assert "very secret" not in repr(CREDENTIALS)
    assert "for an hour" not in repr(CREDENTIALS)
    assert "reader" in repr(CREDENTIALS)
