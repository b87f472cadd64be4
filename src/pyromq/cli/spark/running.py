"""Running a job on Spark in the foreground: a session, its log kept from the terminal, progress, errors as sentences.

Ctrl-C ends it with exit code 130, after Spark has stopped. What Spark has to say goes to a file that is removed when it
is of no use, and named when something went wrong.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from pyromq.cli import output
from pyromq.cli.running import INTERRUPTED
from pyromq.cli.spark.errors import sentence_of
from pyromq.errors import ConfigError, PyroMQError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyromq.spark.jobs.progress import Progress

Report = TypeVar("Report")
#: A job: gets a session and a progress callback.
Job: TypeAlias = "Callable[[SparkSession, Progress], Report]"

EXTRA = 'this needs Spark, which is not installed: pip install "pyromq[spark]"'
#: Loggers that repeat raised errors on stderr as JSON.
NOISY = ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger")

Master = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark master: local[*] for all cores of this machine, spark://host:7077 for a cluster.",
        rich_help_panel="Spark",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="KEY=VALUE",
        help="Spark setting, as for spark-submit. Repeatable.",
        rich_help_panel="Spark",
    ),
]
Log = Annotated[
    Path | None,
    typer.Option(
        "--spark-log",
        metavar="FILE",
        help="File for Spark's log. Default: kept after an error only.",
        rich_help_panel="Spark",
    ),
]


LOCAL = "local[*]"


def settings_of(conf: Sequence[str] | None) -> dict[str, str]:
    """`key=value` as Spark takes it. Raises ConfigError."""
    found: dict[str, str] = {}
    for text in conf or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--conf is given {text!r}: write it as key=value, spark.executor.memory=4g for one")
        found[key.strip()] = value
    return found


def require_spark() -> None:
    """Says what to install, and ends, where it is not there."""
    try:
        import pyarrow
        import pyspark
    except ImportError:
        output.fail(EXTRA)
    del pyarrow, pyspark


def run(
    name: str,
    job: Job[Report],
    *,
    master: str,
    conf: Sequence[str] | None,
    log: Path | None,
    stop: threading.Event | None = None,
) -> Report:
    """Run a job and return its report. An error ends the program with one sentence and the path of the log.

    The first Ctrl-C sets `stop`, which ends a continuous job after its run; the second ends it at once.
    """
    settings = settings_of(conf)
    with _log_file(name, log) as file, _interruptible(signal.SIGTERM, _interrupt):
        try:
            return _run(name, job, master, settings, file, stop)
        except KeyboardInterrupt:
            output.note("stopped before it was done: what was finished is kept")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if not _is_of_spark(error):
                raise
            raise PyroMQError(f"{sentence_of(str(error))} (what Spark said is in {file})") from error


def _run(
    name: str,
    job: Job[Report],
    master: str,
    settings: Mapping[str, str],
    log: Path,
    stop: threading.Event | None,
) -> Report:
    from pyromq.cli.spark.progress import shown_progress, tasks_shown
    from pyromq.spark.session import spark_session

    _silence()
    handler = _interrupt if stop is None else _politely(stop)
    with shown_progress() as shown:
        shown("starting Spark", 0, None)
        with spark_session(master=master, name=f"pyromq-{name}", conf=settings, log=log) as spark:
            shown("starting Spark", 1, 1)
            # Spark has replaced the Ctrl-C handler.
            with (
                tasks_shown(spark, shown),
                _interruptible(signal.SIGINT, handler),
                _interruptible(signal.SIGTERM, handler),
            ):
                return job(spark, shown)


def _silence() -> None:
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_for_people)


def _is_for_people(record: logging.LogRecord) -> bool:
    """The bridge to Java tells of Ctrl-C with a traceback, and not by its own logger."""
    return "py4j" not in Path(record.pathname).parts


def _is_of_spark(error: Exception) -> bool:
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j")


@contextlib.contextmanager
def _log_file(name: str, wanted: Path | None) -> Iterator[Path]:
    """Keep the log on request, or if an error refers to it."""
    if wanted is not None:
        yield wanted
        return
    descriptor, made = tempfile.mkstemp(prefix=f"pyromq-spark-{name}-", suffix=".log")
    os.close(descriptor)
    path = Path(made)
    try:
        yield path
    except BaseException as error:
        if made not in str(error):
            path.unlink()
        raise
    path.unlink()


@contextlib.contextmanager
def _interruptible(number: signal.Signals, handler: Callable[[int, Any], None]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _politely(stop: threading.Event) -> Callable[[int, Any], None]:
    def ask(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        output.note("stopping after what is under way; once more ends it at once")

    return ask
