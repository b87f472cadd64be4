"""Topics as Spark tables and streams, commit-log files read by Spark, and the jobs that work on both.

    spark.readStream.format("pyromq").option("namesrv", "localhost:9876").option("subscribe", "orders").load()

Needs the extra: `pip install "pyromq[spark]"`. Spark finds the formats through the two small packages whose names
begin with `pyspark_pyromq`; nothing has to be registered.
"""
