"""The formats that Spark finds: what each is called and who reads and writes it.

Spark imports this in every application that asks for a format it does not know, so nothing here imports what does the
work before there is work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class PyromqFormat(DataSource):
    """`format("pyromq")`: topics, as tables and as streams, to read and to write."""

    @classmethod
    def name(cls) -> str:
        return "pyromq"

    def schema(self) -> str:
        from pyromq.spark.source.data_source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyromq.spark.source.data_source import TopicReader

        return TopicReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from pyromq.spark.source.data_source import TopicStreamReader

        return TopicStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter | DataSourceArrowWriter:
        from pyromq.spark.sink.data_sink import new_writer

        return new_writer(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter | DataSourceStreamArrowWriter:
        from pyromq.spark.sink.data_sink import new_stream_writer

        return new_stream_writer(self.options, schema, overwrite)


class SegmentsFormat(DataSource):
    """`format("pyromq-segments")`: files of a commit log, read as they are."""

    @classmethod
    def name(cls) -> str:
        return "pyromq-segments"

    def schema(self) -> str:
        from pyromq.spark.segments.data_source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyromq.spark.segments.data_source import SegmentsReader

        return SegmentsReader(self.options, schema)
