"""The maximum of topics and groups: one too many is refused in a sentence; the topics that groups need always fit."""

from __future__ import annotations

import pytest

from broker.support.fakes import Parts
from pyromq.errors import IllegalMessage
from pyromq.model.group import GroupConfig
from pyromq.model.topic import TopicConfig


def test_one_topic_too_many_is_refused_and_the_others_go_on() -> None:
    parts = Parts(max_topics=2, auto_create_topics=True)
    for name in ("a", "b"):
        parts.topics.make(TopicConfig(name, 1, 1))
    for make in (
        lambda: parts.topics.make(TopicConfig("c", 1, 1)),
        lambda: parts.topics.for_sending("c", "TBW102", 4),
    ):
        with pytest.raises(IllegalMessage, match=r"the topic c cannot be created: .* max_topics is 2"):
            make()
    assert parts.topics.for_sending("a", "TBW102", 4).name == "a"
    parts.topics.make(TopicConfig("a", 2, 2))
    parts.topics.derived("%RETRY%shop", 1)
    parts.topics.derived("%DLQ%shop", 1)
    for name in ("b", "%RETRY%shop", "%DLQ%shop"):
        parts.topics.remove(name)
    parts.topics.make(TopicConfig("c", 1, 1))


def test_one_group_too_many_is_refused_and_the_others_go_on() -> None:
    parts = Parts(max_groups=1, auto_create_groups=True)
    parts.groups.make(GroupConfig("a"))
    with pytest.raises(IllegalMessage, match=r"the group b cannot be created: .* max_groups is 1"):
        parts.groups.require("b")
    assert parts.groups.require("a").name == "a"
    parts.groups.make(GroupConfig("a", max_retries=3))
