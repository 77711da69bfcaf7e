"""Calls without a transport: bytes and a context go in, bytes or an RpcError come out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.rpc.context import RpcContext
from pubsub_spark.emulator.rpc.dispatcher import Dispatcher
from pubsub_spark.emulator.rpc.interceptors import InjectFaults, Recorder
from pubsub_spark.emulator.rpc.registry import Registry, Rpc
from pubsub_spark.emulator.runtime.clock import Clock
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import Fault, Faults
from pubsub_spark.emulator.state.state import State

CREATE_TOPIC = "/google.pubsub.v1.Publisher/CreateTopic"
GET_TOPIC = "/google.pubsub.v1.Publisher/GetTopic"
TOPIC = protos.Topic(name="projects/p/topics/news").SerializeToString()


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(State(), Clock())
    yield engine
    engine.close()


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def dispatcher(engine, faults, recorder) -> Dispatcher:
    return Dispatcher(engine, Registry(engine, faults), [recorder, InjectFaults(faults, engine)])


def ask(dispatcher: Dispatcher, raw: bytes, method: str = CREATE_TOPIC) -> bytes:
    return asyncio.run(dispatcher.unary(raw, RpcContext(method, (("x-goog-a", "b"),))))


def code(dispatcher: Dispatcher, raw: bytes, method: str = CREATE_TOPIC) -> str:
    with pytest.raises(RpcError) as error:
        ask(dispatcher, raw, method)
    return error.value.code


def test_request_is_answered_and_recorded(dispatcher, recorder):
    """A request is answered and recorded with its metadata."""
    assert TOPIC == ask(dispatcher, TOPIC)
    assert [("CreateTopic", (("x-goog-a", "b"),))] == recorder.calls


def test_errors_have_a_code(dispatcher, recorder):
    """An unknown method (which no interceptor sees), bytes that are not a request, and an exception of a handler each
    have a status code.
    """

    def fail(_: bytes, _context: RpcContext) -> bytes:
        raise ZeroDivisionError

    assert "UNIMPLEMENTED" == code(dispatcher, TOPIC, "/nowhere/Nothing")
    assert [] == recorder.calls
    assert "INVALID_ARGUMENT" == code(dispatcher, b"\xff")
    dispatcher.rpcs[GET_TOPIC] = Rpc(fail, lambda _: False)
    assert "INTERNAL" == code(dispatcher, b"", GET_TOPIC)


def test_fault_comes_before_the_handler(dispatcher, faults, recorder):
    """The call is recorded, but its handler does not run."""
    faults.add(Fault("CreateTopic", "UNAVAILABLE"))

    assert "UNAVAILABLE" == code(dispatcher, TOPIC)
    assert 1 == len(recorder.calls)
    assert TOPIC == ask(dispatcher, TOPIC)


def test_slow_handler_runs_on_the_pool(dispatcher):
    """A slow handler runs on the pool, any other on the event loop."""
    threads: list[str] = []

    def handle(raw: bytes, _: RpcContext) -> bytes:
        threads.append(threading.current_thread().name)
        return raw

    for rpc in (Rpc(handle, lambda _: True), Rpc(handle, lambda _: False)):
        dispatcher.rpcs[GET_TOPIC] = rpc
        ask(dispatcher, b"", GET_TOPIC)

    assert ["pubsub-emulator_0", "MainThread"] == threads


def test_call_whose_client_left_is_cancelled(dispatcher, faults):
    """The context of a call is cancelled when its client has left."""
    faults.add(Fault("CreateTopic", None, delay=3600))
    context = RpcContext(CREATE_TOPIC)

    async def leave() -> None:
        await asyncio.wait_for(dispatcher.unary(TOPIC, context), 0.02)

    with pytest.raises(TimeoutError):
        asyncio.run(leave())
    assert context.cancelled


def test_stop_ends_what_a_fault_delays(dispatcher, faults):
    """After `stop` a delayed call ends with UNAVAILABLE, and so does every later call."""
    faults.add(Fault("CreateTopic", None, delay=3600))

    async def stop() -> None:
        waiting = asyncio.ensure_future(dispatcher.unary(TOPIC, RpcContext(CREATE_TOPIC)))
        await asyncio.sleep(0.01)
        dispatcher.stop()
        await waiting

    with pytest.raises(RpcError, match="The emulator is stopping"):
        asyncio.run(stop())
    assert "UNAVAILABLE" == code(dispatcher, TOPIC)
