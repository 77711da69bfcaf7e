"""Staging areas on the object stores of three clouds: requests fail, are slow, or take effect without an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver.planner import Budget
from pubsub_spark.read.staging import store as store_module
from pubsub_spark.read.staging.store import Store, open_store
from tests import engine
from tests.conftest import Names
from tests.engine import Engine
from tests.production import stores
from tests.production.stores import ObjectStore
from tests.rpc.token_server import serving
from tests.unit.read.staging.object_store import LOST, RESET, UNTAKEN, Faults
from tests.unit.read.staging.test_store import service_account

pytestmark = pytest.mark.filterwarnings("ignore:The load_credentials:DeprecationWarning")
FAULTS: dict[str, Callable[[Faults], None]] = {
    "503": lambda faults: vars(faults).update(fault_each=7, status=503),
    "429": lambda faults: vars(faults).update(fault_each=7, status=429),
    "lost answers": lambda faults: vars(faults).update(fault_each=7, status=LOST),
    "resets": lambda faults: vars(faults).update(fault_each=7, status=RESET),
    "delay": lambda faults: vars(faults).update(delay=0.1),
}


@pytest.fixture(scope="module", params=["s3", "azure", "google"])
def servers(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    """Yield each of the three, started once."""
    started: AbstractContextManager[ObjectStore] = (
        stores.s3(request.getfixturevalue("s3")) if request.param == "s3" else getattr(stores, request.param)()
    )
    with started as running:
        yield running


@pytest.fixture
def store(servers: ObjectStore, names: Names, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectStore]:
    """Yield a folder of its own in the bucket, without faults."""
    vars(servers.faults).update(statuses=[], fault_each=0, delay=0.0)
    store_module.connected.cache_clear()
    with serving() as tokens:
        (tmp_path / "key.json").write_text(json.dumps(service_account(f"http://{tokens.address}")))
        for name, value in {
            **servers.environment,
            "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "key.json"),
        }.items():
            monkeypatch.setenv(name, value)
        yield ObjectStore(f"{servers.url}/{names.subscription_id}", servers.environment, servers.faults)


CALLS: dict[str, tuple[Callable[[Store], Any], Any]] = {
    "create": (lambda store: store.create("a/new", [b"mine"]), True),
    "put": (lambda store: store.put("a/put", b"1"), None),
    "read": (lambda store: bytes(store.read("a/old") or b""), b"0123"),
    "read_range": (lambda store: bytes(store.read_range("a/old", 1, 3)), b"12"),
    "list": (lambda store: store.list("a/"), {"old": 4}),
    "folders": (lambda store: list(store.folders("")), ["a"]),
    "delete": (lambda store: store.delete("a/old"), None),
}


@pytest.mark.parametrize("status", [503, 429, LOST, RESET, UNTAKEN])
@pytest.mark.parametrize("call", CALLS)
def test_request_without_an_answer_is_repeated(store: ObjectStore, call: str, status: int):
    """Whether it took effect or not, the result is that of one request."""
    function, expected = CALLS[call]
    opened = open_store(store.url)
    opened.create("a/old", [b"0123"])
    store.faults.statuses.append(status)

    assert expected == function(opened)
    assert [] == store.faults.statuses
    after = {"create": {"old": 4, "new": 4}, "put": {"old": 4, "put": 1}, "delete": {}}
    assert after.get(call, {"old": 4}) == opened.list("a/")


def test_store_that_resets_connections_is_waited_for(store: ObjectStore):
    """A proxy that restarts does so for seconds."""
    opened = open_store(store.url)
    store.faults.statuses.extend([UNTAKEN] * 3)

    assert opened.create("a/new", [b"mine"])
    assert [] == store.faults.statuses
    assert {"new": 4} == opened.list("a/")


def test_conflict_of_no_other_writer_is_tried_again(store: ObjectStore):
    """S3 answers 409 to a write while another one is not over, or a deletion."""
    opened = open_store(store.url)
    store.faults.statuses.append(409)
    assert opened.create("a/new", [b"mine"])
    store.faults.statuses.append(409)
    opened.put("a/new", b"again")

    assert [] == store.faults.statuses
    assert {"new": 5} == opened.list("a/")


def test_one_of_several_writers_wins(store: ObjectStore):
    """Also if each fourth answer is lost, all read the content of the winner."""
    vars(store.faults).update(fault_each=4, status=LOST)
    opened = open_store(store.url)
    with ThreadPoolExecutor(4) as threads:
        for number in range(10):
            texts = [f"{number} by {writer}".encode() for writer in range(4)]
            won = list(threads.map(lambda text: opened.create(f"w/{number}", [text]), texts))  # noqa: B023
            assert [texts[won.index(True)]] == [text for text, has_won in zip(texts, won, strict=True) if has_won]
            assert texts[won.index(True)] == bytes(opened.read(f"w/{number}") or b"")


@pytest.mark.parametrize(
    "fault",
    [
        "lost answers",
        *(pytest.param(name, marks=pytest.mark.production) for name in ("503", "429", "resets", "delay")),
    ],
)
def test_query_loses_and_repeats_nothing(store: ObjectStore, emulator: Emulator, names: Names, fault: str):
    """A query that is killed and started again, while one request in seven has the fault, or each is slow."""
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    options = ReadOptions(
        subscription_id=names.subscription, endpoint=emulator.endpoint, idle_timeout=0.3, max_fetch_period=0.5
    )
    query = Engine(emulator, options, store.url, budget=Budget(200, 10**6))
    FAULTS[fault](store.faults)
    sent = [f"m{number}" for number in range(600)]
    emulator.publish(names.topic, *sent[:300])
    query.start()
    engine.until(lambda: query.trigger() and len(query.rows) >= 100, "some rows", 60.0)
    query.crash()
    emulator.publish(names.topic, *sent[300:])
    emulator.advance(601.0)
    query.start()
    engine.until(lambda: query.trigger() and len(query.rows) >= len(sent), "all rows", 60.0)
    engine.until(lambda: (query.trigger(), emulator.backlog(names.subscription) == 0)[1], "all acked", 60.0)
    query.stop()

    assert sorted(sent) == sorted(query.rows)
