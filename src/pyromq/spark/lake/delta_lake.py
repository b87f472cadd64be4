"""A lake in Delta's format, through delta-rs: no JVM part, any Delta reader.

A commit has in one transaction: the files, the offsets as JSON among the commit's information (`pyromq`), and our
commit's number as an application transaction. The number is what two writers fight for: Delta refuses a commit when
another one has taken the same application's transaction since its base. Other people's commits (a vacuum, an optimize)
do not disturb. The table is made with the removal of old log entries switched off, since the newest offsets stand in
one of them; should they be gone nevertheless, that is seen by the number, and said.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from pyromq.errors import LakeError
from pyromq.spark.lake import together_lake
from pyromq.spark.lake.model import DATE, Change, DataFile, Head, Target
from pyromq.spark.lake.place import Place

APPLICATION = "pyromq"
_PARTITIONS = ["topic", DATE]
#: The moments that have a date.
FIRST_MS = int(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * 1000
LAST_MS = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp()) * 1000


class DeltaLake:
    def __init__(self, place: Place, options: Mapping[str, str] | None = None) -> None:
        """`options` go to delta-rs: credentials of an object store and its like."""
        self.place = place
        self._options = dict(options or {})

    # --- reading -----------------------------------------------------------------------------------------------------

    def _table(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.place.uri, storage_options=self._options or None)
        except TableNotFoundError:
            return None

    def head(self) -> Head:
        table = self._table()
        return Head(0, {}, None) if table is None else _head_of(table, self.place.uri)

    def files(self) -> list[DataFile]:
        table = self._table()
        if table is None:
            return []
        return [_file_of(row) for row in pa.table(table.get_add_actions(flatten=True)).to_pylist()]

    def locations(self) -> dict[str, str]:
        return {file.path: self.place.location(file.path) for file in self.files()}

    # --- writing -----------------------------------------------------------------------------------------------------

    def target(self, run: str, schema: pa.Schema) -> Target:
        return Target(self.place.uri, run, together_lake.directory_of(run), schema, hive=False)

    def commit(self, change: Change) -> Head:
        version = change.base.version + 1
        table = self._table() or self._created(change.schema)
        if _head_of(table, self.place.uri).version != change.base.version:
            raise together_lake.conflict(self.place.uri, version, "it is in the log")
        note = json.dumps({"version": version, "run": change.run, "offsets": dict(sorted(change.offsets.items()))})
        properties = CommitProperties(
            custom_metadata={APPLICATION: note, "why": change.why},
            app_transactions=[Transaction(APPLICATION, version)],
        )
        try:
            table.create_write_transaction(
                _actions(change), "append", table.schema(), _PARTITIONS, commit_properties=properties
            )
        except CommitFailedError as why:
            raise together_lake.conflict(self.place.uri, version, why) from why
        return self.head()

    def _created(self, schema: pa.Schema) -> DeltaTable:
        DeltaTable.create(
            self.place.uri, Schema.from_arrow(schema), mode="ignore", partition_by=_PARTITIONS,
            name="pyromq", configuration={"delta.enableExpiredLogCleanup": "false"},
            storage_options=self._options or None,
        )  # fmt: skip
        table = self._table()
        assert table is not None, "it was made just now"
        return table

    def settle(self) -> None:
        """A Delta commit leaves nothing to do."""

    def end(self, run: str, committed: Collection[str]) -> None:
        together_lake.end(self.place, run, committed)

    def clean(self, *, now_ms: int, safe_age_s: float, grace_s: float) -> int:
        table = self._table()
        live = {file.path for file in self.files()}
        removed = together_lake.remove_orphans(self.place, live, now_ms=now_ms, safe_age_s=safe_age_s, grace_s=grace_s)
        if table is None:
            return removed
        # Without the check Delta insists on a week; the grace time is the caller's decision. It keeps whole hours.
        hours = int(-(-grace_s // 3600))
        if not table.vacuum(hours, dry_run=True, enforce_retention_duration=False):
            return removed  # a vacuum is a commit, too
        return removed + len(table.vacuum(hours, dry_run=False, enforce_retention_duration=False))


def _head_of(table: DeltaTable, uri: str) -> Head:
    version = table.transaction_version(APPLICATION) or 0
    schema = pa.schema(table.schema().to_arrow())
    if version == 0:
        return Head(0, {}, schema)
    for limit in (1, 100, None):
        for entry in table.history(limit):
            note = json.loads(entry.get(APPLICATION, "{}"))
            if note.get("version") == version:
                return Head(version, note["offsets"], schema)
    raise LakeError(
        f"the log entry of {uri} with the offsets of commit {version} is gone: somebody shortened the table's log; "
        "archive into another path"
    )


def _actions(change: Change) -> list[AddAction | RemoveAction]:
    is_new = change.why != "compact"
    gone: list[AddAction | RemoveAction] = [
        RemoveAction(file.path, is_new, change.at_ms, file.size, _partition(file)) for file in change.removed
    ]
    new = [
        AddAction(file.path, file.size, _partition(file), change.at_ms, is_new, _statistics(file))
        for file in change.added
    ]
    return gone + new


def _partition(file: DataFile) -> dict[str, str | None]:
    return {"topic": file.topic, DATE: file.date}


def _statistics(file: DataFile) -> str:
    """Return the statistics by which readers skip the file. Times outside the calendar are left out."""
    low: dict[str, int | str] = {}
    high: dict[str, int | str] = {}
    if file.queues:
        low["queue_offset"] = min(span.first for span in file.queues.values())
        high["queue_offset"] = max(span.last for span in file.queues.values())
        if file.first_ms >= FIRST_MS and file.last_ms <= LAST_MS:
            low["store_ts"], high["store_ts"] = _iso(file.first_ms), _iso(file.last_ms)
    return json.dumps({"numRecords": file.rows, "minValues": low, "maxValues": high, "nullCount": {}})


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _file_of(row: Mapping[str, Any]) -> DataFile:
    # Paths stand in the log as parts of a URL. Ours have nothing to escape; those of other writers may.
    return DataFile(
        unquote(row["path"]),
        row["partition.topic"],
        str(row["partition.date"]),
        row["num_records"] or 0,
        row["size_bytes"],
    )
