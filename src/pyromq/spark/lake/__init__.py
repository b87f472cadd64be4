"""A lake: topics as a table of Parquet files, partitioned by topic and date, that says itself how far it reaches.

Every commit has two things in it, or none of them: the files that it adds, and for each queue the offset that comes
next. So an archive needs no checkpoint of its own, and a run that is killed anywhere has either committed
or not. Three formats keep that promise with what they have (`open_lake`):

    parquet   our own commit files under `_pyromq/`, which readers of plain Parquet do not see
    delta     the Delta log: offsets in the commit's metadata, its number in an application transaction
    iceberg   a snapshot's properties
"""
