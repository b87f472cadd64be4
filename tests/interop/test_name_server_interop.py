"""Apache's broker, client and `mqadmin` with our name server, and our registration with Apache's name server."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interop.support.apache import NAMESRV_MAIN, ApacheCluster
from interop.support.java_client import JavaClient, bodies, eventually, message
from interop.support.loopback import enter_private_network

pytestmark = pytest.mark.interop

#: Ours, where Apache's would be: it prints the same words when it serves.
NAME_SERVER = """
import asyncio, logging, sys
from pathlib import Path
from pyromq.config import NameServerConfig
from pyromq.nameserver.assembly import NameServer

async def main(port, kv):
    config = NameServerConfig(listen_port=int(port), kv_config_path=Path(kv), order_messages_enabled=True)
    server = NameServer(config)
    await server.start()
    print("The Name Server boot success", flush=True)
    await asyncio.Event().wait()

logging.basicConfig(level=logging.INFO)
asyncio.run(main(*sys.argv[1:]))
"""

#: A broker's registration without the broker.
REGISTRAR = """
import asyncio, sys
from pathlib import Path
from pyromq.broker.nameserver_link import Registrar
from pyromq.clock import SystemClock
from pyromq.config import BrokerConfig, StoreConfig
from pyromq.model.data_version import DataVersion
from pyromq.model.topic import TopicConfig
from pyromq.net.client import Client

async def main(name_server):
    config = BrokerConfig(
        name="broker-py", cluster="PyCluster", name_servers=(name_server,), store=StoreConfig(root=Path("unused"))
    )
    topics = (TopicConfig("SELF_TEST_TOPIC", 1, 1), TopicConfig("from-python", 5, 3))
    client = Client()
    told = lambda: (DataVersion(1700000000000, 1), topics)
    registrar = Registrar(lambda: config, "127.0.0.1:10999", told, client, SystemClock())
    await registrar.start()
    print(*registrar.registered_with, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await registrar.stop()
    print("gone", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await client.close()

asyncio.run(main(*sys.argv[1:]))
"""


class WithOurNameServer(ApacheCluster):
    """Apache's broker, and our name server where Apache's would be."""

    def _launch_namesrv(self, home: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", NAME_SERVER, str(self._ports.namesrv), str(home / "kvConfig.json")]
        with (home / f"{NAMESRV_MAIN}.out").open("wb") as out:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=home,
                preexec_fn=enter_private_network(),
            )


def test_an_apache_broker_and_its_tools_cannot_tell_the_difference(tmp_path: Path) -> None:
    # One story and not several tests: each start costs seconds.
    with WithOurNameServer(tmp_path / "store") as cluster:
        ns = ("-n", cluster.namesrv_address)
        with JavaClient(cluster) as java:
            check_messages_find_their_way(java, ns)
            check_lists(java, ns, cluster)
            check_settings(java, ns)
            check_permissions(java, ns)
            check_deletion(java, ns)
            cluster.end_broker(signal.SIGKILL)  # its connection breaks, and it is forgotten
            eventually(lambda: java.mqadmin("clusterList", *ns), lambda said: cluster.broker_address not in said)
        cluster.kill()


def check_messages_find_their_way(java: JavaClient, ns: tuple[str, ...]) -> None:
    java.mqadmin("updateTopic", *ns, "-c", "InteropCluster", "-t", "orders", "-r", "4", "-w", "4")
    route = eventually(lambda: java.mqadmin("topicRoute", *ns, "-t", "orders"), lambda said: "interop" in said)
    assert '"readQueueNums":4' in route.replace(" ", "")
    with java.producer() as producer:
        producer.send(message("orders", "one"), message("orders", "two"))
        producer.send(message("made-by-sending", "three"))  # through TBW102 and a new registration
    with java.push("readers", {"topic": "orders"}) as consumer:
        assert sorted(bodies(consumer.received(2))) == ["one", "two"]
    said = eventually(lambda: java.mqadmin("topicRoute", *ns, "-t", "made-by-sending"), lambda said: "interop" in said)
    assert "No topic route" not in said


def check_lists(java: JavaClient, ns: tuple[str, ...], cluster: ApacheCluster) -> None:
    listed = java.mqadmin("clusterList", *ns)
    assert "InteropCluster" in listed
    assert cluster.broker_address in listed
    topics = java.mqadmin("topicList", *ns).split()
    assert {"orders", "made-by-sending", "TBW102", "SELF_TEST_TOPIC"} <= set(topics)
    assert "orders" in java.mqadmin("topicList", *ns, "-c")


def check_settings(java: JavaClient, ns: tuple[str, ...]) -> None:
    assert "orderMessageEnable" in java.mqadmin("getNamesrvConfig", *ns)
    said = java.mqadmin("updateNamesrvConfig", *ns, "-k", "kvConfigPath", "-v", "elsewhere")
    assert "kvConfigPath" in said
    assert "not changed over the network" in said
    java.mqadmin("updateKvConfig", *ns, "-s", "space", "-k", "key", "-v", "value")
    java.mqadmin("updateOrderConf", *ns, "-t", "orders", "-m", "put", "-v", "interop:4")
    assert "interop:4" in java.mqadmin("updateOrderConf", *ns, "-t", "orders", "-m", "get")
    assert "interop:4" in java.mqadmin("topicRoute", *ns, "-t", "orders")
    java.mqadmin("updateOrderConf", *ns, "-t", "orders", "-m", "delete")
    assert "interop:4" not in java.mqadmin("topicRoute", *ns, "-t", "orders")


def check_permissions(java: JavaClient, ns: tuple[str, ...]) -> None:
    assert "wipe write perm of broker[interop]" in java.mqadmin("wipeWritePerm", *ns, "-b", "interop")
    assert '"perm":4' in java.mqadmin("topicRoute", *ns, "-t", "orders").replace(" ", "")
    java.mqadmin("addWritePerm", *ns, "-b", "interop")
    assert '"perm":6' in java.mqadmin("topicRoute", *ns, "-t", "orders").replace(" ", "")


def check_deletion(java: JavaClient, ns: tuple[str, ...]) -> None:
    java.mqadmin("deleteTopic", *ns, "-c", "InteropCluster", "-t", "made-by-sending")
    assert "made-by-sending" not in java.mqadmin("topicList", *ns).split()


# --- the other way round ---------------------------------------------------------------------------------------------


@contextmanager
def registered_from_python(name_server: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", REGISTRAR, name_server],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=enter_private_network(),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == name_server
        yield process
    finally:
        process.kill()
        process.communicate()


def test_our_broker_registers_with_an_apache_name_server(tmp_path: Path) -> None:
    with ApacheCluster(tmp_path / "store") as cluster:
        ns = ("-n", cluster.namesrv_address)
        with JavaClient(cluster) as java, registered_from_python(cluster.namesrv_address) as python:
            route = java.mqadmin("topicRoute", *ns, "-t", "from-python").replace(" ", "")
            assert '"brokerName":"broker-py"' in route
            assert '"readQueueNums":5' in route
            assert '"writeQueueNums":3' in route
            assert "127.0.0.1:10999" in route
            assert "PyCluster" in java.mqadmin("clusterList", *ns)
            assert python.stdin is not None
            assert python.stdout is not None
            python.stdin.write("stop\n")
            python.stdin.flush()
            assert python.stdout.readline().strip() == "gone"
            # A name server of Apache's takes brokers out of its table a moment after it was told.
            eventually(lambda: java.mqadmin("clusterList", *ns), lambda said: "PyCluster" not in said)
        cluster.kill()
