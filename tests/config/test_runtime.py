"""Settings that may change over the network, settings that may not, and the settings a broker reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.config import BrokerConfig, StoreConfig
from pyromq.config.fields import paths_of, value_at
from pyromq.config.load import load_broker
from pyromq.config.rocketmq_keys import BROKER_KEYS
from pyromq.config.runtime import RUNTIME_SETTINGS, RuntimeSetting, apply_runtime, describe
from pyromq.errors import ConfigError

CONFIG = BrokerConfig(store=StoreConfig(root=Path("/data")), name_servers=("a:1", "b:2"))


def test_allowed_settings_change_and_nothing_else_does() -> None:
    changed = apply_runtime(
        CONFIG,
        {
            "autoCreateTopicEnable": "true",
            "transactionTimeOut": "9000",
            "fileReservedTime": "24",
            "brokerPermission": "4",
        },
    )
    assert (changed.auto_create_topics, changed.permission, changed.transaction.timeout_ms) == (True, 4, 9000)
    assert changed.store.retention.max_age_hours == 24
    told, before = describe(changed), describe(CONFIG)
    assert {key for key in told if told[key] != before[key]} == {
        "autoCreateTopicEnable", "transactionTimeOut", "fileReservedTime", "brokerPermission",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("listenPort", "1", "listenPort is decided when the broker starts: set it in the file and restart"),
        ("bindAddress", "0.0.0.0", "bindAddress is decided when the broker starts"),
        ("brokerIP1", "10.0.0.1", "brokerIP1 is decided when the broker starts"),
        ("namesrvAddr", "a:1", "namesrvAddr is decided when the broker starts"),
        ("storePathRootDir", "/etc", "storePathRootDir is decided when the broker starts"),
        ("storePathCommitLog", "/etc", "storePathCommitLog is decided when the broker starts"),
        ("brokerConfigPath", "/etc/passwd", "brokerConfigPath has no meaning in this broker"),
        ("rocketmqHome", "/;id", "rocketmqHome has no meaning in this broker"),
        ("filterServerNums", "1;id", "filterServerNums"),
        ("autoCreateTopicEnabled", "true", r"no setting autoCreateTopicEnabled; did you mean autoCreateTopicEnable\?"),
        ("autoCreateTopicEnable", "perhaps", "autoCreateTopicEnable = 'perhaps' cannot work: it is true or false"),
        ("defaultTopicQueueNums", "0", "defaultTopicQueueNums = '0' cannot work: it is 1 to 1024"),
        ("defaultTopicQueueNums", "9" * 500, "it is a whole number"),
        ("brokerPermission", "3", "brokerPermission: permission = 3 cannot work"),
        ("transactionCheckMax", "", "transactionCheckMax = '' cannot work: it is a whole number"),
    ],
)
def test_everything_else_is_refused_by_name(key: str, value: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"{sentence}.*; nothing was changed"):
        apply_runtime(CONFIG, {"longPollingEnable": "false", key: value})


def test_nothing_to_change_changes_nothing() -> None:
    assert apply_runtime(CONFIG, {}) == CONFIG


@pytest.mark.parametrize("one", RUNTIME_SETTINGS, ids=lambda one: one.key)
def test_both_ends_of_every_range_work_and_one_beyond_does_not(one: RuntimeSetting) -> None:
    if one.kind == "bool":
        assert [value_at(apply_runtime(CONFIG, {one.key: text}), one.path) for text in ("true", "false")] == [
            True,
            False,
        ]
        return
    for edge in (one.least, one.most):
        assert describe(apply_runtime(CONFIG, {one.key: str(edge)}))[one.key] == str(edge)
    for beyond in (one.least - 1, one.most + 1):
        with pytest.raises(ConfigError, match=f"{one.least} to {one.most}"):
            apply_runtime(CONFIG, {one.key: str(beyond)})


def test_no_path_or_address_is_on_the_list() -> None:
    kinds = dict(paths_of(BrokerConfig))
    assert {kinds[setting.path].__name__ for setting in RUNTIME_SETTINGS} <= {"to_bool", "to_int", "to_float"}
    assert not {setting.path for setting in RUNTIME_SETTINGS} & {"listen_port", "allow_public", "broker_id"}
    assert all(setting.sentence.endswith(".") for setting in RUNTIME_SETTINGS)


def test_every_setting_with_a_rocketmq_name_is_described() -> None:
    told = describe(CONFIG)
    assert {key.name for key in BROKER_KEYS} <= told.keys()
    assert (told["namesrvAddr"], told["brokerIP1"], told["flushDiskType"]) == ("a:1;b:2", "127.0.0.1", "ASYNC_FLUSH")
    assert (told["storePathCommitLog"], told["fileReservedTime"]) == ("/data/commitlog", "72")


def test_a_description_is_a_file_that_gives_the_same_broker(tmp_path: Path) -> None:
    changed = apply_runtime(CONFIG, {"brokerPermission": "2", "diskMaxUsedSpaceRatio": "40", "traceOn": "false"})
    path = tmp_path / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in describe(changed).items()), encoding="utf-8")
    loaded = load_broker(path, environ={}, overrides={})
    assert loaded.warnings == []
    assert describe(loaded.config) == describe(changed)
