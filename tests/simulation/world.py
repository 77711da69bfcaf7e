"""The world of a history: service, stores, machines, a checkpoint and a sink, and the starts of one query."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from unittest import mock

from pubsub_spark.emulator.state.settings import Settings
from tests.simulation import checkers, product
from tests.simulation.chooser import Chooser
from tests.simulation.connection import SimBackend
from tests.simulation.faults import Faults
from tests.simulation.hub import Hub, Machine, Process, StuckError
from tests.simulation.record import Record
from tests.simulation.runtime import SimRuntime
from tests.simulation.service import SUBSCRIPTION, Service
from tests.simulation.spark import Application, Checkpoint, Query, Sink
from tests.simulation.store import SimStore

_STOP_SECONDS = 300.0  # two minutes of a slow sink, and the rest of its batch


@dataclass(frozen=True)
class Setup:
    """The objects at the beginning. skews: how wrong the clock of each machine is, in seconds.

    response: the messages of each response, or None for a service that cuts responses to fit the flow control.
    is_one_path: whether the other staging area has the same location, on another machine. most_ids: of a request.
    """

    settings: Settings
    probe_after: float = 10.0
    are_stores_local: bool = False
    skews: tuple[float, ...] = (0.0,)
    response: int | None = None
    is_one_path: bool = False
    most_ids: int = 3000


class World:
    """The world of one history, and the actions of an operator in it."""

    def __init__(self, chooser: Chooser, faults: Faults, setup: Setup, is_fair: bool = False) -> None:
        self.chooser, self.faults, self.settings = chooser, faults, setup.settings
        self._most_ids = setup.most_ids
        self.hub = hub = Hub(
            chooser, faults.rates.get("slow threads", 0.0), is_fair, faults.rates.get("thread preempted", 0.0)
        )
        self.record = record = Record(hub)
        checkers.watch_acks(record)
        self.service = Service(hub, faults, record, setup.settings, setup.response)
        self.backend = SimBackend(self.service, probe_after=setup.probe_after)
        locations = "sim://area-0", "sim://area-0" if setup.is_one_path else "sim://area-1"
        self.stores = [SimStore(hub, faults, record, each, setup.are_stores_local) for each in locations]
        for store in self.stores:
            store.on_delete = partial(checkers.check_deletion, record)
        self.store = self.stores[0]
        self.metrics_store: SimStore | None = None  # of `metricsLocation`
        self.machines = [Machine(f"machine {n}", 1000.0 * n, skew) for n, skew in enumerate(setup.skews)]
        if any(setup.skews):
            record.note("clocks apart")
        self.checkpoint, self.sink = Checkpoint("c"), Sink()
        self.applications: list[Application] = []
        operator = Process(hub, "operator", Machine("console"))
        operator.on_failure = lambda error: record.violate("I4", f"the simulator fails: {error!r}")
        self._operator, self._runtime = operator, SimRuntime(operator)

    def run(self, operate: Callable[[], None], seed: int) -> None:
        """Run the history: the operator's actions, until they end or an invariant is broken."""
        hub = self.hub

        def run_operator() -> None:
            operate()
            hub.is_stopped = True

        def next_uuid() -> uuid.UUID:
            return uuid.UUID(int=ids.getrandbits(128))

        def process_id() -> int:  # no `return_value`: to make a mock takes as long as a hundred steps
            return 1

        product.begin()
        ids = random.Random(seed)
        random.seed(seed)  # of the pauses between retries
        with (
            mock.patch("uuid.uuid4", next_uuid),
            mock.patch("os.getpid", process_id),
            mock.patch("pubsub_spark.read.pull.acks.MAX_IDS", self._most_ids),
        ):
            self._operator.start(run_operator, "operator")
            try:
                hub.run()
            except StuckError as stuck:
                self.record.violate("I4", str(stuck))
            finally:
                hub.end()
        self.backend.close()
        for store in self.stores:
            store.close()

    def start(self, query: Query) -> Application:
        """Start the query."""
        name = f"run {len(self.applications) + 1}"
        trigger = query.trigger + ("" if query.passes_start else " on Spark 4.0")
        self.record.tell("operator", "starts %s: %s", name, trigger)
        self.record.note("start", name)
        application = Application(self, query, name)
        self.applications.append(application)
        return application

    def use_area(self, number: int) -> None:
        """Have the next runs use a staging area. If both have one location, files of the other seem to be removed."""
        before, self.store = self.store, self.stores[number]
        if before is self.store:
            return
        self.record.tell("operator", "changes the staging area to number %s", number)
        self.record.note("other staging")
        if before.location == self.store.location:
            folders = [path.split("/") for path in before.files]
            self.record.unstaged |= {(each[-3], int(each[-2])) for each in folders if each[-2].isdigit()}

    def roll_back(self, kept: int) -> None:
        """Put the checkpoint back to its first batches."""
        log, sink = self.checkpoint, self.sink
        lost = {(end.stream, end.batch) for end in map(log.offset, range(kept, len(log.offsets)))}
        self.record.roll_back(lost, {application.name for application in self.applications})
        self.record.tell("operator", "rolls the checkpoint back to %s of %s batches", kept, len(log.offsets))
        del log.offsets[kept:]
        log.commits = {number for number in log.commits if number < kept}
        sink.written = {number: rows for number, rows in sink.written.items() if number < kept}

    def wait(self, seconds: float) -> None:
        """Do nothing for a while."""
        if seconds > 0:
            self._runtime.sleep(seconds)

    def wait_for(self, application: Application, seconds: float) -> None:
        """Wait until an application has ended, for so long at most."""
        end = self.hub.now + seconds
        while application.is_alive and self.hub.now < end:
            self.wait(min(1.0, end - self.hub.now))

    def publish(self, count: int, key: str = "") -> None:
        """Publish messages of one key, whose data is their number."""
        first = len(self.record.messages)
        body = self.service.schema.body if self.service.schema is not None else b"%d".__mod__
        self.service.publish([body(first + n) for n in range(count)], key)

    def publish_again(self) -> None:
        """Publish the data of the last message once more, as a publisher does that has lost the answer."""
        [*_, last] = self.record.messages.values()
        self.service.publish([last.data], last.key)
        [*_, again] = self.record.messages
        self.record.note("published twice", again)

    @property
    def backlog(self) -> int:
        """The number of messages that are not acknowledged."""
        return self.service.broker.subscriptions[SUBSCRIPTION].backlog

    @property
    def is_delivered(self) -> bool:
        """Whether everything that was published is a committed row, and acknowledged."""
        return not checkers.undelivered(self.record) and not self.backlog

    def run_quietly(self, application: Application, seconds: float = 3600.0) -> None:
        """Wait for the effect of a run in a quiet world, and check I4."""
        end = self.hub.now + seconds
        runs_on = application.query.runs_on
        while application.is_alive and self.hub.now < end:
            self.wait(5.0)
            if runs_on and self.is_delivered and application.is_idle:
                self.wait(60.0)  # for the deletion of the last batch's files
                break
        if application.is_alive:
            if not runs_on:
                self.record.violate("I4", f"{application.name} has not ended after {seconds:.0f} quiet seconds")
            application.stop()
            self.wait_for(application, _STOP_SECONDS)
            if application.is_alive:
                self.record.violate(
                    "I4", f"{application.name} has not stopped within {_STOP_SECONDS:.0f} quiet seconds"
                )

    def check_end(self) -> None:
        """Check the invariants of the end."""
        record = self.record
        if missing := checkers.undelivered(record):
            record.violate("I3", f"after the quiet runs {len(missing)} messages are no rows: {missing[:5]}")
        elif backlog := self.backlog:
            record.violate("I3", f"after the quiet runs {backlog} messages are not acknowledged")
        checkers.check_keys(record)
        checkers.check_sink(record)
