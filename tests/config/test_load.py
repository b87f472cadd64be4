"""From a file, the environment and flags to a checked configuration, or to a sentence that says where it is wrong."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.config import BrokerConfig, NameServerConfig, ReplicationConfig
from pyromq.config.load import DEFAULT_DATA, DEFAULT_STORE, Loaded, load_broker, load_name_server
from pyromq.config.rocketmq_keys import BROKER_KEYS, NAME_SERVER_KEYS
from pyromq.config.rocketmq_names import KNOWN_TO_ROCKETMQ
from pyromq.errors import ConfigError


class Desk:
    """Writes files and loads them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def file(self, name: str, content: str | bytes) -> Path:
        path = self.directory / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    def conf(self, content: str | bytes, **overrides: object) -> Loaded[BrokerConfig]:
        return load_broker(self.file("broker.conf", content), environ={}, overrides=overrides)

    def toml(self, content: str | bytes, environ: dict[str, str] | None = None, **flags: object) -> BrokerConfig:
        return load_broker(self.file("broker.toml", content), environ=environ or {}, overrides=flags).config

    def names(self, content: str, file: str = "namesrv.conf") -> Loaded[NameServerConfig]:
        return load_name_server(self.file(file, content), environ={}, overrides={})


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


#: The keys that operators set most, as one broker's file.
BROKER_CONF = """
# moved over from another machine
brokerClusterName = DefaultCluster
brokerName = broker-b
brokerId = 0
brokerIP1 = 127.0.0.1
brokerRole = SYNC_MASTER
inSyncReplicas = 2
listenPort = 10921
namesrvAddr = 10.0.0.1:9876;10.0.0.2:9876
flushDiskType = SYNC_FLUSH
deleteWhen = 04;16
fileReservedTime = 48
diskMaxUsedSpaceRatio = 88
storePathRootDir = /data/rocketmq/store
storePathCommitLog = /data/rocketmq/store/commitlog/
mappedFileSizeCommitLog = 536870912
mappedFileSizeConsumeQueue = 6000000
autoCreateTopicEnable = true
defaultTopicQueueNums = 4
autoCreateSubscriptionGroup = true
enablePropertyFilter = false
maxMessageSize = 65536
messageDelayLevel = 1s 5s 1h
transactionTimeOut = 7000
transactionCheckMax = 3
transactionCheckInterval = 20000
transientStorePoolEnable = true
longPollingEnable = false
brokerPermission = 4
serverChannelMaxIdleTimeSeconds = 60
"""


#: The least content of a file that loads without a warning.
QUIET = "storePathRootDir=/s\nautoCreateTopicEnable=false\n"


def test_a_brokers_file_is_taken_as_it_is(desk: Desk) -> None:
    loaded = desk.conf(BROKER_CONF)
    config, store = loaded.config, loaded.config.store
    assert loaded.warnings == []
    assert (config.name, config.cluster, config.broker_id, config.role) == (
        "broker-b", "DefaultCluster", 0, "SYNC_MASTER",
    )  # fmt: skip
    assert (config.listen_port, config.advertise_host) == (10921, "127.0.0.1")
    assert config.name_servers == ("10.0.0.1:9876", "10.0.0.2:9876")
    assert store.flush.sync
    assert (store.retention.delete_hours, store.retention.max_age_hours) == ((4, 16), 48)
    assert store.retention.delete_above == 0.88
    assert (store.root, store.segment_bytes) == (Path("/data/rocketmq/store"), 512 * 1024 * 1024)
    assert store.queue_file_entries == 300_000
    assert (config.auto_create_topics, config.default_topic_queues, config.auto_create_groups) == (True, 4, True)
    assert (config.sql_filters, config.long_polling, config.permission) == (False, False, 4)
    assert (store.max_body_bytes, store.delay_levels, store.transient_pool) == (65536, "1s 5s 1h", True)
    assert (config.transaction.timeout_ms, config.transaction.check_max) == (7000, 3)
    assert config.transaction.check_interval_ms == 20_000
    assert config.limits.idle_close_ms == 60_000


def test_what_changes_nothing_is_named_in_one_warning(desk: Desk) -> None:
    loaded = desk.conf(QUIET + "sendMessageThreadPoolNums=8\nrocketmqHome=/opt/rocketmq\nhaMaxTimeSlaveNotCatchup=1")
    [warning] = loaded.warnings
    assert warning.endswith("change nothing here: haMaxTimeSlaveNotCatchup, rocketmqHome, sendMessageThreadPoolNums")


def test_a_constant_is_not_set_by_rocketmqs_key_nor_by_a_name_of_ours(desk: Desk) -> None:
    loaded = desk.conf(QUIET + "shortPollingTimeMills=5\nflushIntervalConsumeQueue=7")
    assert (loaded.config.short_poll_ms, loaded.config.store.flush.recover_point_interval_ms) == (1000, 1000)
    [warning] = loaded.warnings
    assert warning.endswith("change nothing here: flushIntervalConsumeQueue, shortPollingTimeMills")
    with pytest.raises(ConfigError, match="short_poll_ms"):
        load_broker(None, environ={}, overrides={"short_poll_ms": 5})
    with pytest.raises(ConfigError, match=r"short_poll_ms|SHORT_POLL_MS"):
        load_broker(None, environ={"PYROMQ_BROKER_SHORT_POLL_MS": "5"}, overrides={})


def test_the_keys_of_replication(desk: Desk) -> None:
    slave = desk.conf(
        QUIET + "brokerRole=SLAVE\nbrokerId=2\nhaListenPort=10999\nbrokerIP2=10.0.0.3\nhaMasterAddress=10.0.0.1:10912\n"
        "inSyncReplicas=3\nminInSyncReplicas=2\nallAckInSyncStateSet=true\nenableAutoInSyncReplicas=true\n"
        "slaveTimeout=2000\nhaSendHeartbeatInterval=1000\nhaHousekeepingInterval=4000\nhaTransferBatchSize=32768\n"
        "haMaxGapNotInSync=65536\nslaveReadEnable=true\naccessMessageInMemoryMaxRatio=50"
    )  # fmt: skip
    assert slave.warnings == []
    assert (slave.config.role, slave.config.broker_id, slave.config.copies) == ("SLAVE", 2, 1)
    assert desk.conf(QUIET + "brokerRole=SLAVE").config.broker_id == 1
    assert slave.config.replication == ReplicationConfig(
        listen_port=10999, advertise_host="10.0.0.3", primary="10.0.0.1:10912", copies=3, min_in_sync=2,
        all_in_sync=True, adapts=True, timeout_ms=2000, heartbeat_ms=1000, peer_timeout_ms=4000, batch_bytes=32768,
        max_gap_bytes=65536, read_from_slaves=True, memory_percent=50,
    )  # fmt: skip


def test_a_sync_master_waits_for_a_slave_and_says_so_where_rocketmq_would_not(desk: Desk) -> None:
    loaded = desk.conf(QUIET + "brokerRole=SYNC_MASTER")
    assert loaded.config.copies == 2
    assert [warning.partition(": ")[2] for warning in loaded.warnings] == [
        "inSyncReplicas is not given; RocketMQ 5 would acknowledge what no slave has, this broker waits for one slave, "
        "as RocketMQ 4 does"
    ]
    assert desk.conf(QUIET + "brokerRole=SYNC_MASTER\ninSyncReplicas=1").config.copies == 1
    assert desk.conf(QUIET + "inSyncReplicas=3").config.copies == 1


def test_nobody_asks_for_more_copies_than_there_are_brokers_and_of_two_numbers_the_larger_wins(desk: Desk) -> None:
    together = "brokerRole=SYNC_MASTER\ntotalReplicas=3\ninSyncReplicas=2\nminInSyncReplicas=2\n"
    loaded = desk.conf(QUIET + together)
    assert (loaded.config.copies, loaded.config.replication.total, loaded.warnings) == (2, 3, [])
    for key in ("inSyncReplicas", "minInSyncReplicas"):
        with pytest.raises(ConfigError, match=rf"\({key}\): .* = 4 cannot work: there are 3 brokers altogether"):
            desk.conf(QUIET + f"totalReplicas=3\n{key}=4")
    loaded = desk.conf(QUIET + "brokerRole=SYNC_MASTER\ninSyncReplicas=2\nminInSyncReplicas=5")
    assert loaded.config.copies == 5
    assert loaded.warnings == [
        "replication.min_in_sync (minInSyncReplicas) is 5, and replication.copies (inSyncReplicas) 2: the larger one "
        "wins, and a sync master waits for 5 copies"
    ]


def test_slaves_do_not_connect_to_the_port_of_clients(desk: Desk) -> None:
    with pytest.raises(ConfigError, match=r"haListenPort.*is the broker's own port"):
        desk.conf(QUIET + "listenPort=10911\nhaListenPort=10911")


def test_missing_protection_is_said_aloud(desk: Desk) -> None:
    [warning] = desk.conf(QUIET + "aclEnable=true\nenableDLegerCommitLog=true").warnings
    assert (
        "Beware: it asks for a log that is replicated by Raft (here slaves copy it: brokerRole) and authentication, "
        "which is not there"
    ) in warning
    [warning] = desk.conf(QUIET + "enableControllerMode=true").warnings
    assert "a controller that chooses masters (here `pyromq broker promote` does)" in warning
    [warning] = desk.conf(QUIET + "aclEnable=false").warnings
    assert "Beware" not in warning


def test_every_key_that_rocketmq_knows_is_accepted(desk: Desk) -> None:
    ours = {key.name for key in BROKER_KEYS}
    loaded = desk.conf(QUIET + "".join(f"{name}=1\n" for name in KNOWN_TO_ROCKETMQ - ours))
    assert len(loaded.warnings) == 1


def test_the_tables_use_names_that_rocketmq_has() -> None:
    assert {key.name for key in (*BROKER_KEYS, *NAME_SERVER_KEYS)} <= KNOWN_TO_ROCKETMQ


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("brokerNmae=x", r"broker.conf, line 1: RocketMQ has no setting brokerNmae; did you mean brokerName\?"),
        ("autocreatetopicenable=true", r"did you mean autoCreateTopicEnable\?"),
        ("zzzzqqqq=1", "RocketMQ has no setting zzzzqqqq$"),
        ("[store]", "give it the ending .toml"),
        ("listenPort=many", "line 1: listenPort = 'many' cannot work: it is a whole number"),
        ("listenPort=70000", r"broker.conf, line 1 \(listenPort\): listen_port = 70000 cannot work: a port is"),
        ("\nfileReservedTime=0", r"line 2 \(fileReservedTime\): retention.max_age_hours = 0 cannot work"),
        ("autoCreateTopicEnable=maybe", "it is true or false"),
        ("autoCreateTopicEnable=yes", "it is true or false here; RocketMQ takes every other word for false"),
        ("flushDiskType=LATER", "flushDiskType = 'LATER' cannot work: it is ASYNC_FLUSH or SYNC_FLUSH"),
        ("brokerRole=LEADER", "it is ASYNC_MASTER or SYNC_MASTER or SLAVE"),
        ("brokerRole=SLAVE\nbrokerId=0", r"line 2 \(brokerId\).*its slaves have numbers of their own from 1 on"),
        ("brokerId=1", r"line 1 \(brokerId\).*the master of a name has 0"),
        ("minInSyncReplicas=0", r"line 1 \(minInSyncReplicas\).*at least 1"),
        ("haTransferBatchSize=9000000", r"line 1 \(haTransferBatchSize\).*4193280 bytes"),
        ("haMasterAddress=elsewhere", r"line 1 \(haMasterAddress\).*host:port"),
        ("deleteWhen=25", r"line 1 \(deleteWhen\): .*an hour is 0 to 23"),
        ("deleteWhen=night", "deleteWhen = 'night' cannot work"),
        ("diskMaxUsedSpaceRatio=140", "it is a percentage, 0 to 100"),
        ("messageDelayLevel=1s soon", "'soon' is not a number followed by s, m, h or d"),
        ("storePathRootDir=${user.home}/store", "write the whole path"),
        ("storePathRootDir=$HOME/store", "write the whole path"),
        ("storePathRootDir=~/store", "write the whole path"),
        ("storePathRootDir=", "it is the path of a file or directory"),
        ("storePathCommitLog=$HOME/log", "write the whole path"),
        ("\nstorePathCommitLog=/b/log,/c/log", "line 2: .*the log is in one directory here; move the files of all"),
        ("storePathRootDir=/a\nstorePathCommitLog=/a", r"line 2 \(storePathCommitLog\): .*store directory /a is it or"),
        ("storePathRootDir=/a/b\nstorePathCommitLog=/a", "store directory /a/b is it or is in it"),
        ("storePathRootDir=/a\nstorePathCommitLog=/a/index/x", "index of /a is for other files"),
        ("namesrvAddr=10.0.0.1", "an address is host:port, and several are separated by ;"),
        ("bindAddress=0.0.0.0", "line 1 .*there is no authentication"),
        ("brokerName=\\u1", "broker.conf, line 1: "),
    ],
)
def test_a_line_that_cannot_work_is_named(desk: Desk, line: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        desk.conf(line)


def test_the_last_of_two_lines_counts_and_that_is_said(desk: Desk) -> None:
    loaded = desk.conf(QUIET + "listenPort=1\nlistenPort=2\n")
    assert loaded.config.listen_port == 2
    assert loaded.warnings == [
        f"{loaded.source}: listenPort is given more than once (lines 3 and 4); the last one counts"
    ]


def test_ratios_outside_rocketmqs_range_are_brought_into_it(desk: Desk) -> None:
    retention = desk.conf("diskMaxUsedSpaceRatio=99\ndiskSpaceWarningLevelRatio=60").config.store.retention
    assert (retention.delete_above, retention.refuse_at, retention.resume_below) == (0.95, 0.6, 0.55)


def test_a_file_without_a_directory_does_not_use_rocketmqs_silently(desk: Desk) -> None:
    loaded = desk.conf("brokerName=a")
    assert loaded.config.store.root == DEFAULT_STORE
    assert "RocketMQ would use ~/store" in loaded.warnings[0]


def test_a_moved_broker_keeps_its_groups_and_is_told_about_its_topics(desk: Desk) -> None:
    loaded = desk.conf("storePathRootDir=/s\n")
    assert (loaded.config.auto_create_groups, loaded.config.auto_create_topics) == (True, False)
    [warning] = loaded.warnings
    assert "autoCreateTopicEnable is not given; RocketMQ would create" in warning
    assert not desk.conf(QUIET + "autoCreateSubscriptionGroup=false").config.auto_create_groups
    assert desk.conf("storePathRootDir=/s\nautoCreateTopicEnable=true").warnings == []
    assert not desk.toml("").auto_create_groups


def test_a_programs_own_defaults_give_way_to_everything(desk: Desk) -> None:
    file = desk.file("broker.toml", "auto_create_topics = false\n")
    defaults = {"auto_create_topics": True, "auto_create_groups": True, "store.root": Path("/d")}
    config = load_broker(file, environ={}, overrides={}, defaults=defaults).config
    assert (config.auto_create_topics, config.auto_create_groups, config.store.root) == (False, True, Path("/d"))


def test_a_directory_from_a_flag_goes_with_the_files_own_log_directory(desk: Desk) -> None:
    loaded = desk.conf("storePathRootDir=/a\nstorePathCommitLog=/a/commitlog", **{"store.root": Path("/b")})
    assert loaded.config.store.log_directory == Path("/b/commitlog")


def test_a_log_on_a_disk_of_its_own_stays_there(desk: Desk, tmp_path: Path) -> None:
    text = "storePathRootDir=/a\nstorePathCommitLog=/fast/log\n"
    for store in (desk.conf(text).config.store, desk.conf(text, **{"store.root": Path("/b")}).config.store):
        assert (store.log_directory, store.log_is_apart) == (Path("/fast/log"), True)
    assert desk.toml('[store]\nroot = "/a"\ncommit_log = "/fast/log"\n').store == desk.conf(text).config.store
    by_variable = {"PYROMQ_BROKER_STORE__COMMIT_LOG": "/fast/log", "PYROMQ_BROKER_STORE__ROOT": "/a"}
    assert desk.toml("", by_variable).store.log_directory == Path("/fast/log")


def test_a_log_directory_that_is_the_usual_one_by_another_name_is_not_apart(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "store" / "commitlog")
    for name in (tmp_path / "link", f"{tmp_path}/store/../store/commitlog/", ""):
        store = desk.conf(f"storePathRootDir={tmp_path}/store\nstorePathCommitLog={name}\n").config.store
        assert not store.log_is_apart


def test_an_address_that_clients_cannot_reach_is_warned_about(desk: Desk) -> None:
    [warning] = desk.conf(QUIET + "brokerIP1=203.0.113.7").warnings
    assert "clients are told to connect to 203.0.113.7, but the broker listens on 127.0.0.1 only" in warning
    [warning] = desk.conf(QUIET + "bindAddress=0.0.0.0", allow_public=True).warnings
    assert warning.startswith("listening on 0.0.0.0 without authentication")


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfbrokerName=x\r\nregionId=gr\xc3\xbcn\r\n",  # UTF-8 with a byte-order mark, from Windows
        b"brokerName=x\nregionId=gr\xfcn",  # Latin-1, as Java reads it
        b"brokerName : x\nregionId gr\\u00fcn",
    ],
)
def test_encodings_and_line_ends(desk: Desk, content: bytes) -> None:
    config = desk.conf(content).config
    assert (config.name, config.region) == ("x", "grün")


def test_a_licence_in_an_xml_comment_is_skipped(desk: Desk) -> None:
    loaded = desk.names("<!--\n  Licensed to somebody\n-->\nlistenPort = 9878\n")
    assert loaded.config.listen_port == 9878
    with pytest.raises(ConfigError, match="line 3: RocketMQ has no setting listenPrt"):
        desk.names("<!--\n-->\nlistenPrt = 1\n")


# --- TOML --------------------------------------------------------------------------------------------------------


def test_toml_has_the_names_of_the_dataclasses(desk: Desk) -> None:
    config = desk.toml(
        'name = "b"\nname_servers = ["a:1", "b:2"]\n[transaction]\ncheck_max = 2\n'
        '[store]\nroot = "/data"\n[store.flush]\nsync = true\n[store.retention]\nmax_age_hours = 1.5\n'
        "delete_hours = [4]\n"
    )
    assert (config.name, config.name_servers, config.transaction.check_max) == ("b", ("a:1", "b:2"), 2)
    assert config.store.root == Path("/data")
    assert config.store.flush.sync
    assert (config.store.retention.max_age_hours, config.store.retention.delete_hours) == (1.5, (4,))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('nmae = "x"', r"broker.toml, line 1: there is no setting nmae; did you mean name\?"),
        ("listenPort = 1", "listenPort is RocketMQ's name for listen_port"),
        (
            "[store.flush]\nsynch = true",
            r"line 2: there is no setting store.flush.synch; did you mean store.flush.sync\?",
        ),
        ("[store.flush]\ncolour = 1", "there is no setting store.flush.colour$"),
        ("[stor]\nroot = '/x'", r"broker.toml, line 1: there is no setting stor"),
        ("store = 1", "store is a table; write its settings below"),
        ('listen_port = "many"', "line 1: listen_port = 'many' cannot work: it is a whole number"),
        ("listen_port = true", "it is a whole number"),
        ("name = 1", "name = 1 cannot work: it is text, in quotes"),
        ("auto_create_topics = 1", "it is true or false"),
        ("name_servers = [1]", "it is a list of texts"),
        ("[store]\nroot = '$HOME'", "line 2: store.root = '\\$HOME' cannot work: .*write the whole path"),
        ("[store.flush]\ninterval_ms = 0", "line 2: flush.interval_ms = 0 cannot work: it must be above 0"),
        ("[limits]\nmax_connections = 0", "line 2: limits.max_connections = 0"),
        ("a = \n", "is not TOML: .*line 1"),
        ("[store.retention]\nmax_age_hours = inf", "it is a number"),
    ],
)
def test_toml_that_cannot_work_is_named(desk: Desk, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        desk.toml(text)


def test_toml_is_utf8(desk: Desk) -> None:
    assert desk.toml(b'\xef\xbb\xbfname = "x"\r\n').name == "x"
    with pytest.raises(ConfigError, match="line 2: TOML is UTF-8, and byte 0xfc is not"):
        desk.toml(b'name = "x"\nregion = "gr\xfcn"')


# --- environment and flags ---------------------------------------------------------------------------------------


def test_flags_win_over_environment_over_file(desk: Desk) -> None:
    text = "listen_port = 1\n[store]\nroot = '/file'\n"
    environ = {"PYROMQ_BROKER_LISTEN_PORT": "2", "PYROMQ_BROKER_STORE__FLUSH__SYNC": "true"}
    config = desk.toml(text, environ)
    assert (config.listen_port, config.store.flush.sync, config.store.root) == (2, True, Path("/file"))
    assert desk.toml(text, environ, listen_port=3).listen_port == 3
    assert desk.toml(text, environ, listen_port=None).listen_port == 2


def test_without_a_file_there_are_defaults() -> None:
    loaded = load_broker(None, environ={"HOME": "/root", "PYROMQ_KERNEL": "python"}, overrides={})
    assert loaded.config.store.root == DEFAULT_STORE
    assert (loaded.warnings, loaded.source) == ([], None)


def test_rocketmqs_variable_gives_name_servers(desk: Desk) -> None:
    environ = {"NAMESRV_ADDR": "a:1;b:2"}
    assert desk.toml('name_servers = ["c:3"]', environ).name_servers == ("a:1", "b:2")
    environ["PYROMQ_BROKER_NAME_SERVERS"] = "d:4, e:5"
    assert desk.toml("", environ).name_servers == ("d:4", "e:5")


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"PYROMQ_BROKER_LISTEN_PROT": "1"}, r"LISTEN_PROT; did you mean PYROMQ_BROKER_LISTEN_PORT\?"),
        ({"PYROMQ_BROKER_PORT": "10911"}, "PYROMQ_BROKER_PORT; did you mean PYROMQ_BROKER_LISTEN_PORT"),
        ({"PYROMQ_BROKER_STORE__ROTO": "/x"}, r"did you mean PYROMQ_BROKER_STORE__ROOT\?"),
        ({"PYROMQ_BROKER_COLOUR": "red"}, r"for the environment variable PYROMQ_BROKER_COLOUR$"),
        ({"PYROMQ_BROKER_LISTEN_PORT": "x"}, "environment variable PYROMQ_BROKER_LISTEN_PORT: .*whole number"),
        ({"PYROMQ_BROKER_PERMISSION": "9"}, "environment variable PYROMQ_BROKER_PERMISSION: permission = 9"),
        ({"NAMESRV_ADDR": "nowhere"}, "environment variable NAMESRV_ADDR: .*host:port"),
    ],
)
def test_a_variable_that_cannot_work_is_named(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_broker(None, environ=environ, overrides={})


def test_empty_variables_and_those_of_kubernetes_are_left_alone() -> None:
    environ = {
        "PYROMQ_BROKER_ADVERTISE_HOST": "",
        "PYROMQ_BROKER_SERVICE_HOST": "10.0.0.1",
        "PYROMQ_BROKER_PORT": "tcp://10.0.0.1:10911",
        "PYROMQ_BROKER_PORT_10911_TCP_ADDR": "10.0.0.1",
    }
    assert load_broker(None, environ=environ, overrides={}).config.advertise_host is None


def test_a_flag_that_is_no_setting_is_a_mistake_of_ours() -> None:
    with pytest.raises(ConfigError, match=r"there is no setting store.rot; did you mean store.root\?"):
        load_broker(None, environ={}, overrides={"store.rot": "x"})
    with pytest.raises(ConfigError, match="command line: listen_port = 70000 cannot work"):
        load_broker(None, environ={}, overrides={"listen_port": 70_000})


# --- files that are not what they should be ----------------------------------------------------------------------


def test_files_that_cannot_be_read(desk: Desk) -> None:
    cases: list[tuple[Path, str]] = [
        (desk.directory / "missing.conf", "there is no file .*missing.conf; check the name"),
        (desk.directory, "is a directory; give the file"),
        (desk.file("utf16.conf", "brokerName=x".encode("utf-16")), "is not UTF-8 text"),
        (desk.file("image.conf", b"\x89PNG\0\0"), "is not UTF-8 text"),
        (desk.file("big.conf", b"#" * (1024 * 1024 + 1)), "larger than 1 MiB"),
    ]
    for path, sentence in cases:
        with pytest.raises(ConfigError, match=sentence):
            load_broker(path, environ={}, overrides={})


def test_a_file_that_may_not_be_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patched and not chmod: the tests may run as root, who may read everything."""
    path = desk.file("secret.conf", "")

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match=r"secret.conf cannot be read: Permission denied"):
        load_broker(path, environ={}, overrides={})


@given(st.binary(max_size=200), st.sampled_from([".conf", ".toml"]))
def test_any_bytes_give_settings_or_a_sentence(tmp_path_factory: Any, content: bytes, suffix: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(content)
    with contextlib.suppress(ConfigError):
        load_broker(path, environ={}, overrides={})


# --- name server -------------------------------------------------------------------------------------------------


def test_a_name_servers_file(desk: Desk) -> None:
    loaded = desk.names("listenPort=9877\nkvConfigPath=/ns/kv.json\norderMessageEnable=true\nclusterTest=false")
    assert (loaded.config.listen_port, loaded.config.kv_config_path) == (9877, Path("/ns/kv.json"))
    assert loaded.config.order_messages_enabled
    [warning] = loaded.warnings
    assert warning.endswith("change nothing here: clusterTest")


def test_a_name_server_from_toml_environment_and_flags(desk: Desk) -> None:
    assert desk.names("[limits]\nmax_connections = 5", "ns.toml").config.limits.max_connections == 5
    environ = {"PYROMQ_NAMESERVER_LISTEN_PORT": "1", "PYROMQ_BROKER_LISTEN_PORT": "2"}
    loaded = load_name_server(None, environ=environ, overrides={"broker_expiry_ms": 7})
    assert (loaded.config.listen_port, loaded.config.broker_expiry_ms) == (1, 7)
    assert loaded.config.kv_config_path == DEFAULT_DATA / "nameserver-1" / "kvConfig.json"  # one for each port


def test_a_brokers_file_given_to_a_name_server_is_warned_about(desk: Desk) -> None:
    [warning] = desk.names("brokerName=a\nstorePathCommitLog=/x").warnings
    assert warning.endswith("change nothing here: brokerName, storePathCommitLog")
