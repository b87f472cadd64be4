"""The judge of the kills sees what it should: one that can find nothing proves nothing."""

from __future__ import annotations

import os
import subprocess
import sys

from spark.kills.processes import Process, all_processes, descendants, kill, python_workers, wait_until_gone
from spark.kills.stage import AT_LEAST_ONCE, FILES, judge

INPUT = ["0:0 a", "0:1 b", "1:0 a"]


def test_what_went_in_came_out_once() -> None:
    assert judge(FILES, INPUT, reversed(INPUT)).is_kept


def test_a_message_is_missing() -> None:
    verdict = judge(FILES, INPUT, INPUT[1:])
    assert verdict.missing == ["0:0 a"]
    assert not verdict.is_kept
    assert not judge(AT_LEAST_ONCE, INPUT, INPUT[1:]).is_kept


def test_a_message_is_there_twice() -> None:
    verdict = judge(FILES, INPUT, [*INPUT, "1:0 a"])
    assert verdict.repeated == ["1:0 a"]
    assert not verdict.is_kept
    assert judge(AT_LEAST_ONCE, INPUT, [*INPUT, "1:0 a"]).is_kept, "this one may"


def test_a_message_is_there_that_nobody_sent() -> None:
    assert not judge(AT_LEAST_ONCE, INPUT, [*INPUT, "1:0 b"]).is_kept


def test_processes_are_found_and_killed() -> None:
    nested = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE) as parent:
        while not (below := descendants([parent.pid])):
            pass
        assert parent.pid in {one.pid for one in descendants([os.getpid()])}
        for process in below:
            kill(process)
        assert wait_until_gone(below) == []
    assert not {one.pid for one in below} & all_processes().keys()


def test_workers_are_the_children_of_a_daemon() -> None:
    daemon = Process(2, 1, "python -m pyspark.daemon pyspark.worker")
    worker = Process(3, 2, "python -m pyspark.daemon pyspark.worker")
    runner = Process(4, 1, "python -m pyspark.sql.streaming.python_streaming_source_runner")
    assert python_workers([daemon, worker, runner]) == [worker]
