"""Fixtures that every pytest run has where PyroMQ is installed.

    def test_an_order_is_announced(pyromq_broker, pyromq_topic):
        ...                                  # clients with pyromq_broker.name_servers, messages to pyromq_topic

One broker serves a whole run, and each test has a topic of its own. pytest imports this module at every start, so
nothing of PyroMQ is imported before a test asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyromq.testing.brokers.local_broker import LocalBroker

#: The characters of a topic's name.
_NOT_IN_A_NAME = re.compile(r"[^\w-]+", re.ASCII)
_NAME_CHARACTERS = 60

_numbers = count(1)


@pytest.fixture(scope="session")
def pyromq_broker_options() -> Mapping[str, Any]:
    """Keywords of `pyromq.testing.broker()` for this run. Define a fixture of this name to give some."""
    return {}


@pytest.fixture(scope="session")
def pyromq_broker(pyromq_broker_options: Mapping[str, Any]) -> Iterator[LocalBroker]:
    """A real broker for the whole run, in this process: `name_servers` is what clients are given."""
    from pyromq.testing import broker

    with broker(**pyromq_broker_options) as mq:
        yield mq


@pytest.fixture
def pyromq_topic(pyromq_broker: LocalBroker, request: pytest.FixtureRequest) -> str:
    """The name of a new, empty topic with four queues, which no other test has."""
    test = _NOT_IN_A_NAME.sub("-", request.node.name).strip("-")[:_NAME_CHARACTERS]
    name = f"{test}-{next(_numbers)}"
    pyromq_broker.create_topic(name)
    return name
