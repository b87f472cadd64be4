"""Out of pages of Java, the line that was written for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.cli.spark.errors import sentence_of

TASK_FAILED = """\
An error occurred while calling o78.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: a task of stage 0.0 failed 1 times, most recent \
failure: Lost it in stage 0.0 (TID 0) (localhost executor driver): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/pyspark/worker.py", line 3000, in main
    process()
  File "/opt/venv/lib/python3.11/site-packages/pyromq/spark/segments.py", line 40, in read
    raise CorruptLog(f"{path}: byte {at} is no record")
{raised}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2790)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/pyspark/worker.py", line 3000, in main
{raised}
\t... 1 more
"""


def failed(raised: str) -> str:
    return TASK_FAILED.replace("{raised}", raised)


def test_an_error_of_ours_is_found_in_a_failed_task() -> None:
    text = failed("pyromq.errors.CorruptLog: /data/commitlog/0: byte 17 is no record: restore the file from a backup")
    assert sentence_of(text) == "/data/commitlog/0: byte 17 is no record: restore the file from a backup"


def test_what_led_to_an_error_is_not_the_error() -> None:
    text = failed(
        "pyromq.errors.Unreachable: no connection\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in read\n'
        "pyromq.errors.CallFailed: broker-a did not answer for 120 s: start it, and run this again"
    )
    assert sentence_of(text) == "broker-a did not answer for 120 s: start it, and run this again"


def test_an_error_of_python_keeps_its_type() -> None:
    assert sentence_of(failed("ModuleNotFoundError: No module named 'pyromq'")) == (
        "ModuleNotFoundError: No module named 'pyromq'"
    )


def test_spark_says_its_conditions_in_sentences() -> None:
    text = "[PATH_NOT_FOUND] Path does not exist: file:/lake. SQLSTATE: 42K03\n\tat org.apache.spark.X(X.scala:1)"
    assert sentence_of(text) == "Path does not exist: file:/lake."


def test_a_format_that_is_not_found_has_a_usual_reason() -> None:
    text = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: pyromq. SQLSTATE: 42K02"
    assert sentence_of(text) == (
        "Failed to find the data source: pyromq. Is PyroMQ installed in the Python that PYSPARK_PYTHON names?"
    )


def test_the_names_of_java_are_left_out() -> None:
    assert sentence_of("java.io.IOException: No space left on device\n\tat x") == "No space left on device"


@pytest.mark.parametrize("text", ["", "\n\n", "   "])
def test_nothing_is_said_of_nothing(text: str) -> None:
    assert sentence_of(text) == "Spark gave up and did not say why"


@given(st.text())
def test_it_is_always_one_line(text: str) -> None:
    assert len(sentence_of(text).splitlines()) == 1
    assert sentence_of(failed("pyromq.errors.StoreError: " + "x" + text)).startswith("x")
