"""Open a lake from a path and a format, and read its committed rows as a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pyromq.config.checks import require
from pyromq.errors import ConfigError, LakeError
from pyromq.spark.lake import runs
from pyromq.spark.lake.commits import COMMITS
from pyromq.spark.lake.model import Lake
from pyromq.spark.lake.parquet_lake import ParquetLake
from pyromq.spark.lake.place import Place, place_at, told

FORMATS = ("parquet", "delta", "iceberg")


def open_lake(path: str, format: str = "parquet", *, options: Mapping[str, str] | None = None) -> Lake:
    """The lake at a path; it need not be there yet. `options`: Delta's storage options, or Iceberg's catalog."""
    require(format in FORMATS, "format", format, f"a lake is one of {', '.join(FORMATS)}")
    place = place_at(path)
    with told(path):
        _refuse_other_format(place, format)
    return lake_at(place, format, options)


def _refuse_other_format(place: Place, format: str) -> None:
    """Two tables in one directory would take each other's files for garbage."""
    signs = {
        "parquet": place.entries(COMMITS),
        "delta": place.entries("_delta_log"),
        "iceberg": place.entries("metadata"),
    }
    for other, entries in signs.items():
        if entries and other != format:
            raise ConfigError(
                f"the lake {place.uri} is of the format {other}: name that one, or another path", "format"
            )


def lake_at(place: Place, format: str, options: Mapping[str, str] | None = None) -> Lake:
    try:
        if format == "delta":
            from pyromq.spark.lake.delta_lake import DeltaLake

            return DeltaLake(place, options)
        if format == "iceberg":
            from pyromq.spark.lake.iceberg_lake import IcebergLake

            return IcebergLake(place, options)
    except ImportError as why:
        raise ConfigError(f'the format {format} needs pip install "pyromq[lake]": {why}', "format") from why
    return ParquetLake(place)


def read_lake(
    spark: SparkSession, path: str, format: str = "parquet", *, options: Mapping[str, str] | None = None
) -> DataFrame:
    """The rows of the newest commit, all of them and no other. Raises LakeError when there is none."""
    return rows_of(spark, open_lake(path, format, options=options))


def rows_of(spark: SparkSession, lake: Lake) -> DataFrame:
    head, where = lake.head(), lake.locations()
    if head.schema is None or head.version == 0:
        raise LakeError(f"there is no lake at {lake.place.uri}: nothing was committed there yet")
    schema = from_arrow_schema(head.schema)
    if not where:
        return spark.createDataFrame([], schema)
    frames = [_read(spark, schema, base, paths) for base, paths in _by_base(lake.place, where)]
    frame = frames[0]
    for more in frames[1:]:
        frame = frame.unionByName(more)
    return frame.select(*head.schema.names)


def _read(spark: SparkSession, schema: Any, base: str, paths: Sequence[str]) -> DataFrame:
    return spark.read.schema(schema).option("basePath", base).parquet(*paths)


def _by_base(place: Place, where: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Spark reads topic and date from the directories below a base: the lake, or a run's staging directory. Files that
    lie in no such directory have them as columns."""
    staging = place.location(runs.STAGING) + "/"
    found: dict[tuple[str, bool], list[str]] = {}
    for location in where.values():
        run = location.removeprefix(staging).partition("/")[0]
        base = staging + run if location.startswith(staging) else place.uri
        found.setdefault((base, "/topic=" in location), []).append(location)
    return [(base, paths) for (base, _), paths in found.items()]
