"""Tells Spark of `format("pyromq-segments")`: a module whose name begins with `pyspark_` can name one format."""

from pyromq.spark.formats import SegmentsFormat as DefaultSource

__all__ = ["DefaultSource"]
