"""`pyromq up`, `pyromq nameserver` and `pyromq broker` as real processes: how they start, speak and end."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.support.programs import (
    SECONDS,
    Program,
    command,
    environment,
    last_processor_seconds,
    name_server_of,
    run,
    up,
)  # fmt: skip
from late import in_time
from pyromq.cli.servers import serve
from pyromq.cli.servers.logs import LogFormat, LogLevel, start_logging
from pyromq.config import BrokerConfig, ReplicationConfig, StoreConfig
from pyromq.errors import ConfigError
from pyromq.testing.brokers.ports import free_port

LINUX = sys.platform == "linux"


@pytest.fixture
def taken() -> Any:
    """A port that somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


# --- up --------------------------------------------------------------------------------------------------------------


def test_the_lines_that_up_prints_work_and_messages_outlive_it(tmp_path: Path) -> None:
    with up(tmp_path) as first:
        first.until("Ctrl-C stops")
        for word in ("PyroMQ is up", "name server  127.0.0.1:", "broker       127.0.0.1:", "pyromq-data/store"):
            assert word in first.out
        [line] = re.findall(r"^  (pyromq .+)$", first.out, re.MULTILINE)
        send, consume = [shlex.split(command)[1:] for command in line.split(" && ")]
        assert run(*send, cwd=tmp_path).code == 0
        assert run(*consume, cwd=tmp_path).out == "queue 0 offset 0  my first message\n"
        assert first.stop(signal.SIGINT) == 0
        assert first.out.endswith("Stopped cleanly.\n")
        assert first.err == ""
    with up(tmp_path) as second:
        name_server = name_server_of(second)
        again = run("consume", "hello", "--count", "1", "-n", name_server, cwd=tmp_path)
        assert again.out == "queue 0 offset 0  my first message\n"
        assert second.stop(signal.SIGTERM) == 0
    assert not (tmp_path / "pyromq-data" / "store" / "abort").exists()


@pytest.mark.skipif(not LINUX, reason="reads the processor time from /proc")
def test_a_start_takes_less_than_a_second_of_work(tmp_path: Path) -> None:
    """Processor time and not the clock: the machine may be busy with something else."""
    with up(tmp_path) as program:
        program.until(serve.READY)
        in_time(last_processor_seconds(program.process.pid), 1.0)
        assert program.stop() == 0


def test_a_server_goes_on_when_nobody_reads_what_it_says(tmp_path: Path) -> None:
    arguments = command(["up", "--nameserver-port", "0", "--broker-port", "0", "--log-level", "info"])
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=environment(), stdout=writing, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(writing)
        assert process.stderr
        for line in process.stderr:
            if "registered with" in line:
                process.send_signal(signal.SIGTERM)
                break
        process.communicate(timeout=SECONDS)
        assert process.returncode == 0


def test_settings_of_up_come_from_options_environment_and_file(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text('name = "from-file"\nauto_create_topics = false\n', encoding="utf-8")
    options = ("--config", "broker.toml", "--data-dir", "elsewhere", "--log-level", "info")
    with up(tmp_path, *options, PYROMQ_BROKER_CLUSTER="from-environment") as program:
        refused = run("send", "orders", "x", "-n", name_server_of(program), cwd=tmp_path)
        assert (refused.code, refused.err.startswith("error: no broker has the topic 'orders'")) == (1, True)
        assert program.stop() == 0
    assert (tmp_path / "elsewhere" / "store" / "commitlog").parent.exists()
    assert not (tmp_path / "pyromq-data").exists()


# --- slaves ----------------------------------------------------------------------------------------------------------


def test_a_slave_that_is_told_of_no_name_server_asks_the_one_of_this_machine_and_says_so(tmp_path: Path) -> None:
    with Program("broker", "--role", "SLAVE", "--port", "0", cwd=tmp_path) as program:
        program.until("no name server is given: asking the one of this machine, 127.0.0.1:9876, where the master of")
        program.until(serve.READY)
        assert program.stop() == 0


def test_two_commands_are_a_pair_although_nothing_in_the_environment_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port where everybody looks may be taken here: the default is set to another one, as nobody could outside."""
    with up(tmp_path, "--role", "sync-master") as master:
        names = name_server_of(master)
        monkeypatch.setattr(serve, "DEFAULT_NAME_SERVER", names)
        root = StoreConfig(root=tmp_path / "copy")
        alone = BrokerConfig(role="SLAVE", broker_id=1, store=root)
        assert serve._with_a_name_server(alone).name_servers == (names,)
        with Program("broker", "--role", "slave", "--port", "0", "--store", "copy", "-n", names, cwd=tmp_path) as slave:
            slave.until("copying the log of")
            assert run("send", "orders", "in both logs", "-n", names, cwd=tmp_path).code == 0
            assert "in sync: 1" in run("cluster", "-n", names, cwd=tmp_path).out
            third = Program("broker", "--role", "slave", "--port", "0", "--store", "third", "-n", names, cwd=tmp_path)
            with third:
                third.until("the broker id 1 is taken by another broker of this name: this slave has the id 2")
                third.until("copying the log of")
                assert third.stop() == 0
            assert "not supported here" not in slave.err
            assert slave.stop() == 0
        assert master.stop() == 0


def test_whoever_was_told_where_its_master_is_asks_nobody_else() -> None:
    store = StoreConfig(root=Path("store"))
    told = BrokerConfig(role="SLAVE", broker_id=1, store=store, replication=ReplicationConfig(primary="10.0.0.1:10912"))
    for config in (told, BrokerConfig(store=store), BrokerConfig(store=store, name_servers=("10.0.0.1:9876",))):
        assert serve._with_a_name_server(config) is config


def test_up_starts_no_slave_that_has_nobody_to_copy_and_no_store_in_a_store(tmp_path: Path) -> None:
    assert "start the slave with `pyromq broker --role slave`" in refused(tmp_path, "up", "--role", "slave")
    (tmp_path / "restored" / "commitlog").mkdir(parents=True)
    said = refused(tmp_path, "up", "--data-dir", "restored")
    assert said.startswith("restored is itself a store")
    assert "`pyromq broker --store restored`" in said
    wrong = run("up", "--role", "king", cwd=tmp_path)
    assert (wrong.code, "'king' is none of" in wrong.err) == (2, True)


# --- what keeps a server from starting -------------------------------------------------------------------------------


def refused(home: Path, *arguments: str | Path, **more: str) -> str:
    """The one sentence of a command that ends with 1."""
    done = run(*arguments, cwd=home, **more)
    assert done.code == 1, done
    assert done.out == ""
    *warnings, error = done.err.splitlines()
    assert error.startswith("error: ")
    assert all(" WARNING " in line or " INFO " in line for line in warnings), done.err
    return error.removeprefix("error: ")


def test_a_port_that_is_taken(tmp_path: Path, taken: int) -> None:
    sentence = f"cannot listen on 127.0.0.1:{taken}: another program listens there; stop it, or choose another port"
    named = refused(tmp_path, "up", "--nameserver-port", str(taken), "--broker-port", "0")
    assert named == f"{sentence} with --nameserver-port"
    assert refused(tmp_path, "up", "--nameserver-port", "0", "--broker-port", str(taken)) == sentence
    assert refused(tmp_path, "nameserver", "--port", str(taken)) == f"{sentence} with --port"
    assert refused(tmp_path, "broker", "--port", str(taken)) == sentence


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    ports = ("--nameserver-port", "0", "--broker-port", "0")
    sentence = refused(tmp_path, "up", *ports, "--data-dir", "file")
    assert sentence == (
        "the store directory file/store cannot be used: there is a file where a directory should be; give another one"
    )
    assert "the store directory file cannot be used" in refused(tmp_path, "broker", "--port", "0", "--store", "file")
    if LINUX:  # as root everything may be written, but for what is no place for files at all
        assert "/proc/nowhere/store cannot" in refused(tmp_path, "up", *ports, "--data-dir", "/proc/nowhere")


def test_a_directory_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for and not tried: the tests may run as root, who may write everything."""
    monkeypatch.setattr(serve.os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="cannot be used: this user may not write there; give another one"):
        serve._check_directory(tmp_path / "store")


def test_a_directory_or_a_name_that_another_broker_has(tmp_path: Path) -> None:
    with up(tmp_path) as first:
        name_server = name_server_of(first)
        sentence = refused(tmp_path, "up", "--nameserver-port", "0", "--broker-port", "0")
        assert f"is in use by process {first.process.pid}" in sentence
        sentence = refused(tmp_path, "broker", "--port", "0", "--store", "other", "-n", name_server)
        assert "name = 'broker-a' is taken: a broker with this name and id 0 runs at 127.0.0.1:" in sentence
        assert first.stop() == 0


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("broker.conf", "brokerNmae=x", "broker.conf, line 1: RocketMQ has no setting brokerNmae; did you mean"),
        ("broker.toml", "lisen_port = 1", "broker.toml, line 1: there is no setting lisen_port; did you mean"),
        ("broker.conf", "listenPort=many", "line 1: listenPort = 'many' cannot work: it is a whole number"),
        ("broker.conf", "bindAddress=0.0.0.0", "there is no authentication; listen on 127.0.0.1, or allow it with"),
    ],
)
def test_a_file_that_cannot_work(tmp_path: Path, file: str, text: str, sentence: str) -> None:
    (tmp_path / file).write_text(text, encoding="utf-8")
    assert sentence in refused(tmp_path, "broker", "--config", file)


def test_another_address_needs_leave_and_is_warned_about(tmp_path: Path) -> None:
    """192.0.2.1 belongs to nobody, so it is also an address that cannot be had."""
    assert "--allow-public" in refused(tmp_path, "up", "--host", "192.0.2.1")
    done = run("up", "--host", "192.0.2.1", "--allow-public", "--nameserver-port", "0", cwd=tmp_path)
    assert done.code == 1
    assert done.err.count("listening on 192.0.2.1 without authentication: everybody who can connect may read") == 1
    assert "error: cannot listen on 192.0.2.1:0: this machine has no such address" in done.err


class FakeProbe:
    """Stands in for a socket: the way to other machines starts at one address, or there is none."""

    def __init__(self, own: str | None) -> None:
        self.own = own

    def __call__(self, *_: Any) -> FakeProbe:
        return self

    def __enter__(self) -> FakeProbe:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def connect(self, _: tuple[str, int]) -> None:
        if self.own is None:
            raise OSError(101, os.strerror(101))

    def getsockname(self) -> tuple[str | None, int]:
        return self.own, 1


def test_who_listens_everywhere_tells_clients_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    config = BrokerConfig(listen_host="0.0.0.0", allow_public=True, store=StoreConfig(root=Path("s")))
    monkeypatch.setattr(serve.socket, "socket", FakeProbe("198.51.100.7"))
    assert serve._reachable(config).client_host == "198.51.100.7"
    monkeypatch.setattr(serve.socket, "socket", FakeProbe(None))
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0 is no address that a client could connect to.*--advertise-host"):
        serve._reachable(config)


# --- a name server and a broker, each with RocketMQ's file -----------------------------------------------------------


def test_a_broker_serves_without_a_name_server_and_registers_when_one_comes(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "namesrv.conf").write_text(f"listenPort={port}\n", encoding="utf-8")
    (tmp_path / "broker.conf").write_text(
        f"brokerName=b\nnamesrvAddr=127.0.0.1:{port}\nlistenPort=1\nautoCreateTopicEnable=true\nstorePathRootDir=s\n"
        "sendMessageThreadPoolNums=8\n",
        encoding="utf-8",
    )
    with Program("broker", "--config", "broker.conf", "--port", "0", cwd=tmp_path) as broker:
        broker.until(f"not registered with the name server 127.0.0.1:{port}, trying on: nobody answers")
        address = broker.until(r"PyroMQ is up: broker b on (127\.0\.0\.1:\d+), store in s\n")[1]
        socket.create_connection(address.split(":"), SECONDS).close()
        with Program("nameserver", "--config", "namesrv.conf", cwd=tmp_path) as names:
            names.until(f"PyroMQ is up: name server on 127.0.0.1:{port}\n")
            broker.until(f"registered with the name server 127.0.0.1:{port}\n")
            assert run("send", "orders", "x", cwd=tmp_path, NAMESRV_ADDR=f"127.0.0.1:{port}").code == 0
            assert broker.stop() == 0
            assert names.stop() == 0
    assert "these settings of RocketMQ change nothing here: sendMessageThreadPoolNums" in broker.err
    assert "stopping because of SIGTERM" in broker.err
    assert broker.err.splitlines()[-1].endswith("stopped cleanly")
    assert ("running as root" in broker.err) == (os.geteuid() == 0)


def test_two_commands_make_a_pair(tmp_path: Path) -> None:
    """The second one needs to know only where the name server is and that it is the slave."""
    with up(tmp_path, "--role", "sync-master") as master:
        name_server = name_server_of(master)
        arguments = ("--role", "slave", "--port", "0", "--store", "copy", "-n", name_server)
        with Program("broker", *arguments, cwd=tmp_path) as slave:
            slave.until("copying the log of ")
            assert run("send", "orders", "in both logs", "-n", name_server, cwd=tmp_path).code == 0
            shown = run("cluster", "-n", name_server, cwd=tmp_path, COLUMNS="120").out
            assert re.search(r"broker-a +1 .*level", shown)
            assert slave.stop() == 0
        assert master.stop() == 0
    [segment] = (tmp_path / "copy" / "commitlog").iterdir()
    assert b"in both logs" in segment.read_bytes()


# --- the log ---------------------------------------------------------------------------------------------------------


def test_every_line_of_a_json_log_parses_and_bad_input_is_one_of_them(tmp_path: Path) -> None:
    with up(tmp_path, "--log-format", "json", "--log-level", "debug") as program:
        host, port = program.until(r"broker +(127\.0\.0\.1):(\d+)\n").groups()
        with socket.create_connection((host, int(port)), SECONDS) as browser:
            browser.sendall(b"GET /secret HTTP/1.1\r\nAuthorization: hunter2\r\n\r\n")
            assert browser.recv(1) == b""
            sender = "{}:{}".format(*browser.getsockname())
        program.until(re.escape(sender))
        assert program.stop() == 0
    lines = [json.loads(line) for line in program.err.splitlines()]
    assert all({"time", "level", "part", "message"} <= line.keys() for line in lines)
    [complaint] = [line for line in lines if sender in line["message"]]
    assert complaint["level"] == "warning"
    assert "HTTP" in complaint["message"]
    assert "hunter2" not in program.err


def test_what_stops_a_start_is_a_line_of_a_json_log_too(tmp_path: Path, taken: int) -> None:
    done = run("nameserver", "--port", str(taken), "--log-format", "json", "--log-level", "error", cwd=tmp_path)
    assert (done.code, done.out) == (1, "")
    line = json.loads(done.err)
    assert line["level"] == "critical"
    assert "another program listens there" in line["message"]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The root of all logs, put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield logging.getLogger("pyromq.net")
    logging.captureWarnings(False)
    root.handlers[:], root.level = handlers, level


def test_a_line_stays_a_line_whatever_a_name_holds(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    start_logging(LogLevel.INFO, LogFormat.TEXT)
    log.info("topic %s\x1b[31m", "a\nERROR net: forged")
    log.debug("not asked for")
    line = capsys.readouterr().err
    assert line.endswith("INFO     net: topic a\\nERROR net: forged\\x1b[31m\n")
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", line)


def test_a_fault_has_its_trace(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    for form in LogFormat:
        start_logging(LogLevel.INFO, form)
        try:
            raise ZeroDivisionError("oh")
        except ZeroDivisionError as error:
            log.error("it failed", exc_info=error)
    text, event = capsys.readouterr().err.rsplit("\n", 2)[:2]
    assert text.endswith("ZeroDivisionError: oh")
    assert "ZeroDivisionError: oh" in json.loads(event)["trace"]


# --- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("words", [[], ["up"], ["nameserver"], ["broker"], ["send"], ["consume"]], ids=" ".join)
def test_help_fits_the_terminal(words: list[str], columns: int, tmp_path: Path) -> None:
    shown = run(*words, "--help", cwd=tmp_path, COLUMNS=str(columns))
    assert shown.code == 0
    assert max(map(len, shown.out.splitlines())) <= columns
    assert not re.search("… *│", shown.out), "something is cut off"
