"""From options of a Spark reader or writer to the cluster: one session for each process and each set of options.

Spark pickles what it sends to executors, so only `Cluster` travels: where the name servers are and who we are. The
connections are made where they are used. A Python worker serves many tasks, and they share its session.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from threading import Lock

from pyromq.client.blocking import Portal, shared_portal
from pyromq.client.options import ClientOptions, Credentials
from pyromq.client.session import Session


@dataclass(frozen=True, slots=True)
class Cluster:
    """The address and the credentials of a cluster."""

    name_servers: str
    access_key: str | None = None
    #: Not shown: the representation of options ends up in plans and logs.
    secret_key: str | None = None
    tls: bool = False
    #: A file with the certificates to trust; None: the system's.
    tls_ca: str | None = None
    call_timeout_s: float = 10.0
    connect_timeout_s: float = 5.0

    def __repr__(self) -> str:
        return f"Cluster({self.name_servers})"

    def credentials(self) -> Credentials | None:
        if self.access_key is None or self.secret_key is None:
            return None
        return Credentials(self.access_key, self.secret_key)

    def tls_context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self.tls_ca) if self.tls else None

    def client_options(self) -> ClientOptions:
        return ClientOptions(call_timeout_s=self.call_timeout_s, connect_timeout_s=self.connect_timeout_s)

    def new_session(self) -> Session:
        return Session(
            self.name_servers, tls=self.tls_context(), credentials=self.credentials(), options=self.client_options()
        )


_sessions: dict[tuple[int, Cluster], Session] = {}
_lock = Lock()


def session_of(cluster: Cluster) -> tuple[Portal, Session]:
    """The session of this process with a cluster, and the portal whose loop it lives on."""
    portal = shared_portal()
    with _lock:
        key = (os.getpid(), cluster)  # a worker is forked: it must not use its parent's connections
        if key not in _sessions:
            _sessions[key] = portal.wait(_opened(cluster))
        return portal, _sessions[key]


async def _opened(cluster: Cluster) -> Session:
    session = cluster.new_session()
    session.start()
    return session
