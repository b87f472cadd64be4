"""A lake in Iceberg's format, through pyiceberg: a snapshot is a commit, and its properties have the offsets.

The catalog is a SQLite file in the lake's own directory, or one that is given (`catalog`: the properties that
pyiceberg's `load_catalog` takes). The number of our newest commit is also a property of the table, written in the same
transaction, so an expired snapshot with the newest offsets is noticed. Automatic retries of a commit are
switched off: a retry on top of another writer's commit would add rows twice.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import date, timedelta

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Snapshot

from pyromq.errors import ConfigError, LakeError
from pyromq.spark.lake import together_lake
from pyromq.spark.lake.model import DATE, Change, DataFile, Head, Target
from pyromq.spark.lake.place import LocalPlace, Place

NAMESPACE = "pyromq"
TABLE = "pyromq.messages"
VERSION = "pyromq.version"
OFFSETS = "pyromq.offsets"


class IcebergLake:
    def __init__(self, place: Place, catalog: Mapping[str, str] | None = None, table: str = TABLE) -> None:
        self.place = place
        self._given = dict(catalog) if catalog else None
        self._name = table
        self._opened: Catalog | None = None

    def _catalog(self) -> Catalog:
        if self._opened is None:
            self._opened = load_catalog("pyromq", **(self._given or self._own_catalog()))
        return self._opened

    def _own_catalog(self) -> dict[str, str]:
        if not isinstance(self.place, LocalPlace):
            raise ConfigError(
                f"{self.place.uri} is no directory of this machine: name a catalog for Iceberg", "catalog"
            )
        self.place.create("_pyromq/lake", b"iceberg\n")  # the directory, which SQLite does not make
        return {"type": "sql", "uri": f"sqlite:///{self.place.location('catalog.db')}", "warehouse": self.place.uri}

    # --- reading -----------------------------------------------------------------------------------------------------

    def _table(self) -> Table | None:
        try:
            return self._catalog().load_table(self._name)
        except NoSuchTableError:
            return None

    def head(self) -> Head:
        table = self._table()
        return Head(0, {}, None) if table is None else _head_of(table, self.place.uri)

    def files(self) -> list[DataFile]:
        table = self._table()
        return [] if table is None else [self._ours(file) for file in _data_files(table)]

    def _ours(self, file: IcebergFile) -> DataFile:
        path = self._path_of(file)
        return DataFile(
            path, file.partition[0], str(_day(file.partition[1])), file.record_count, file.file_size_in_bytes
        )

    def _path_of(self, file: IcebergFile) -> str:
        return file.file_path.removeprefix("file://").removeprefix(self.place.uri + "/")

    def locations(self) -> dict[str, str]:
        return {file.path: self.place.location(file.path) for file in self.files()}

    # --- writing -----------------------------------------------------------------------------------------------------

    def target(self, run: str, schema: pa.Schema) -> Target:
        return Target(self.place.uri, run, together_lake.directory_of(run), schema, hive=False)

    def commit(self, change: Change) -> Head:
        table = self._table() or self._created(change.schema)
        version = change.base.version + 1
        if _head_of(table, self.place.uri).version != change.base.version:
            raise together_lake.conflict(self.place.uri, version, "a snapshot says so")
        try:
            with table.transaction() as transaction:
                self._stage(transaction, change)
        except (CommitFailedException, ValidationException) as why:
            raise together_lake.conflict(self.place.uri, version, why) from why
        except OverflowError as why:
            raise LakeError(
                f"Iceberg cannot hold a message that was stored or born at a time that no calendar has ({why}): the "
                "clock of a machine was far off; archive with the format parquet or delta"
            ) from why
        return self.head()

    def _stage(self, transaction: Transaction, change: Change) -> None:
        version = str(change.base.version + 1)
        offsets = json.dumps(dict(sorted(change.offsets.items())))
        transaction.set_properties({VERSION: version})
        update = transaction.update_snapshot({VERSION: version, OFFSETS: offsets, "pyromq.run": change.run})
        with update.overwrite() if change.removed else update.fast_append() as snapshot:
            table = transaction._table
            for file in change.added:
                where = self.place.location(file.path)
                snapshot.append_data_file(parquet_file_to_data_file(table.io, transaction.table_metadata, where))
            gone = {file.path for file in change.removed}
            for known in _data_files(table) if gone else ():
                if self._path_of(known) in gone:
                    snapshot.delete_data_file(known)

    def _created(self, schema: pa.Schema) -> Table:
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(NAMESPACE if self._name == TABLE else self._name.rpartition(".")[0])
        properties = {"commit.retry.num-retries": "0", "format-version": "2"}
        with catalog.create_table_transaction(
            self._name, schema, location=self.place.uri, properties=properties
        ) as transaction:
            with transaction.update_spec() as spec:
                spec.add_identity("topic")
                spec.add_identity(DATE)
            mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties({"schema.name-mapping.default": mapping})
        return catalog.load_table(self._name)

    def settle(self) -> None:
        """An Iceberg commit leaves nothing to do."""

    def end(self, run: str, committed: Collection[str]) -> None:
        together_lake.end(self.place, run, committed)

    def clean(self, *, now_ms: int, safe_age_s: float, grace_s: float) -> int:
        """Replaced files belong to older snapshots: Iceberg's own tools remove them when they expire those."""
        live = {self._path_of(file) for file in self._ever()}
        return together_lake.remove_orphans(self.place, live, now_ms=now_ms, safe_age_s=safe_age_s, grace_s=grace_s)

    def _ever(self) -> Iterator[IcebergFile]:
        """The files of every snapshot that is left."""
        table = self._table()
        if table is not None:
            for snapshot in table.snapshots():
                yield from _data_files_of(table, snapshot)


def _head_of(table: Table, uri: str) -> Head:
    version = int(table.properties.get(VERSION, "0"))
    schema = table.schema().as_arrow()
    if version == 0:
        return Head(0, {}, schema)
    for snapshot in sorted(table.snapshots(), key=lambda one: one.sequence_number or 0, reverse=True):
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        if summary.get(VERSION) == str(version):
            return Head(version, json.loads(summary[OFFSETS]), schema)
    raise LakeError(
        f"the snapshot of {uri} with the offsets of commit {version} was expired: keep the newest snapshot that an "
        "archive made; archive into another path"
    )


def _data_files(table: Table) -> Iterator[IcebergFile]:
    snapshot = table.current_snapshot()
    if snapshot is not None:
        yield from _data_files_of(table, snapshot)


def _data_files_of(table: Table, snapshot: Snapshot) -> Iterator[IcebergFile]:
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file


def _day(value: object) -> object:
    return date(1970, 1, 1) + timedelta(days=value) if isinstance(value, int) else value
