"""Loads the settings of a program: defaults, then the file, then the environment, then flags; the last one wins.

A `.toml` file has the names of the dataclasses. Any other file has RocketMQ's `key=value` format; it keeps RocketMQ's
default of creating consumer groups automatically. An invalid value raises `ConfigError` with its file and line.
`Loaded.warnings` describes valid but surprising values. Relative paths start at the working directory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from pyromq.config.broker import BrokerConfig
from pyromq.config.checks import is_loopback
from pyromq.config.fields import BadValue, Settings, build, paths_of
from pyromq.config.nameserver import NameServerConfig
from pyromq.config.rocketmq_keys import BROKER_KEYS, NAME_SERVER_KEYS, Key
from pyromq.config.sources import (
    Found,
    Given,
    from_environment,
    from_flags,
    from_rocketmq,
    from_toml,
    read_settings,
)
from pyromq.config.store import LOG_NAME
from pyromq.errors import ConfigError

#: Default data directories.
DEFAULT_DATA = Path("pyromq-data")
DEFAULT_STORE = DEFAULT_DATA / "store"
DEFAULT_KV_CONFIG = DEFAULT_DATA / "nameserver" / "kvConfig.json"

BROKER_PREFIX = "PYROMQ_BROKER_"
NAME_SERVER_PREFIX = "PYROMQ_NAMESERVER_"

Config = TypeVar("Config")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Config]):
    config: Config
    #: Surprising values, one sentence each.
    warnings: list[str]
    #: The file, if there was one.
    source: Path | None


def load_broker(
    path: Path | None,
    *,
    environ: Mapping[str, str],
    overrides: Mapping[str, object],
    defaults: Mapping[str, object] | None = None,
) -> Loaded[BrokerConfig]:
    """Load the settings of a broker. `defaults` replace those of the dataclasses. Raises ConfigError."""
    file = _from_file(BrokerConfig, BROKER_KEYS, path)
    _let_log_follow_root(file)
    from_variables = from_environment(BrokerConfig, BROKER_PREFIX, environ)
    if environ.get("NAMESRV_ADDR", "").strip():
        addresses = Given(environ["NAMESRV_ADDR"], "environment variable NAMESRV_ADDR")
        from_variables.given.setdefault("name_servers", addresses)
    given = {
        **{setting: Given(value, "default") for setting, value in (defaults or {}).items()},
        **file.given,
        **from_variables.given,
        **from_flags(BrokerConfig, overrides).given,
    }
    warnings = [*file.warnings, *_about_the_store(given, path)]
    if _is_rocketmq(path):
        given.setdefault("auto_create_groups", Given(True, "RocketMQ's default"))
        warnings += [*_about_topics(given, path), *_about_copies(given, path)]
    given.setdefault("store.root", Given(DEFAULT_STORE, "default"))
    if "role" in given and given["role"].value == "SLAVE":
        given.setdefault("broker_id", Given(1, "default of a slave"))
    config = _build(BrokerConfig, given)
    return Loaded(config, warnings + _about_the_broker(config), path)


def load_name_server(
    path: Path | None, *, environ: Mapping[str, str], overrides: Mapping[str, object]
) -> Loaded[NameServerConfig]:
    """Load the settings of a name server. Raises ConfigError."""
    file = _from_file(NameServerConfig, NAME_SERVER_KEYS, path)
    variables = from_environment(NameServerConfig, NAME_SERVER_PREFIX, environ)
    flags = from_flags(NameServerConfig, overrides)
    given = {
        "kv_config_path": Given(DEFAULT_KV_CONFIG, "default"),
        **file.given,
        **variables.given,
        **flags.given,
    }
    config = _build(NameServerConfig, given)
    if config.kv_config_path == DEFAULT_KV_CONFIG:
        # Several name servers may run in one directory, each with its own settings.
        config = replace(config, kv_config_path=DEFAULT_DATA / f"nameserver-{config.listen_port}" / "kvConfig.json")
    return Loaded(config, file.warnings + _about_listening(config.listen_host), path)


def _from_file(settings: type, keys: Sequence[Key], path: Path | None) -> Found:
    if path is None:
        return Found()
    data = read_settings(path)
    if _is_rocketmq(path):
        return from_rocketmq(keys, data, path)
    return from_toml(settings, keys, data, path)


def _is_rocketmq(path: Path | None) -> bool:
    return path is not None and path.suffix.lower() != ".toml"


def _build(settings: type[Settings], given: Mapping[str, Given]) -> Settings:
    """Convert and check all values. Errors of both steps name the source."""
    converters = dict(paths_of(settings))
    values: dict[str, object] = {}
    for path, one in given.items():
        try:
            values[path] = converters[path](one.value)
        except BadValue as error:
            raise ConfigError(f"{one.where}: {path} = {one.value!r} cannot work: {error}", path) from None
    try:
        return build(settings, values)
    except ConfigError as error:
        raise ConfigError(f"{_place(error.setting, given)}{error}", error.setting) from None


def _place(setting: str | None, given: Mapping[str, Given]) -> str:
    """Return the source of the invalid setting. Errors of nested dataclasses name it without the outer tables."""
    for path, one in given.items():
        if setting is not None and f".{path}".endswith(f".{setting}"):
            return f"{one.where}: "
    return ""


def _let_log_follow_root(file: Found) -> None:
    """Drop `store.commit_log` if it is the default below `store.root`, so that a root from the command line moves both.

    RocketMQ's files often name both. Links are resolved.
    """
    root, place = file.given.get("store.root"), file.given.get("store.commit_log")
    if root is not None and place is not None and place.value:
        with contextlib.suppress(ValueError, OSError, RuntimeError):  # not a path: `_build` refuses it
            if Path(str(place.value)).resolve() == (Path(str(root.value)) / LOG_NAME).resolve():
                del file.given["store.commit_log"]


def _about_the_store(given: Mapping[str, Given], path: Path | None) -> list[str]:
    """Warn if a RocketMQ file relies on RocketMQ's default directory."""
    if _is_rocketmq(path) and "store.root" not in given:
        return [f"{path}: storePathRootDir is not given; RocketMQ would use ~/store, this broker uses {DEFAULT_STORE}"]
    return []


def _about_topics(given: Mapping[str, Given], path: Path | None) -> list[str]:
    """Warn that topics are not created automatically: messages to a misspelt topic would have no consumer."""
    if "auto_create_topics" in given:
        return []
    return [
        f"{path}: autoCreateTopicEnable is not given; RocketMQ would create a topic with its first message, this "
        "broker does so only with autoCreateTopicEnable=true"
    ]


def _about_copies(given: Mapping[str, Given], path: Path | None) -> list[str]:
    """Warn that a sync master waits for a slave, unlike RocketMQ 5's default."""
    role = given.get("role")
    if role is None or role.value != "SYNC_MASTER" or "replication.copies" in given:
        return []
    return [
        f"{path}: inSyncReplicas is not given; RocketMQ 5 would acknowledge what no slave has, this broker waits for "
        "one slave, as RocketMQ 4 does"
    ]


def _about_the_broker(config: BrokerConfig) -> list[str]:
    return [*_about_what_sends_wait_for(config), *_about_addresses(config)]


def _about_what_sends_wait_for(config: BrokerConfig) -> list[str]:
    asked, least = config.replication.copies, config.replication.min_in_sync
    if not asked or least <= asked:
        return []
    return [
        f"replication.min_in_sync (minInSyncReplicas) is {least}, and replication.copies (inSyncReplicas) {asked}: "
        f"the larger one wins, and a sync master waits for {least} copies"
    ]


def _about_addresses(config: BrokerConfig) -> list[str]:
    if is_loopback(config.listen_host) and not is_loopback(config.client_host):
        return [
            f"clients are told to connect to {config.client_host}, but the broker listens on {config.listen_host} "
            "only, where other machines cannot connect; set listen_host (bindAddress) and allow_public, or leave "
            "advertise_host (brokerIP1) out"
        ]
    return _about_listening(config.listen_host)


def _about_listening(host: str) -> list[str]:
    if is_loopback(host):
        return []
    return [f"listening on {host} without authentication: everybody who can connect may read, send and delete"]
