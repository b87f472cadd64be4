"""The settings of a broker for tests: small files, quick check-backs, no fear of a disk that is nearly full."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyromq.config import BrokerConfig
from pyromq.config.checks import MIB
from pyromq.config.load import load_broker
from pyromq.config.secret_file import SETTING, VARIABLE
from pyromq.errors import ConfigError
from pyromq.net.address import parse_address

#: Queues of a topic that is given by name only, as other clients make them.
DEFAULT_QUEUES = 4

#: The differences from a broker in production.
FOR_TESTS: dict[str, object] = {
    "auto_create_groups": True,
    "vip_channel": False,
    "offsets_flush_interval_ms": 200,
    "config_flush_interval_ms": 200,
    "transaction.timeout_ms": 1000,
    "transaction.check_interval_ms": 500,
    "limits.max_connections": 512,
    # A client on a loop that waits for the broker's end cannot say goodbye.
    "limits.stop_grace_ms": 300,
    "store.segment_bytes": 16 * MIB,
    "store.queue_file_entries": 20_000,
    "store.index_slots": 5_000,
    "store.index_entries": 20_000,
    "store.prefault_bytes": 0,
    "store.retention.refuse_at": 1.0,
    "store.retention.resume_below": 0.99,
}
#: Settings that are decided elsewhere, and where.
DECIDED_ELSEWHERE = {
    "store.root": "give data_dir instead",
    "listen_host": "a broker for tests listens on 127.0.0.1 only",
    "allow_public": "a broker for tests listens on 127.0.0.1 only",
    "store.flush.sync": 'give flush="sync" instead',
    "auto_create_topics": "give auto_create_topics itself, outside of config",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """The checked options."""

    #: Names and numbers of queues.
    topics: Mapping[str, int]
    #: The data directory; None: a directory that is removed afterwards.
    data_dir: Path | None
    #: All settings of the broker that were given, by path, but for its directory and port.
    settings: Mapping[str, object] = field(default_factory=dict)

    def config(self, store: Path, port: int) -> BrokerConfig:
        """Raises ConfigError. Environment variables, which are for programs, have no say."""
        given = {**self.settings_in(store.parent), "store.root": store, "listen_port": port}
        try:
            return load_broker(None, environ={}, overrides=given, defaults=FOR_TESTS).config
        except ConfigError as error:
            raise ConfigError(str(error).removeprefix("command line: "), error.setting) from None

    def settings_in(self, home: Path) -> dict[str, object]:
        """Return the settings, with a group secret below the data directory: a test leaves nothing in the user's home.

        A secret that the settings or PYROMQ_SECRET_FILE name is kept, so that several brokers can share it.
        """
        own: dict[str, object] = {} if os.environ.get(VARIABLE) else {SETTING: home.absolute() / "secret"}
        return {**own, **self.settings}

    @property
    def port(self) -> int:
        """The port that was asked for; 0: any."""
        port = self.settings.get("listen_port", 0)
        return port if isinstance(port, int) else 0


def options_of(
    *,
    topics: Mapping[str, int] | Iterable[str],
    auto_create_topics: bool,
    flush: str,
    data_dir: Path | str | None,
    advertise: str | None,
    config: Mapping[str, object],
) -> BrokerOptions:
    """Raises ConfigError for what cannot be, before anything is started."""
    if flush not in ("async", "sync"):
        raise ConfigError(f'flush = {flush!r} cannot work: it is "async" or "sync"', "flush")
    for setting in DECIDED_ELSEWHERE.keys() & config.keys():
        raise ConfigError(f"{setting} cannot be set in config: {DECIDED_ELSEWHERE[setting]}", setting)
    settings = {**config, "auto_create_topics": auto_create_topics, "store.flush.sync": flush == "sync"}
    options = BrokerOptions(
        topics=_topics(topics),
        data_dir=None if data_dir is None else Path(data_dir),
        settings=settings | _advertised(advertise),
    )
    options.config(Path("store"), options.port)
    return options


def _topics(topics: Mapping[str, int] | Iterable[str]) -> dict[str, int]:
    if isinstance(topics, str):
        raise ConfigError(f'topics = {topics!r} cannot work: give a list, ["{topics}"]', "topics")
    found = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, DEFAULT_QUEUES)
    for name, queues in found.items():
        if queues < 1:
            raise ConfigError(f"topic {name} with {queues} queues cannot work: it needs at least one", "topics")
    return found


def _advertised(address: str | None) -> dict[str, object]:
    if address is None:
        return {}
    try:
        host, port = parse_address(address)
    except ValueError as error:
        raise ConfigError(f"advertise = {address!r} cannot work: {error}", "advertise") from None
    return {"advertise_host": host, "advertise_port": port}
