"""The broker's topics: which there are, and how new ones come to be.

A change is in memory at once; `on_change` tells the name servers and has it written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pyromq.config import BrokerConfig
from pyromq.errors import IllegalMessage, TopicNotFound
from pyromq.model import names
from pyromq.model.topic import Permission, TopicConfig
from pyromq.store.tables.config_files import TopicTable

BENCHMARK_QUEUES = 1024
DEFAULT_TEMPLATE_QUEUES = 8
CLUSTER_TOPIC_QUEUES = 16
#: Two directories with files for each queue.
MAX_QUEUES = 4096
#: The prefixes of topics that are created for a group.
_OF_GROUPS = (names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX)


class Topics:
    """Look up, make, change and remove topics."""

    def __init__(self, table: TopicTable, config: Callable[[], BrokerConfig], on_change: Callable[[], None]) -> None:
        self.table = table
        self._config = config
        self._on_change = on_change

    def add_system_topics(self, delay_levels: int) -> None:
        """Those that RocketMQ has from its first start on."""
        config = self._config()
        read_write = int(Permission.READ_WRITE)
        inherit = int(Permission.READ_WRITE | Permission.INHERIT)
        wanted = [
            (names.SELF_TEST_TOPIC, 1, read_write),
            (names.BENCHMARK_TOPIC, BENCHMARK_QUEUES, read_write),
            (config.cluster, CLUSTER_TOPIC_QUEUES, inherit),
            (config.name, 1, inherit),
            (names.OFFSET_MOVED_TOPIC, 1, read_write),
            (names.SCHEDULE_TOPIC, delay_levels, read_write),
            (names.reply_topic(config.cluster), 1, read_write),
            (names.HALF_TOPIC, 1, read_write),
            (names.HALF_DONE_TOPIC, 1, read_write),
        ]
        if config.auto_create_topics:
            wanted.append((names.DEFAULT_TOPIC, config.default_topic_queues, inherit))
        if config.trace_topic_enabled:
            wanted.append((config.trace_topic, 1, read_write))
        for name, queues, permission in wanted:
            if name not in self.table:
                self.table.put(TopicConfig(name, queues, queues, permission))
        self._on_change()

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(self.table)

    def get(self, name: str) -> TopicConfig | None:
        return self.table.get(name)

    def require(self, name: str) -> TopicConfig:
        """The topic. Raises TopicNotFound."""
        topic = self.table.get(name)
        if topic is None:
            raise TopicNotFound(
                f"topic[{name}] not exist, apply first please! (no topic of that name is on this broker)"
            )
        return topic

    def for_sending(self, name: str, default_topic: str, default_queues: int) -> TopicConfig:
        """The topic that a message goes to, made now if that is allowed. Raises TopicNotFound, IllegalMessage."""
        topic = self.table.get(name)
        if topic is not None:
            return topic
        names.check_topic(name)
        if names.is_retry_topic(name):
            return self.make(TopicConfig(name, 1, 1))
        template = self._template(default_topic)
        if template is None:
            return self.require(name)
        queues = max(1, min(default_queues, template.write_queues))
        permission = int(template.permission & ~Permission.INHERIT)
        return self.make(TopicConfig(name, queues, queues, permission))

    def _template(self, default_topic: str) -> TopicConfig | None:
        """Return the template of a new topic; None if none may be created."""
        config = self._config()
        if not config.auto_create_topics:
            return None
        template = self.table.get(default_topic)
        if template is None and default_topic == names.DEFAULT_TOPIC:
            # Switched on while running.
            queues = config.default_topic_queues
            template = TopicConfig(default_topic, queues, queues, int(Permission.READ_WRITE | Permission.INHERIT))
        return template if template is not None and template.permission & Permission.INHERIT else None

    def derived(self, name: str, queues: int) -> TopicConfig:
        """A retry or dead-letter topic, made when it is first needed."""
        topic = self.table.get(name)
        return topic if topic is not None else self.make(TopicConfig(name, queues, queues))

    def make(self, topic: TopicConfig) -> TopicConfig:
        """Add or replace a topic. Raises IllegalMessage for a name or numbers that cannot be."""
        names.check_topic(topic.name)
        for queues in (topic.read_queues, topic.write_queues):
            if not 0 <= queues <= MAX_QUEUES:
                raise IllegalMessage(f"a topic has at most {MAX_QUEUES} queues, {queues} were asked for")
        self._require_room(topic.name)
        if self.table.put(topic):
            self._on_change()
        return topic

    def _require_room(self, name: str) -> None:
        """Raise IllegalMessage for one topic too many. Those of groups, which have a limit of their own, always fit."""
        most = self._config().max_topics
        if len(self.table) < most or name in self.table or name.startswith(_OF_GROUPS) or names.is_system_topic(name):
            return
        raise IllegalMessage(
            f"the topic {name} cannot be created: this broker has {len(self.table)} topics, and max_topics is {most}; "
            "remove some, or raise it"
        )

    def change(self, name: str, **changes: object) -> TopicConfig:
        return self.make(replace(self.require(name), **changes))  # type: ignore[arg-type]

    def remove(self, name: str) -> bool:
        removed = self.table.remove(name)
        if removed:
            self._on_change()
        return removed
