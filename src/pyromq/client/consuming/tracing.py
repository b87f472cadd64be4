"""The message trace of a consumer: a hook that records handled messages, and a producer that sends the records.

The producer has connections of its own: traces never wait for fetches, nor the other way round.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from dataclasses import replace

from pyromq.client.options import ClientOptions, Credentials
from pyromq.client.producer import Producer
from pyromq.client.sending.unique_ids import UniqueIds
from pyromq.client.trace import MessageTrace

#: The producer group of traces, as brokers see it.
TRACE_GROUP = "_INNER_TRACE_PRODUCER"


class ConsumerTrace:
    """Runs while the consumer does. `hook` is to be among its hooks."""

    def __init__(
        self,
        name_servers: Sequence[str],
        tls: ssl.SSLContext | bool | None,
        credentials: Credentials | None,
        options: ClientOptions | None,
    ) -> None:
        own = replace(options or ClientOptions(), client_id=None)  # it is another client than the consumer
        self._producer = Producer(name_servers, group=TRACE_GROUP, tls=tls, credentials=credentials, options=own)
        host = self._producer.client_id.partition("@")[0]
        ids = UniqueIds(host, os.getpid(), os.urandom)
        self.hook = MessageTrace(self._producer.send, own.clock, ids.next, lambda _: None)

    async def start(self) -> None:
        await self._producer.start()

    async def stop(self) -> None:
        """Send the waiting traces within the time limit, and close."""
        try:
            await self.hook.finish()
        finally:
            await self._producer.close()
