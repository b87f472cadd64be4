"""Spark's classes as Java keeps them once it has read and checked them: a session starts in half the time then.

`python tests/spark_classes.py` makes the archive, which takes as long as some sessions; `scripts/run_tests.py` does
that. Without it tests run as well. Java looks for itself whether an archive is of its own version and of these jars.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

KEPT_IN = Path(__file__).resolve().parents[1] / "build" / "spark"
#: Spark's processes live for seconds here: what they would spend on making their code fast costs more than it brings.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def archive() -> Path | None:
    """Return the path of the class archive of this Spark on this Java; None if one of them is missing."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        return None
    if java is None:
        return None
    real = Path(java).resolve()
    parts = (spark, sys.prefix, str(real), str(real.stat().st_mtime_ns))
    return KEPT_IN / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.jsa"


def options() -> str:
    """For SPARK_SUBMIT_OPTS. An archive that is not there, or does not fit, is done without, and nothing is said."""
    kept = archive()
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={kept} -Xlog:disable" if kept is not None else SHORT_LIVED


def make() -> None:
    kept = archive()
    if kept is None or kept.exists():
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    fresh = kept.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={fresh} -Xlog:disable"
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    _some_work()
    fresh.rename(kept)


def _some_work() -> None:
    """A query, a table of files and a stream: what nearly every session needs classes for."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    gateway = session.sparkContext._gateway
    with TemporaryDirectory() as directory:
        session.range(9).selectExpr("id % 3 AS k").groupBy("k").count().write.parquet(f"{directory}/table")
        rows = session.readStream.schema("k LONG").parquet(f"{directory}/table")
        writer = rows.writeStream.format("noop").option("checkpointLocation", f"{directory}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # which is how Java hears that it may end
    gateway.proc.wait()


if __name__ == "__main__":
    make()
