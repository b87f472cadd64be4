"""Other brokers of a name in the settings."""

from __future__ import annotations

import pytest

from pyromq.config import ReplicationConfig
from pyromq.config.members import ConfiguredMember
from pyromq.errors import ConfigError


def test_members_have_an_id_and_an_address() -> None:
    settings = ReplicationConfig(members=("0@10.0.0.1:10911", "2@[fe80::1]:10911"))
    assert settings.configured_members == (
        ConfiguredMember(0, "10.0.0.1:10911"),
        ConfiguredMember(2, "[fe80::1]:10911"),
    )
    assert [one.host for one in settings.configured_members] == ["10.0.0.1", "fe80::1"]


@pytest.mark.parametrize(
    "members",
    [("h:1",), ("a@h:1",), ("-1@h:1",), ("1@h",), ("1@h:0",), ("1@h:1", "1@i:1"), ("1@h:1", "2@h:1")],
)  # fmt: skip
def test_a_malformed_or_repeated_member_is_refused(members: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"replication\.members"):
        ReplicationConfig(members=members)
