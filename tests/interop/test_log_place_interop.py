"""A log in a directory of its own: Apache and we take turns on it, each after the other was killed."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from interop.support import ours
from interop.support.apache import ApacheCluster, message
from pyromq.model.message import Draft
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.inspect import detect
from pyromq.store.offline.verify import verify

pytestmark = pytest.mark.interop

TOPIC = "Orders"
COUNT = 200


def test_both_take_turns_on_a_log_elsewhere(tmp_path: Path) -> None:
    root, log = tmp_path / "store", tmp_path / "fast" / "log"
    config = replace(ours.config(root), commit_log=log)
    theirs = ApacheCluster(root, broker_conf={**ours.SAME_FILES, "storePathCommitLog": str(log)})
    with theirs:
        with theirs.referee() as referee:
            referee.create_topic(TOPIC, 1)
            referee.send(message(TOPIC, 0, b"theirs", keys=f"k{number}") for number in range(COUNT))
        theirs.kill()
    assert detect(root, commit_log=log).log_directory == log
    with MessageStore(config) as store:
        store.dispatch()
        assert store.max_offset(TOPIC, 0) == COUNT
        assert len(store.query(TOPIC, "k7")) == 1
        store.append([Draft(TOPIC.encode(), 0, b"ours") for _ in range(COUNT)])
    assert verify(root).findings == []
    with theirs:
        with theirs.referee() as referee:
            bodies = [base64.b64decode(each["bodyBase64"]) for each in referee.dump(TOPIC).messages]
        theirs.kill()
    assert bodies == [b"theirs"] * COUNT + [b"ours"] * COUNT
