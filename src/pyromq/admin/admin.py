"""The admin client: everything that a cluster tells of itself, and everything that may be changed from outside.

    async with Admin("localhost:9876") as admin:
        await admin.topics.create("orders", queues=8)
        lag = await admin.consumers.lag("billing")

It works against PyroMQ and against Apache RocketMQ, and joins no group: looking changes nothing.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pyromq.admin.brokers import Brokers
from pyromq.admin.consumers import Consumers
from pyromq.admin.dead_letters import DeadLetterDesk
from pyromq.admin.directory import Directory
from pyromq.admin.groups import Groups
from pyromq.admin.leading import Leading
from pyromq.admin.messages import Messages
from pyromq.admin.topics import Topics
from pyromq.client.options import ClientOptions, Credentials, parse_name_servers
from pyromq.client.session import Session


class Admin:
    """Use it within `async with`. What it can do is sorted by subject, one attribute each."""

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        tls: ssl.SSLContext | bool | None = None,
        credentials: Credentials | None = None,
        options: ClientOptions | None = None,
        secret_file: Path | None = None,
    ) -> None:
        """`secret_file`: the brokers' group secret, for what changes their roles; `None`: PYROMQ_SECRET_FILE, else
        `~/.config/pyromq/secret`."""
        self.session = Session(name_servers, tls=tls, credentials=credentials, options=options)
        directory = Directory(self.session, parse_name_servers(name_servers))
        self.brokers = Brokers(directory)
        self.leading = Leading(directory, self.brokers, secret_file)
        self.topics = Topics(directory)
        self.groups = Groups(directory, self.topics)
        self.consumers = Consumers(directory)
        self.messages = Messages(directory)
        self.dead_letters = DeadLetterDesk(directory, self.topics, self.messages, self.session.clock)
        self.directory = directory

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the session. Connections are opened on first use."""
        self.session.start()

    async def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        await self.session.close()
