"""Addresses of places: the files below them, and their form in messages for people."""

from __future__ import annotations

import pytest

from pyromq.errors import ConfigError, StoreError
from pyromq.spark.jobs.backup.target import ArrowTarget, target_of
from pyromq.spark.lake.place import place_at
from pyromq.spark.segments.store_places import RemotePlace, below, directory_of, last_name, shown_place

KEYS = "s3://key:s3cr3t@bucket/broker-a?endpoint_override=http%3A%2F%2Flocalhost%3A9000"


@pytest.mark.parametrize(
    ("place", "inside", "shown"),
    [
        ("/data/backup", "/data/backup/log/1", "/data/backup"),
        ("/data/what?", "/data/what?/log/1", "/data/what?"),
        ("s3://bucket/a/", "s3://bucket/a/log/1", "s3://bucket/a/"),
        ("s3://bucket/a?region=x", "s3://bucket/a/log/1?region=x", "s3://bucket/a"),
        ("s3://bucket/a@b", "s3://bucket/a@b/log/1", "s3://bucket/a@b"),
        ("abfs://box@account/a", "abfs://box@account/a/log/1", "abfs://box@account/a"),
        ("abfs://box:s3cr3t@account/a", "abfs://box:s3cr3t@account/a/log/1", "abfs://box@account/a"),
        ("hdfs://:s3cr3t@host:9000/a", "hdfs://:s3cr3t@host:9000/a/log/1", "hdfs://host:9000/a"),
        (KEYS, KEYS.replace("broker-a", "broker-a/log/1"), "s3://bucket/broker-a"),
    ],
)
def test_a_name_in_a_place(place: str, inside: str, shown: str) -> None:
    assert below(place, "log/1") == inside
    assert below(place, "") == place
    assert (last_name(inside), directory_of(below(place, "log/2"))) == ("1", directory_of(inside))
    assert shown_place(place) == shown


def test_keys_are_never_shown() -> None:
    target = ArrowTarget(KEYS)
    said = [repr(target), str(target), target.shown(), target.shown("manifests/1")]
    for bad in ("nonsense://key:s3cr3t@bucket/x", "s3://key:s3cr3t@b/x?nonsense=z"):
        for open_it in (target_of, RemotePlace, place_at):
            with pytest.raises((ConfigError, StoreError)) as error:
                open_it(bad)
            said.append(str(error.value))
    assert [one for one in said if "s3cr3t" in one] == []


@pytest.mark.parametrize("uri", [KEYS, "s3://bucket/lake?region=x", "s3://key:s3cr3t@bucket/lake"])
def test_the_path_of_a_lake_has_no_keys_and_no_settings(uri: str) -> None:
    with pytest.raises(ConfigError, match="in the environment") as error:
        place_at(uri)
    assert "s3cr3t" not in str(error.value)
