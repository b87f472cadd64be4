"""Brokers' replication figures become values; invalid figures raise nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from admin.members import address_of, master, slave
from pyromq.admin.brokers import BrokerStatus, name_slaves, read_status
from pyromq.admin.copies import Copying, DiskCare, Slave, read_copying, read_disk_care
from pyromq.admin.directory import BrokerAddress

MASTER = {
    "pyromq.role": "SYNC_MASTER",
    "pyromq.epoch": "3",
    "pyromq.logEnd": "9000",
    "pyromq.inSync": "10.0.0.2:5",
    "pyromq.slave.10.0.0.2:5": "has 9000, lacks 0 bytes for 0 ms",
    "pyromq.slave.[::1]:6": "has 4000, lacks 5000 bytes for 1200 ms",
    "pyromq.replicationLagBytes": "5000",
    "pyromq.replicationLagMs": "1200",
}


def test_a_master_names_its_slaves_and_those_in_sync() -> None:
    copying = read_copying(MASTER)
    level, late = Slave("10.0.0.2:5", True, 9000), Slave("[::1]:6", False, 4000, 5000, 1200)
    assert copying == Copying("SYNC_MASTER", 3, 9000, (level, late), lag_bytes=5000, lag_ms=1200)
    assert copying.in_sync == (level,)


def test_a_slave_tells_whom_it_copies_and_since_when_it_does_not() -> None:
    copying = read_copying(
        {
            "pyromq.role": "SLAVE",
            "pyromq.master": "10.0.0.1:10912",
            "pyromq.masterConnected": "false",
            "pyromq.copyProblem": "it closed the connection",
            "pyromq.tablesProblem": "they have not been copied yet",
            "pyromq.masterEnd": "9000",
            "pyromq.replicationLagMs": "800",
        }
    )
    assert copying == Copying(
        "SLAVE",
        master="10.0.0.1:10912",
        problem="it closed the connection",
        tables_problem="they have not been copied yet",
        master_end=9000,
        lag_ms=800,
    )


def test_the_disk_is_told_in_milliseconds_and_bytes() -> None:
    told = {"pyromq.recoverBytes": "70", "pyromq.flushLastMs": "1.50", "pyromq.flushP99Ms": "9.00"}
    assert read_disk_care(told) == DiskCare(flush_last_ms=1.5, flush_p99_ms=9.0, recover_bytes=70)


def test_a_broker_of_rocketmq_says_nothing_of_either() -> None:
    status = read_status(BrokerAddress("c", "a", 0, "h:1"), {"brokerVersionDesc": "V5_3_1"})
    assert (status.copying, status.disk_care) == (None, None)


def test_masters_learn_which_brokers_their_slaves_are_from_the_other_end_of_the_connection() -> None:
    one = BrokerStatus("c", "pair", 0, address_of(0), copying=read_copying(MASTER))
    other = BrokerStatus("c", "pair", 1, address_of(1), copying=Copying("SLAVE", connection="10.0.0.2:5"))
    stranger = BrokerStatus("c", "solo", 1, address_of(9), copying=Copying("SLAVE", connection="[::1]:6"))
    copying = name_slaves([one, other, stranger])[0].copying
    assert copying is not None
    assert [(slave.broker_id, slave.address) for slave in copying.slaves] == [(1, address_of(1)), (None, "")]


def test_those_without_slaves_stay_as_they_are() -> None:
    found = [master(slaves=()), slave()]
    assert name_slaves(found) == found


@given(st.dictionaries(st.sampled_from([*MASTER, "pyromq.recoverBytes", "pyromq.flushMeanMs"]), st.text(max_size=30)))
def test_no_figures_are_too_strange(figures: dict[str, str]) -> None:
    read_copying(figures)
    read_disk_care(figures)
