"""A broker's figures and settings over the network: those shown, those that may be changed, and those that may not."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import Any

import orjson
import pytest

from broker.support.admin_parts import AdminParts
from pyromq.broker.idempotence.sequences import Numbered, Stream
from pyromq.broker.settings import FILE
from pyromq.broker.statistics.runtime_info import bytes_text, distribution, runtime_text
from pyromq.clock import ManualClock
from pyromq.config import BrokerConfig, RetentionConfig
from pyromq.config.properties import parse_properties
from pyromq.config.runtime import RUNTIME_SETTINGS
from pyromq.errors import BadRequest, ConfigError, NotNow
from pyromq.metrics import Histogram
from pyromq.wire.requests import admin as ask


def change(text: str) -> ask.UpdateBrokerConfig:
    return ask.UpdateBrokerConfig(body=text.encode())


def told_settings(parts: AdminParts) -> dict[str, str]:
    answer = parts.ask(ask.GetBrokerConfig())
    assert isinstance(answer, ask.BrokerConfigAnswer)
    return {entry.key: entry.value for entry in parse_properties(bytes(answer.body).decode())}  # type: ignore[arg-type]


# --- settings --------------------------------------------------------------------------------------------------------


def test_settings_are_told_under_the_names_that_tools_know() -> None:
    parts = AdminParts()
    settings = told_settings(parts)
    assert (settings["brokerName"], settings["listenPort"], settings["brokerIP1"]) == ("broker-a", "10911", "127.0.0.1")
    answer = parts.ask(ask.GetBrokerConfig())
    assert isinstance(answer, ask.BrokerConfigAnswer)
    assert orjson.loads(answer.version)["counter"] == 0


def test_an_allowed_setting_is_changed_persisted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    parts = AdminParts()
    heard: list[BrokerConfig] = []
    parts.settings.on_change.append(heard.append)
    with caplog.at_level(logging.WARNING):
        assert parts.ask(change("autoCreateTopicEnable=true\nfileReservedTime=5\n")).code == 0
    assert parts.settings.current().auto_create_topics
    assert parts.settings.current().store.retention.max_age_hours == 5
    assert heard == [parts.settings.current()]
    assert "10.9.8.7:5555 changed settings: autoCreateTopicEnable = true, fileReservedTime = 5" in caplog.text
    assert told_settings(parts)["autoCreateTopicEnable"] == "true"
    assert parts.settings.version.counter == 1

    again = AdminParts(parts.disk.kill(), parts.clock)
    assert again.settings.current() == parts.settings.current(), "a killed broker has them at its next start"
    again.ask(change("fileReservedTime=9"))
    third = AdminParts(again.disk.kill(), parts.clock)
    assert third.settings.current().auto_create_topics
    assert third.settings.current().store.retention.max_age_hours == 9
    assert third.settings.version.counter == 2


REFUSED = [
    # Settings by which a client on the network could run programs or write files.
    "rocketmqHome=-c $@|sh . echo touch x;\nfilterServerNums=1",
    "rocketmqHome=/tmp/x",
    "brokerConfigPath=/tmp/evil.conf",
    "configStorePath=/root/.ssh/authorized_keys",
    "storePathRootDir=/tmp",
    "storePathCommitLog=/tmp",
    "configBlackList=",
    "filterServerNums=1",
    # Settings of a start.
    "listenPort=1",
    "brokerIP1=10.0.0.1",
    "namesrvAddr=evil.example:9876",
    "brokerName=other",
    "flushDiskType=SYNC_FLUSH",
    # Unknown settings, and invalid values.
    "noSuchSetting=1",
    "autoCreateTopicEnable=perhaps",
    "fileReservedTime=0",
    "fileReservedTime=1e3",
    "brokerPermission=7",
    "a\\nb=1",
]


@pytest.mark.parametrize("text", [*REFUSED, *(f"traceOn=false\n{text}" for text in REFUSED)])
def test_everything_else_is_refused_by_name_and_changes_nothing(text: str, caplog: pytest.LogCaptureFixture) -> None:
    parts = AdminParts()
    before = parts.settings.current()
    with caplog.at_level(logging.WARNING):
        answer = parts.ask(change(text))
    assert answer.code == ConfigError.code
    named = [entry.key for entry in parse_properties(text)]
    assert any(key in str(answer.reason) for key in named)
    assert parts.settings.current() is before
    assert not parts.disk.exists(parts.store.paths.config / FILE)
    assert "10.9.8.7:5555 wanted to change settings" in caplog.text
    assert all("\n" not in entry.getMessage() for entry in caplog.records), "nobody writes lines into the log"


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a=\\u12", b"\n".join(b"k%d=1" % n for n in range(300))])
def test_what_is_no_list_of_settings_is_refused(body: bytes) -> None:
    parts = AdminParts()
    assert parts.ask(ask.UpdateBrokerConfig(body=body)).code == BadRequest.code
    assert parts.ask(ask.UpdateBrokerConfig(body=b"")).code == 0, "nothing is wanted, and nothing happens"


def test_a_change_that_cannot_be_written_does_not_hold() -> None:
    parts = AdminParts()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    parts.settings._file.save = full  # type: ignore[method-assign]
    answer = parts.ask(change("traceOn=false"))
    assert answer.code == NotNow.code
    assert parts.settings.current().trace_on


def test_a_persisted_change_that_no_longer_fits_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    parts = AdminParts()
    parts.settings._file.save({"settings": {"traceOn": "false", "gone": "1"}, "dataVersion": {"counter": 4}})
    with caplog.at_level(logging.WARNING):
        parts.close()
        again = AdminParts(parts.disk, parts.clock)
    assert not again.settings.current().trace_on
    assert "gone = '1'" in caplog.text


def test_two_changes_at_once_both_hold() -> None:
    parts = AdminParts()

    async def story() -> None:
        await asyncio.gather(parts.answer(change("traceOn=false")), parts.answer(change("longPollingEnable=false")))

    asyncio.run(story())
    assert not parts.settings.current().trace_on
    assert not parts.settings.current().long_polling


def test_every_setting_of_the_allow_list_can_be_changed_here() -> None:
    parts = AdminParts()
    for setting in RUNTIME_SETTINGS:
        current = told_settings(parts)[setting.key]
        assert parts.ask(change(f"{setting.key}={current}")).code == 0


# --- figures ---------------------------------------------------------------------------------------------------------


def test_runtime_figures_have_the_names_and_forms_that_tools_parse() -> None:
    parts = AdminParts()
    parts.make_topic()
    start_ms = parts.time.now_ms()
    parts.send(5)
    parts.statistics.sent("orders", 50, 5000)
    parts.statistics.got("shop", "orders", 20, 2000)
    parts.statistics.got_nothing()
    parts.delay_offsets.commit(2, 1)
    parts.send(3, "SCHEDULE_TOPIC_XXXX", queue=1)
    figures = parts.told(ask.GetRuntimeInfo())["table"]
    assert figures["brokerActive"] == "true"
    assert figures["brokerVersionDesc"] == "V5_5_0"
    assert figures["bootTimestamp"] == str(start_ms)
    assert figures["earliestMessageTimeStamp"] == str(start_ms)
    assert figures["runtime"] == "[ 0 days, 0 hours, 0 minutes, 8 seconds ]"
    assert figures["msgPutTotalTodayNow"] == figures["putMessageTimesTotal"] == "50"
    assert figures["msgGetTotalTodayNow"] == "20"
    assert figures["putMessageAverageSize"] == "100.0"
    assert figures["scheduleMessageOffset_2"] == "1,3"
    assert figures["commitLogMaxOffset"] == str(parts.store.marks.appended.value)
    assert figures["remainHowManyDataToFlush"].endswith("B")
    assert 0 <= float(figures["commitLogDiskRatio"]) <= 1
    for name in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps"):
        assert len([float(word) for word in figures[name].split(" ")]) == 3
    assert figures["getTotalTps"] == "0.2 0.2 0.2"
    assert figures["putMessageDistributeTime"].startswith("[<=0ms]:8 [0~10ms]:0 ")
    for name in ("sendThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills", "timerReadBehind"):
        int(figures[name])


def test_a_broker_says_that_its_clock_has_jumped_and_nothing_expires() -> None:
    parts = AdminParts()
    parts.make_topic()
    parts.send(5)
    parts.store.clean()
    assert parts.told(ask.GetRuntimeInfo())["table"]["pyromq.retentionPaused"] == ""
    parts.time.jump(80 * 3600)
    parts.store.clean()
    assert "80.0 hours ahead" in parts.told(ask.GetRuntimeInfo())["table"]["pyromq.retentionPaused"]


def test_a_broker_says_that_it_knows_writers_that_number_their_messages() -> None:
    parts = AdminParts()
    parts.writers.sequences.stored([(Numbered(Stream(b"orders", 0, b"w"), 0, 0), 0)], 0)
    parts.numbered.repeats = 7
    figures = parts.told(ask.GetRuntimeInfo())["table"]
    names = ("pyromq.idempotentWriters", "pyromq.writersRemembered", "pyromq.repeatsDropped")
    assert [figures[name] for name in names] == ["true", "1", "7"]


def test_a_broker_says_how_long_the_disk_takes_and_what_a_crash_would_leave_to_scan() -> None:
    parts = AdminParts()
    parts.send(5)
    end = parts.store.marks.appended.value
    assert parts.told(ask.GetRuntimeInfo())["table"]["pyromq.recoverBytes"] == str(end)
    seconds = parts.store.telemetry.histogram("pyromq_store_flush_seconds")
    parts.store.flush()
    parts.store.save_recover_point()
    figures = parts.told(ask.GetRuntimeInfo())["table"]
    assert figures["pyromq.recoverBytes"] == "0"
    assert int(figures["pyromq.flushes"]) == seconds.count == 1
    for name in ("Last", "Mean", "P99", "Max"):
        assert float(figures[f"pyromq.flush{name}Ms"]) == round(seconds.total * 1000, 2)


def test_an_empty_broker_has_figures_too() -> None:
    figures = AdminParts().told(ask.GetRuntimeInfo())["table"]
    assert (figures["earliestMessageTimeStamp"], figures["putMessageTimesTotal"]) == ("-1", "0")


def test_how_times_and_sizes_are_written() -> None:
    assert runtime_text(90_061_000) == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert [bytes_text(size) for size in (0, 1023, 1536, 3 << 30)] == ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]
    times = Histogram()
    for seconds in (0.0005, 0.001, 0.002, 0.03, 0.7, 60):
        times.record(seconds)
    counts = dict(word.rsplit(":", 1) for word in distribution(times).split())
    assert counts["[<=0ms]"] == "2"
    assert counts["[0~10ms]"] == counts["[10~50ms]"] == counts["[500ms~1s]"] == counts["[10s~]"] == "1"


def test_rates_by_name_and_key() -> None:
    parts = AdminParts()
    parts.statistics.sent("orders", 60, 6000)
    parts.time.advance(30)
    told = parts.told(ask.ViewStats(name="TOPIC_PUT_NUMS", key="orders"))
    assert told["statsMinute"] == {"sum": 60, "tps": 2.0, "avgpt": 60.0}
    assert told["statsDay"]["sum"] == 60
    assert parts.told(ask.ViewStats(name="TOPIC_PUT_SIZE", key="orders"))["statsMinute"]["sum"] == 6000
    unknown = parts.ask(ask.ViewStats(name="TOPIC_PUT_NUMS", key="none"))
    assert (unknown.code, unknown.reason) == (1, "The stats <TOPIC_PUT_NUMS> <none> not exist")


# --- cleaning --------------------------------------------------------------------------------------------------------


def test_expired_messages_go_at_once_when_that_is_asked_for() -> None:
    other_hour = (datetime.fromtimestamp(ManualClock().now_ms() / 1000 + 80 * 3600).astimezone().hour + 12) % 24
    retention = RetentionConfig(delete_hours=(other_hour,))
    parts = AdminParts(store={"segment_bytes": 4096, "retention": retention})
    parts.make_topic()
    parts.send(100)
    parts.store.flush()
    parts.time.advance(80 * 3600)
    start = parts.store.log.files.start
    assert parts.ask(ask.CleanExpiredQueues()).code == 0
    assert parts.store.log.files.start == start, "expired, and not at this hour"
    assert parts.ask(ask.DeleteExpiredLog()).code == 0
    assert parts.store.log.files.start > start
    assert parts.ask(ask.TriggerDeleteFiles()).code == 0


# --- copies ----------------------------------------------------------------------------------------------------------


def test_a_broker_without_copies_says_so() -> None:
    parts = AdminParts()
    parts.make_topic()
    parts.send(3)
    told = parts.told(ask.GetReplication())
    assert (told["master"], told["inSyncSlaveNums"], told["haConnectionInfo"]) == (True, 0, [])
    assert told["masterCommitLogMaxOffset"] == parts.store.marks.appended.value > 0
    assert told["haClientRuntimeInfo"]["activated"] is False
