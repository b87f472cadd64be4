"""The other brokers of a name, from `replication.members`: ID@HOST:PORT."""

from __future__ import annotations

from typing import NamedTuple

from pyromq.config.checks import require, require_address

SETTING = "replication.members"


class ConfiguredMember(NamedTuple):
    """The broker id and the broker address (not the replication address) of another broker of this name."""

    broker_id: int
    address: str

    @property
    def host(self) -> str:
        host = self.address.rpartition(":")[0]
        return host[1:-1] if host.startswith("[") else host


def parse_member(text: str) -> ConfiguredMember:
    """Raises ConfigError."""
    number, at, address = text.partition("@")
    require(
        at == "@" and number.isascii() and number.isdigit() and len(number) <= 10,
        SETTING,
        text,
        "a member is ID@HOST:PORT, its broker id and its address, such as 1@10.0.0.2:10911",
    )
    require_address(SETTING, address)
    return ConfiguredMember(int(number), address)


def parse_members(texts: tuple[str, ...]) -> tuple[ConfiguredMember, ...]:
    """Parse all members. Raises ConfigError if one is malformed, or two are the same broker."""
    members = tuple(parse_member(one) for one in texts)
    for names, meaning in (([one.broker_id for one in members], "id"), ([one.address for one in members], "address")):
        require(len(set(names)) == len(names), SETTING, texts, f"two members have the same {meaning}")
    return members
