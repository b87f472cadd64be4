"""Programs that use the blocking face and end, or fork, in the ways that programs do. Each is a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

import pyromq.testing
from pyromq.sync import Admin
from pyromq.testing import LocalBroker

TOPIC = "orders"


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    with pyromq.testing.broker(topics={TOPIC: 1}) as started:
        yield started


def run(mq: LocalBroker, program: str) -> str:
    """Return a program's output; it must end by itself, and well."""
    source = f"NAME_SERVERS = {mq.name_servers!r}\n" + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=30, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def lag(mq: LocalBroker, group: str) -> int:
    with Admin(mq.name_servers) as admin:
        return sum(queue.lag for queue in admin.consumers.lag(group).queues if queue.queue.topic == TOPIC)


def test_a_client_may_be_closed_when_the_process_is_ending(mq: LocalBroker) -> None:
    """Functions registered first are called last: then the client's thread is gone already."""
    program = """
        import atexit
        from pyromq.sync import Producer

        producer = Producer(NAME_SERVERS, group="atexit")
        atexit.register(print, "closed")
        atexit.register(producer.close)
        producer.start()
        producer.send("orders", b"x")
    """
    assert run(mq, program) == "closed\n"


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_a_consumer_that_is_told_to_end_finishes_what_it_is_at_and_tells_its_progress(
    mq: LocalBroker, signal: str
) -> None:
    program = f"""
        import os, signal, threading, time
        from pyromq.sync import ConsumeFrom, Producer, PushConsumer

        with Producer(NAME_SERVERS, group="ending") as producer:
            producer.send("orders", b"x")
        consumer = PushConsumer(NAME_SERVERS, group="ended-{signal}", consume_from=ConsumeFrom.FIRST)

        @consumer.on("orders")
        def handle(message):
            if not began.is_set():
                began.set()
                os.kill(os.getpid(), signal.{signal})
                time.sleep(0.3)

        began = threading.Event()
        consumer.run()
        print("ended")
    """
    assert run(mq, program) == "ended\n"
    assert lag(mq, f"ended-{signal}") == 0


def test_an_exit_within_the_clients_thread_does_not_take_the_other_clients_along(mq: LocalBroker) -> None:
    program = """
        import sys, threading
        from pyromq.sync import ConsumeFrom, Producer, PushConsumer

        exits = threading.Event()
        consumer = PushConsumer(NAME_SERVERS, group="exits", consume_from=ConsumeFrom.FIRST)

        @consumer.on("orders")
        async def handle(message):
            if not exits.is_set():
                exits.set()
                sys.exit(3)

        with Producer(NAME_SERVERS, group="g") as producer:
            producer.send("orders", b"x")
            with consumer:
                exits.wait(10)
                producer.send("orders", b"y")
        print("ended")
    """
    assert run(mq, program) == "ended\n"


def test_a_forked_process_has_a_name_and_connections_of_its_own(mq: LocalBroker) -> None:
    program = """
        import os, signal
        from pyromq.errors import ClientClosed
        from pyromq.sync import Producer, PushConsumer

        producer = Producer(NAME_SERVERS, group="forks")
        producer.start()
        first = producer.send("orders", b"of the parent")
        waiting = PushConsumer(NAME_SERVERS, group="forks")      # made before the fork, started after it
        names = {waiting.client_id, producer.client_id}
        child = os.fork()
        if not child:
            signal.alarm(20)
            try:
                producer.send("orders", b"on the parent's connection")
            except ClientClosed:
                pass
            else:
                os._exit(4)
            if names & {waiting.client_id, producer.client_id}:
                os._exit(5)
            with producer:
                if producer.send("orders", b"of the child").message_id[:20] == first.message_id[:20]:
                    os._exit(6)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        producer.send("orders", b"of the parent again")
        producer.close()
    """
    assert run(mq, program) == "0\n"
