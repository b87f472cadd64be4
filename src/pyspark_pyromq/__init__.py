"""Tells Spark of `format("pyromq")`: it imports every module whose name begins with `pyspark_` to find formats."""

from pyromq.spark.formats import PyromqFormat as DefaultSource

__all__ = ["DefaultSource"]
