"""How a broker is shown to people."""

from __future__ import annotations

import io

from rich.console import Console

from pyromq.admin.brokers import BrokerStatus
from pyromq.admin.copies import Copying
from pyromq.cli.admin.broker_views import _safety, status_facts


def shown(table: object) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_slave_without_its_masters_tables_says_so() -> None:
    copying = Copying("SLAVE", master="10.0.0.1:10912", is_connected=True, tables_problem="they have not been copied")
    status = BrokerStatus("c", "pair", 1, "10.0.0.2:10911", copying=copying)
    assert "level; lacks topics and progress" in shown(_safety([status]))
    assert "topics, groups and progress are not copied: they have not been copied" in shown(status_facts(status, 0))
