"""Builds the cluster description for Spark's workers from the command line.

They run in other processes, perhaps on other machines, so keys travel with their tasks: Spark shows none of them in its
plans and pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from pyromq.cli.connecting import ask, require
from pyromq.cli.reaching import connection
from pyromq.cli.times import parse_moment
from pyromq.errors import ConfigError

if TYPE_CHECKING:
    from pyromq.admin.admin import Admin
    from pyromq.spark.connecting import Cluster


def cluster_of(name_servers: str, topics: Iterable[str] = ()) -> Cluster:
    """Return the cluster with the keys and certificates of the environment. Checks the connection and the topics before
    Spark starts. Raises ConfigError, Unreachable, TopicNotFound."""
    from pyromq.spark.connecting import Cluster

    known = connection()
    credentials, tls = known["credentials"], known["tls"]
    if credentials is not None and credentials.security_token is not None:
        raise ConfigError(
            "PYROMQ_SECURITY_TOKEN is set, and Spark's workers cannot use one: give them keys of their own"
        )
    found = Cluster(
        name_servers=require(name_servers),
        access_key=credentials.access_key if credentials else None,
        secret_key=credentials.secret_key if credentials else None,
        tls=tls is not None,
        tls_ca=None if tls in (None, True) else os.environ["PYROMQ_TLS"],
    )
    ask(name_servers, lambda admin: _look(admin, topics))
    return found


async def _look(admin: Admin, topics: Iterable[str]) -> None:
    await admin.brokers.list()
    for topic in topics:
        await admin.topics.get(topic)


def options_of(cluster: Cluster) -> dict[str, str]:
    """The same as options of a reader or writer, without the name servers."""
    from pyromq.spark.jobs.insight.sources import connection_options

    return {name: value for name, value in connection_options(cluster).items() if name != "namesrv"}


def moment_of(text: str | None, option: str) -> datetime | None:
    """A time as people type it."""
    try:
        return None if text is None else parse_moment(text, datetime.now().astimezone())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
