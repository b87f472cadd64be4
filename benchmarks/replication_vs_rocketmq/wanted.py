"""What is measured, and what is wanted of it: only values, nothing runs here."""

from __future__ import annotations

from broker_vs_rocketmq.loads import Load

#: How a master is run: without a slave, with one that it does not wait for, with one that it waits for.
ALONE, ASYNC, SYNC = "alone", "async", "sync"
MODES = (ALONE, ASYNC, SYNC)

LOADS = (
    Load("send", "async", 8, 32, 1024, speed_min=0),
    Load("send", "async", 64, 1, 1024, speed_min=0),
    Load("send", "async", 8, 32, 128, speed_min=0),
)
#: Fills the log that a cold slave copies, and warms the brokers up.
FILL = LOADS[0]
#: Without a limit of its own: `--rate` sets it.
PACED = LOADS[0]

#: A slave, a master and the generator each have a core of their own only from here on.
CORES_TO_SPARE = 4

#: Wanted: what a slave takes from the master alone, and what waiting for it takes from that.
ASYNC_COST_MAX = 0.05
SYNC_COST_MAX = 0.10
#: From a message's append on the master to its presence in the slave's log, in ms, 99 of 100.
LAG_P99_MAX_MS = 20.0
#: Of a slave that begins with nothing.
CATCH_UP_MIN_MB_S = 500.0
