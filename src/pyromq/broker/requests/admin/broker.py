"""The broker itself over the network: its figures, its settings, and cleaning up.

Settings are changed only through `settings.Settings`, whose allow-list refuses everything else by name.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from pyromq.broker.settings import Settings, parse_changes
from pyromq.broker.statistics.traffic import Statistics
from pyromq.errors import BadRequest, ServiceError
from pyromq.net.peer import Peer
from pyromq.net.service import Handler
from pyromq.wire.bodies.routes import encode_data_version, encode_kv_table
from pyromq.wire.bodies.stats import encode_rates
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests.client import Request
from pyromq.wire.responses import Response

log = logging.getLogger("pyromq.broker")

#: Removes expired files; with True, also outside the configured hours.
CleanNow = Callable[[bool], Awaitable[None]]


class BrokerAdmin:
    """Handles the requests of admin tools about the broker as a whole."""

    def __init__(
        self,
        settings: Settings,
        statistics: Statistics,
        runtime_info: Callable[[], Mapping[str, str]],
        clean_now: CleanNow,
        copies: Callable[[], bytes],
    ) -> None:
        self._settings = settings
        self._statistics = statistics
        self._runtime_info = runtime_info
        self._clean_now = clean_now
        self._copies = copies

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {
            ask.GetRuntimeInfo: self.runtime_info,
            ask.GetReplication: self.replication,
            ask.ViewStats: self.view_stats,
            ask.GetBrokerConfig: self.get_config,
            ask.UpdateBrokerConfig: self.update_config,
            ask.CleanExpiredQueues: self.clean_expired_queues,
            ask.DeleteExpiredLog: self.delete_expired,
            ask.TriggerDeleteFiles: self.delete_expired,
        }

    def runtime_info(self, request: ask.GetRuntimeInfo, peer: Peer) -> Response:
        return Response(body=encode_kv_table(self._runtime_info()))

    def replication(self, request: ask.GetReplication, peer: Peer) -> Response:
        return Response(body=self._copies())

    def view_stats(self, request: ask.ViewStats, peer: Peer) -> Response:
        rates = self._statistics.rates(request.name, request.key)
        if rates is None:
            raise ServiceError(f"The stats <{request.name}> <{request.key}> not exist")
        return Response(body=encode_rates(*rates))

    def get_config(self, request: ask.GetBrokerConfig, peer: Peer) -> Response:
        version = encode_data_version(self._settings.version).decode()
        return ask.BrokerConfigAnswer(version=version, body=self._settings.describe().encode())

    async def update_config(self, request: ask.UpdateBrokerConfig, peer: Peer) -> Response:
        """Raises ConfigError with the first key that is refused; then nothing is changed."""
        try:
            changes = parse_changes(request.body)
        except BadRequest:
            log.warning("%s wanted to change settings with what is no list of settings", peer.address)
            raise
        if changes:
            await self._settings.change(changes, peer.address)
        return Response()

    async def clean_expired_queues(self, request: ask.CleanExpiredQueues, peer: Peer) -> Response:
        """Queues follow the log: every round of cleaning removes their entries of removed log files."""
        log.info("%s asked to clean the queues", peer.address)
        await self._clean_now(False)
        return Response()

    async def delete_expired(self, request: ask.DeleteExpiredLog | ask.TriggerDeleteFiles, peer: Peer) -> Response:
        log.warning("%s asked to remove expired messages now", peer.address)
        await self._clean_now(True)
        return Response()
