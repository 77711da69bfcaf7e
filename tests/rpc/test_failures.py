"""A failure inside the emulator ends its own call or connection, or the emulator with an error. It is never silent."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading

import grpc
import pytest
from h2.events import DataReceived

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.emulator import EmulatorFailedError
from pubsub_spark.emulator.rpc.registry import Rpc
from pubsub_spark.emulator.transport import event_loop, listener
from tests.rpc.conftest import SUB, TOPIC, parts
from tests.rpc.frames import FrameClient


def test_handler_that_fails_fails_its_call_alone(emulator, client, subscribe, caplog):
    """A mistake of ours is INTERNAL and in the log, and the emulator lives on."""
    subscribe()

    def fail(*_: object) -> bytes:
        raise ZeroDivisionError

    parts(emulator).dispatcher.rpcs["/google.pubsub.v1.Publisher/GetTopic"] = Rpc(fail, lambda _: False)

    with caplog.at_level(logging.ERROR), pytest.raises(grpc.RpcError) as error:
        client.ask("Publisher/GetTopic", topic=TOPIC)

    assert grpc.StatusCode.INTERNAL == error.value.code()
    assert "ZeroDivisionError" in caplog.text
    assert [] == client.data()


def broken(*_: object) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("thread", ["clock", "event loop"])
def test_exception_on_a_background_thread_ends_the_emulator(thread, caplog, monkeypatch):
    """The exception is logged, connections end, and every later method raises it, including `stop`."""
    failed = threading.Event()
    emulator = Emulator(on_failure=failed.set).start()
    with grpc.insecure_channel(emulator.endpoint) as channel:
        emulator.create_topic(TOPIC)
        if thread == "clock":
            with monkeypatch.context() as patched:
                patched.setattr(parts(emulator).engine.clock, "now", broken)
                parts(emulator).engine.restart_clock()  # it looks at the clock again
                assert failed.wait(10)
        else:
            loop = event_loop.shared()  # of every emulator of this process, and the others are of other tests
            monkeypatch.setattr(loop, "on_error", {parts(emulator).engine.fail})
            loop.call(broken)
        assert failed.wait(10)

        assert "ZeroDivisionError" in caplog.text
        with pytest.raises(EmulatorFailedError):
            emulator.backlog(SUB)
        with pytest.raises(grpc.RpcError):
            channel.unary_unary("/google.pubsub.v1.Publisher/ListTopics")(b"", timeout=5)
    with pytest.raises(EmulatorFailedError):
        emulator.stop()


def test_connection_that_fails_ends_alone(emulator, client, subscribe, monkeypatch, caplog):
    """The failure of one connection is logged, and all other clients are served."""
    subscribe()
    monkeypatch.setattr(listener, "GrpcConnection", broken)
    with contextlib.closing(FrameClient(emulator.endpoint)) as other:
        assert [] == list(other.events(DataReceived))
    monkeypatch.undo()

    assert "ZeroDivisionError" in caplog.text
    assert [] == client.data()
    assert 0 == emulator.streams()


FAILING = """
import threading, time
from pubsub_spark.cli import app
from pubsub_spark.emulator.transport import event_loop, listener

def fail():  # again and again: before the emulator has started there is none to fail
    while True:
        time.sleep(0.01)
        event_loop.shared().call(lambda: 1 / 0)

threading.Thread(target=fail, daemon=True).start()
app(["emulator", "--port", "0"])
"""


def test_process_of_an_emulator_that_failed_ends_with_an_error():
    """`pubsub-spark emulator` logs the failure of its emulator, and exits with 1."""
    ended = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, timeout=60)

    assert 1 == ended.returncode
    assert ended.stderr.endswith("The emulator has failed. Its log has the cause.\n")
    assert "ZeroDivisionError" in ended.stderr
