"""Network options of a client."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyromq.auth.signature import Credentials
from pyromq.clock import Clock, SystemClock
from pyromq.errors import ConfigError
from pyromq.net.address import parse_address

__all__ = ["ClientOptions", "Credentials", "parse_name_servers", "tls_context"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The common options of producers, consumers and admin tools.

    options = ClientOptions(call_timeout_s=10)
    Producer("localhost:9876", group="signup", options=options)
    """

    #: The timeout of requests except sends (which have their own deadline) and long polls.
    call_timeout_s: float = 3.0
    #: The timeout of a connection attempt.
    connect_timeout_s: float = 3.0
    #: The heartbeat interval; brokers forget a client that is silent for two minutes.
    heartbeat_s: float = 30.0
    #: The refresh interval of routes in use.
    route_refresh_s: float = 30.0
    #: Under which name brokers know this client; it must differ from all others. None makes one.
    client_id: str | None = None
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        for name in ("call_timeout_s", "connect_timeout_s", "heartbeat_s", "route_refresh_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0", name)
        if self.client_id is not None and not self.client_id.strip():
            raise ConfigError("client_id must not be empty", "client_id")


def parse_name_servers(name_servers: str | Sequence[str]) -> tuple[str, ...]:
    """The addresses in `host:port;host:port`, or in a list. Raises ConfigError."""
    given = name_servers.replace(",", ";").split(";") if isinstance(name_servers, str) else name_servers
    addresses = tuple(one.strip() for one in given if one.strip())
    if not addresses:
        raise ConfigError('no name server is given: say where one is, for example "localhost:9876"', "name_servers")
    for address in addresses:
        try:
            parse_address(address)
        except ValueError:
            raise ConfigError(f"{address!r} is no address of a name server: it is host:port", "name_servers") from None
    return addresses


def tls_context(tls: ssl.SSLContext | bool | None) -> ssl.SSLContext | None:
    """True stands for the system's certificate authorities; anything else is the caller's own context."""
    return ssl.create_default_context() if tls is True else tls or None
