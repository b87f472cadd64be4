"""The topics that are on the disk as they are now.

A message may be acknowledged only in one of them: a crash must not leave it in a topic that is no longer known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyromq.model.topic import TopicConfig
from pyromq.store.tables.config_files import TopicTable


class SavedTopics:
    """Looks at a table of topics that was just loaded, and from then on at each time it is saved."""

    def __init__(self, table: TopicTable, on_saved: Callable[[], None]) -> None:
        self._table = table
        self._saved = table.by_name()
        self._on_saved = on_saved

    def __iter__(self) -> Iterator[TopicConfig]:
        return (topic for topic in self._table if self._saved.get(topic.name) is topic)

    def __len__(self) -> int:
        return len(self._saved)

    def __contains__(self, name: str) -> bool:
        topic = self._table.get(name)
        return topic is not None and self._saved.get(name) is topic

    def get(self, name: str) -> TopicConfig | None:
        return self._table.get(name) if name in self else None

    def saving(self) -> Callable[[], None]:
        """The table is about to be written: call what this returns when it is on the disk."""
        about_to_be_saved = self._table.by_name()

        def done() -> None:
            if about_to_be_saved != self._saved:
                self._saved = about_to_be_saved
                self._on_saved()

        return done
