"""A lake of plain Parquet: `topic=…/date=…/*.parquet` for every reader, and hidden commits next to them.

    1  executors write files under `_pyromq/staging/<run>/`, where no reader looks
    2  one commit file is created, exclusively: from now on the files are in the lake, wherever they are
    3  they are moved to their places (`settle`), replaced ones into `_pyromq/trash/`
    4  `_pyromq/published` notes how far that is done

Killed before 2: nothing happened, the staged files are removed later. Killed after 2: the next writer that opens
the lake repeats 3 and 4, which is idempotent. `files` and `locations` are exact at every moment; a
reader of the bare directory may see a commit partly while it is published, and while one compacts, too few rows rather
than rows twice.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from pyromq.errors import LakeConflict, LakeError
from pyromq.spark.lake import commits, runs
from pyromq.spark.lake.commits import CHECKPOINTS, COMMITS, Commit, State
from pyromq.spark.lake.model import Change, DataFile, Head, Target
from pyromq.spark.lake.place import Place

PUBLISHED = "_pyromq/published"
TRASH = "_pyromq/trash"
#: A checkpoint after this many commits: reading as many small files takes less than a second.
CHECKPOINT_EVERY = 32


class ParquetLake:
    def __init__(self, place: Place) -> None:
        self.place = place
        self._known = State()

    # --- reading -----------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """The lake at its newest commit."""
        newest = max(self._versions(COMMITS), default=0)
        if newest < self._known.version:
            raise LakeError(f"commit {self._known.version} of {self.place.uri} is gone: did somebody remove the lake?")
        if newest > self._known.version:
            state = self._newest_checkpoint(newest)
            for version in range(state.version + 1, newest + 1):
                state = state.after(self._commit(version))
            self._known = state
        return self._known

    def _newest_checkpoint(self, newest: int) -> State:
        usable = [version for version in self._versions(CHECKPOINTS) if self._known.version < version <= newest]
        if not usable:
            return self._known
        name = commits.name_of(CHECKPOINTS, max(usable))
        data = self.place.read(name)
        return commits.decode_checkpoint(data, name) if data else self._known

    def _versions(self, directory: str) -> list[int]:
        found = (commits.version_in(entry.name) for entry in self.place.entries(directory))
        return [version for version in found if version is not None]

    def _commit(self, version: int) -> Commit:
        name = commits.name_of(COMMITS, version)
        data = self.place.read(name)
        if data is None:
            raise LakeError(
                f"commit {version} of {self.place.uri} is missing, and later ones are there: restore {name}"
            )
        return commits.decode_commit(data, name)

    def head(self) -> Head:
        return self.state().head()

    def files(self) -> list[DataFile]:
        return list(self.state().files.values())

    def locations(self) -> dict[str, str]:
        """A file that was committed and not yet moved is still where it was staged."""
        state = self.state()
        waiting = {
            file.path for version in range(self._published() + 1, state.version + 1)
            for file in self._commit(version).added
        }  # fmt: skip
        return {path: self.place.location(self._where(file, path in waiting)) for path, file in state.files.items()}

    def _where(self, file: DataFile, is_waiting: bool) -> str:
        return _staged(file) if is_waiting and not self.place.exists(file.path) else file.path

    # --- writing -----------------------------------------------------------------------------------------------------

    def target(self, run: str, schema: pa.Schema) -> Target:
        return Target(self.place.uri, run, runs.directory_of(run), schema, hive=True)

    def commit(self, change: Change) -> Head:
        commit = commits.commit_of(change)
        name = commits.name_of(COMMITS, commit.version)
        if self.head().version != change.base.version or not self.place.create(name, commits.encode_commit(commit)):
            raise LakeConflict(
                f"somebody else made commit {commit.version} of {self.place.uri} first; nothing of this one is in the "
                "lake: let one job at a time archive into it, and run this one again"
            )
        self.settle()
        return self.head()

    def settle(self) -> None:
        state, published = self.state(), self._published()
        for version in range(published + 1, state.version + 1):
            self._publish(self._commit(version), state)
        if state.version > published:
            self._checkpoint(state, published)
            self.place.replace(PUBLISHED, str(state.version).encode())

    def _published(self) -> int:
        return int(self.place.read(PUBLISHED) or b"0")

    def _publish(self, commit: Commit, state: State) -> None:
        for path in commit.removed:
            self._bring(path, f"{TRASH}/{commit.version:020}/{path}")
        for file in commit.added:
            if not self._bring(_staged(file), file.path) and file.path in state.files:
                raise LakeError(
                    f"{file.path} of commit {commit.version} is neither in {self.place.uri} nor where it was staged: "
                    "somebody removed it; restore it, or archive into another path"
                )

    def _bring(self, source: str, target: str) -> bool:
        """Return whether the target exists at the end. Another writer may do the same at the same time."""
        if self.place.exists(source):
            try:
                self.place.move(source, target)
            except FileNotFoundError:
                return self.place.exists(target)
            return True
        return self.place.exists(target)

    def _checkpoint(self, state: State, published: int) -> None:
        if state.version // CHECKPOINT_EVERY > published // CHECKPOINT_EVERY:
            self.place.create(commits.name_of(CHECKPOINTS, state.version), commits.encode_checkpoint(state))

    def end(self, run: str, committed: Collection[str]) -> None:
        runs.end(self.place, run)

    # --- cleaning ----------------------------------------------------------------------------------------------------

    def clean(self, *, now_ms: int, safe_age_s: float, grace_s: float) -> int:
        self.settle()  # committed files leave the staging directories before those are removed
        before = len(self.place.entries("_pyromq", recursive=True))
        for run in runs.abandoned(self.place, now_ms=now_ms, safe_age_s=safe_age_s):
            runs.end(self.place, run)
        for name in self.place.directories(TRASH):
            if now_ms - self._commit(int(name)).at_ms >= grace_s * 1000:
                self.place.remove_tree(f"{TRASH}/{name}")
        for entry in self.place.entries(COMMITS):
            if entry.name.endswith(".tmp") and now_ms - entry.modified_ms > safe_age_s * 1000:
                self.place.remove(entry.name)
        return max(before - len(self.place.entries("_pyromq", recursive=True)), 0)


def _staged(file: DataFile) -> str:
    return f"{runs.directory_of(file.run)}/{file.path}"
