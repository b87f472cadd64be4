"""The allow-list of settings that can be changed over the network while a broker runs.

Each has a type and a range. Paths, addresses and file layouts are fixed at start; changes to them are refused by name.
A request changes all its keys or, if one is invalid, none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pyromq.config.broker import BrokerConfig
from pyromq.config.fields import BadValue, nearest, replaced, to_bool, to_int, value_at
from pyromq.config.rocketmq_keys import BROKER_KEYS, COMMIT_LOG_KEY
from pyromq.config.rocketmq_names import KNOWN_TO_ROCKETMQ
from pyromq.errors import ConfigError

_DAY_MS = 86_400_000
_KEYS = {key.name: key for key in BROKER_KEYS}


@dataclass(frozen=True, slots=True)
class RuntimeSetting:
    """One line of the allow-list. The range is in RocketMQ's unit."""

    key: str
    kind: Literal["bool", "int"]
    least: int
    most: int
    sentence: str

    @property
    def path(self) -> str:
        return _KEYS[self.key].path

    def check(self, text: str) -> None:
        """Raise BadValue with the allowed range if the value is invalid."""
        if self.kind == "bool":
            to_bool(text)
            return
        if not self.least <= to_int(text) <= self.most:
            raise BadValue(f"it is {self.least} to {self.most}")


def _switch(key: str, sentence: str) -> RuntimeSetting:
    return RuntimeSetting(key, "bool", 0, 1, sentence)


def _number(key: str, least: int, most: int, sentence: str) -> RuntimeSetting:
    return RuntimeSetting(key, "int", least, most, sentence)


RUNTIME_SETTINGS = (
    _switch("autoCreateTopicEnable", "Create a topic when a message for it arrives."),
    _switch("autoCreateSubscriptionGroup", "Create a consumer group when a consumer of it connects."),
    _number("defaultTopicQueueNums", 1, 1024, "Queues of an automatically created topic."),
    _number("brokerPermission", 0, 6, "6 read and write, 4 read, 2 write, 0 neither."),
    _switch("enablePropertyFilter", "Let consumers filter messages with SQL92 expressions."),
    _switch("longPollingEnable", "Hold a pull that finds no messages (long poll)."),
    _number("maxTransferCountOnMessageInMemory", 1, 65_536, "Most messages of one answer to a pull."),
    _number("maxTransferBytesOnMessageInMemory", 1024, 64 * 1024 * 1024, "Most bytes of one answer to a pull."),
    _switch("rejectTransactionMessage", "Refuse half messages."),
    _number("transactionTimeOut", 1, _DAY_MS, "Age from which a half message is checked, in ms."),
    _number("transactionCheckMax", 1, 10_000, "Checks after which a half message is given up."),
    _number("transactionCheckInterval", 1000, _DAY_MS, "Time between two rounds of checks, in ms."),
    _switch("traceOn", "Let clients trace messages."),
    _switch("notifyConsumerIdsChangedEnable", "Notify the members of a group when one joins or leaves."),
    _number("waitTimeMillsInSendQueue", 0, 60_000, "Refuse sends while the loop is this late, in ms; 0: never."),
    _number("fileReservedTime", 1, 24 * 3650, "Hours until messages expire."),
    _number("diskMaxUsedSpaceRatio", 10, 95, "Percent of the disk in use from which expired messages go at any hour."),
)
_ALLOWED = {setting.key: setting for setting in RUNTIME_SETTINGS}


def apply_runtime(config: BrokerConfig, changes: Mapping[str, str]) -> BrokerConfig:
    """Return a configuration with these RocketMQ keys changed. Raises ConfigError, which names the invalid key."""
    values: dict[str, object] = {}
    for key, text in changes.items():
        setting = _allowed(key)
        try:
            setting.check(text)
            values[setting.path] = _KEYS[key].form.take(text)
        except BadValue as error:
            raise ConfigError(f"{key} = {text!r} cannot work: {error}; nothing was changed", key) from None
    try:
        return replaced(config, values)
    except ConfigError as error:
        at_fault = [key for key in changes if f".{_ALLOWED[key].path}".endswith(f".{error.setting}")]
        raise ConfigError(f"{', '.join(at_fault or changes)}: {error}; nothing was changed", error.setting) from None


def _allowed(key: str) -> RuntimeSetting:
    if key in _ALLOWED:
        return _ALLOWED[key]
    if key in _KEYS:
        raise ConfigError(
            f"{key} is decided when the broker starts: set it in the file and restart; nothing was changed", key
        )
    if key in KNOWN_TO_ROCKETMQ:
        raise ConfigError(f"{key} has no meaning in this broker; nothing was changed", key)
    raise ConfigError(f"there is no setting {key}{nearest(key, _ALLOWED)}; nothing was changed", key)


def describe(config: BrokerConfig) -> dict[str, str]:
    """Return the effective settings under RocketMQ's names. None of them is a secret."""
    told = {key.name: key.form.give(value_at(config, key.path)) for key in BROKER_KEYS}
    told["brokerIP1"] = config.client_host
    told["brokerIP2"] = config.replication.advertise_host or config.client_host
    told["inSyncReplicas"] = str(config.copies)
    told[COMMIT_LOG_KEY] = str(config.store.log_directory)
    return told
