"""The blocking face: the same client for scripts and threads, made from the async one."""

from __future__ import annotations

import inspect
import multiprocessing
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyromq
from pyromq import sync, testing
from pyromq.client.blocking import shared_portal
from pyromq.errors import ClientClosed, ClientError, TopicNotFound

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def name_servers() -> Iterator[str]:
    with testing.broker(topics={"orders": 2, "events": 1, "paid": 1}) as mq:
        yield mq.name_servers


# --- made from the async one -----------------------------------------------------------------------------------------


def test_it_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts/gen_sync.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


CLIENTS = ["Producer", "TransactionProducer", "PushConsumer", "PullConsumer", "Admin"]


@pytest.mark.parametrize("name", CLIENTS)
def test_every_public_method_has_its_twin_with_the_same_arguments(name: str) -> None:
    behind, blocking = getattr(pyromq, name), getattr(sync, name)
    for method, function in inspect.getmembers(behind, inspect.isfunction):
        if method.startswith("_"):
            continue
        twin = getattr(blocking, method)
        assert not inspect.iscoroutinefunction(twin)
        if "given" not in inspect.signature(twin).parameters:  # one with several forms takes them all
            assert list(inspect.signature(twin).parameters) == list(inspect.signature(function).parameters)


def test_what_goes_with_them_is_offered_beside_them() -> None:
    for name in set(sync.__all__) - set(CLIENTS):
        assert getattr(sync, name) is getattr(pyromq, name)


# --- at work ---------------------------------------------------------------------------------------------------------


def test_send_and_receive_without_a_word_of_async(name_servers: str) -> None:
    received: queue.Queue[sync.ReceivedMessage] = queue.Queue()
    consumer = sync.PushConsumer(name_servers, group="shipping", consume_from=sync.ConsumeFrom.FIRST)

    @consumer.on("orders", tags="paid")
    def ship(message: sync.ReceivedMessage) -> None:
        received.put(message)

    with consumer, sync.Producer(name_servers, group="shop") as producer:
        receipt = producer.send(sync.Message("orders", b"one", tags="paid"))
        producer.send("orders", b"two", tags="open")
        producer.send("orders", "three", tags="paid")
        found = {received.get(timeout=10).body for _ in range(2)}
    assert receipt.status is sync.SendStatus.OK
    assert found == {b"one", b"three"}
    assert received.empty()


def test_a_handler_runs_in_a_thread_and_may_use_a_blocking_producer(name_servers: str) -> None:
    threads: queue.Queue[str] = queue.Queue()
    consumer = sync.PushConsumer(name_servers, group="echo", consume_from=sync.ConsumeFrom.FIRST)
    with sync.Producer(name_servers, group="echo") as producer:

        @consumer.on("events")
        def echo(message: sync.ReceivedMessage) -> None:
            producer.send("paid", message.body)
            threads.put(threading.current_thread().name)

        with consumer:
            producer.send("events", b"ping")
            assert threads.get(timeout=10) != "pyromq"


def test_a_pull_consumer_is_a_plain_iterator(name_servers: str) -> None:
    with sync.Producer(name_servers, group="p") as producer, sync.Admin(name_servers) as admin:
        admin.topics.create("numbers", queues=1)
        producer.send_batch([sync.Message("numbers", str(number)) for number in range(5)])
        with sync.PullConsumer(name_servers, group="reader") as consumer:
            consumer.assign(consumer.queues("numbers"))
            (where,) = consumer.queues("numbers")
            consumer.seek_to_begin(where)
            bodies = [message.text for _, message in zip(range(5), consumer, strict=False)]
    assert bodies == ["0", "1", "2", "3", "4"]


def test_a_block_of_local_work_commits_or_rolls_back(name_servers: str) -> None:
    with sync.TransactionProducer(name_servers, group="tx", check=lambda _: sync.Decision.ROLLBACK) as producer:
        with producer.transaction(sync.Message("paid", b"kept")):
            pass
        with pytest.raises(ValueError, match="no money"), producer.transaction(sync.Message("paid", b"dropped")):
            raise ValueError("no money")
        _, decision = producer.send_in_transaction(sync.Message("paid", b"also"), lambda _: sync.Decision.COMMIT)
    assert decision is sync.Decision.COMMIT


def test_errors_are_the_same(name_servers: str) -> None:
    with sync.Admin(name_servers) as admin, pytest.raises(TopicNotFound):
        admin.topics.describe("nothing")
    producer = sync.Producer(name_servers, group="late")
    with pytest.raises(ClientClosed):
        producer.send("orders", b"before it was started")


def test_many_threads_share_one_producer(name_servers: str) -> None:
    with sync.Producer(name_servers, group="many") as producer:
        receipts: list[sync.SendReceipt] = []

        def work() -> None:
            receipts.extend(producer.send("orders", b"x") for _ in range(20))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert len({receipt.message_id for receipt in receipts}) == 160


# --- its thread ------------------------------------------------------------------------------------------------------


def test_waiting_for_itself_is_refused() -> None:
    portal = shared_portal()

    async def nothing() -> None: ...

    def inside() -> None:
        portal.wait(nothing())

    with pytest.raises(ClientError, match="use the async one there"):
        portal.call(inside)


def _send_in_child(name_servers: str, answers: multiprocessing.Queue[str]) -> None:
    with sync.Producer(name_servers, group="child") as producer:
        answers.put(producer.send("orders", b"from a child").status.name)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_after_a_fork_the_child_has_a_thread_of_its_own(name_servers: str) -> None:
    with sync.Producer(name_servers, group="parent") as producer:
        producer.send("orders", b"from the parent")
        fork = multiprocessing.get_context("fork")
        answers: multiprocessing.Queue[str] = fork.Queue()
        child = fork.Process(target=_send_in_child, args=(name_servers, answers))
        child.start()
        assert answers.get(timeout=20) == "OK"
        child.join(20)
        producer.send("orders", b"again")


SCRIPT = """
from pyromq.sync import Producer
producer = Producer({!r}, group="forgetful")
producer.start()
print(producer.send("orders", b"x").status.name, flush=True)
"""


def test_a_script_that_forgets_to_close_ends_all_the_same(name_servers: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(name_servers)], capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "OK\n", "")
