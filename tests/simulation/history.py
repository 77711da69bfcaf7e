"""One history: a seed draws a world, then faults happen in it, then it is quiet and everything must be delivered.

    safety    one to four runs of the query with the drawn faults: started, stopped, killed, suspended, seconds or days
              apart; after each step the invariants I1 and I2 are checked
    liveness  faults off; two runs (more if Spark asks for one batch a run); then I3, I5, I6 and the ordering keys

`Plan` holds what the seed drew, so that a failed history can be made smaller (`shrink`).
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from unittest import mock

from pubsub_spark.emulator.state.settings import DAY, Settings
from pubsub_spark.options import ReadOptions
from tests.simulation import checkers, product
from tests.simulation.chooser import Chooser, Seeded
from tests.simulation.connection import ADDRESS, SimBackend
from tests.simulation.faults import Faults
from tests.simulation.hub import Hub, Machine, Process, Stuck
from tests.simulation.record import Record, Violation
from tests.simulation.runtime import SimRuntime
from tests.simulation.service import DEAD_LETTERS, SUBSCRIPTION, Service
from tests.simulation.spark import AVAILABLE_NOW, ONCE, PROCESSING_TIME, Application, Checkpoint, Query, Sink
from tests.simulation.store import SimStore

_GAPS = (0.0, 0.0, 1.0, 30.0, 700.0, 3600.0, DAY, 3 * DAY)  # seconds between two runs
_QUIET_RUN_SECONDS = 3600.0  # in which a run of a quiet world ends, or a query that runs on has read everything
_LEASES_SECONDS = 700.0  # after which no lease of a dead client is left


@dataclass(frozen=True)
class Plan:
    """What a seed draws before a history begins. without: kinds of faults that are left out."""

    seed: int
    runs: int | None = None
    messages: int | None = None
    without: frozenset[str] = frozenset()
    mutation: str | None = None


@dataclass
class Outcome:
    """The end of a history. violation: None if every invariant held."""

    plan: Plan
    violation: Violation | None
    record: Record
    rates: dict[str, float]
    repeats: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    messages: int = 0
    runs: int = 0


class History:
    """The world of one history, and the operator who starts, stops and breaks things in it."""

    def __init__(self, plan: Plan, chooser: Chooser | None = None) -> None:
        self.plan = plan
        self.chooser = chooser = chooser or Seeded(plan.seed)
        self.faults = faults = Faults.drawn(chooser, without=plan.without)
        self.hub = hub = Hub(chooser, faults.rates.get("slow threads", 0.0))
        self.record = record = Record(hub)
        checkers.watch_acks(record)
        self.settings = self._settings()
        self.service = Service(hub, faults, record, self.settings)
        self.backend = SimBackend(self.service, probe_after=chooser.pick((10.0, float("inf"))))
        is_local = chooser.chance(0.5)
        self.stores = [SimStore(hub, faults, record, f"sim://area-{n}", is_local) for n in range(2)]
        skews = (0.0, -120.0, 7200.0) if faults.hits("clocks apart") else (0.0,)
        self.machines = [Machine(f"machine {n}", 1000.0 * n, chooser.pick(skews)) for n in range(chooser.pick((1, 3)))]
        self.query = self._query()
        self.checkpoint, self.sink = Checkpoint("c"), Sink()
        self.applications: list[Application] = []
        self.runs = plan.runs or 1 + chooser.below(4)
        self.messages_left = plan.messages or chooser.pick((3, 10, 30))
        self.is_over = False
        self.repeats: Counter[str] = Counter()
        self._operator = Process(hub, "operator", Machine("console"))
        self._runtime = SimRuntime(self._operator)
        self._store = self.stores[0]

    def run(self) -> Outcome:
        """Run the history to its end."""
        hub, record = self.hub, self.record
        product.begin()
        ids = random.Random(self.plan.seed)
        with mock.patch("uuid.uuid4", lambda: uuid.UUID(int=ids.getrandbits(128))):
            random.seed(self.plan.seed)
            self._operator.on_failure = lambda error: record.violate("I4", f"the simulator fails: {error!r}")
            self._operator.start(self._operate, "operator")
            try:
                hub.run(lambda: self.is_over or record.violation is not None)
            except Stuck as stuck:
                record.violate("I4", str(stuck))
            finally:
                hub.end()
        self.backend.close()
        for store in self.stores:
            store.close()
        return Outcome(
            self.plan,
            record.violation,
            record,
            self.faults.rates,
            self.repeats,
            hub.steps,
            len(record.messages),
            len(self.applications),
        )

    # What the seed draws

    def _settings(self) -> Settings:
        chooser = self.chooser
        settings = Settings(ack_deadline=10, exactly_once=chooser.chance(0.35), ordering=chooser.chance(0.25))
        if chooser.chance(0.2):
            settings = replace(settings, min_backoff=10, max_backoff=chooser.pick((10, 600)))
        if chooser.chance(0.1):
            settings = replace(settings, dead_letter_topic=DEAD_LETTERS, dead_letter_attempts=chooser.pick((5, 20)))
        if chooser.chance(0.5):
            settings = replace(settings, retain_acked=True)
        return settings

    def _query(self) -> Query:
        chooser = self.chooser
        messages = chooser.pick((1, 3, 10, 1000))
        return Query(
            _options(chooser, messages),
            chooser.pick((PROCESSING_TIME, PROCESSING_TIME, AVAILABLE_NOW, AVAILABLE_NOW, ONCE)),
            chooser.chance(0.6),
            product.Budget(messages, 10**6),
            chooser.pick((1, 2, 3)),
            chooser.pick((0.0, 0.0, 5.0, 60.0)),
        )


    # The operator

    def _operate(self) -> None:
        for number in range(self.runs):
            self._publish()
            if self._run_with_faults(is_last=number == self.runs - 1):
                is_idle = not any(each.is_alive for each in self.applications)
                self._wait(self.chooser.pick(_GAPS if is_idle else _GAPS[:4]))
        self._publish(everything=True)
        self._calm()
        self._run_quietly()
        self.is_over = True

    def _wait(self, seconds: float) -> None:
        if seconds:
            self._runtime.sleep(seconds)

    def _publish(self, everything: bool = False) -> None:
        count = self.messages_left if everything else min(self.messages_left, self.chooser.pick((0, 1, 3, 10, 30)))
        self.messages_left -= count
        keys = ("a", "b") if self.settings.ordering else ("",)
        while count > 0:
            together = min(count, self.chooser.pick((1, 2, 10)))
            first = len(self.record.messages)
            self.service.publish([b"%d" % (first + n) for n in range(together)], self.chooser.pick(keys))
            count -= together

    def _start(self, query: Query | None = None) -> Application:
        query = query or self.query
        name = f"run {len(self.applications) + 1}"
        trigger = query.trigger + ("" if query.passes_start else " on Spark 4.0")
        self.record.tell("operator", "starts %s: %s", name, trigger)
        application = Application(
            self.hub,
            query,
            self.checkpoint,
            self.sink,
            self.backend,
            self._store,
            self.faults,
            self.record,
            self.machines,
            name,
        )
        self.applications.append(application)
        return application

    def _run_with_faults(self, is_last: bool) -> bool:
        """Run the query for a while; False if it runs on, into the quiet time."""
        chooser, faults = self.chooser, self.faults
        self._break_things()
        if faults.hits("other options"):
            self.query = replace(self.query, options=_options(chooser, self.query.budget.messages))
        self._store = self.stores[int(faults.hits("other staging"))]
        if self._store is not self.stores[0]:
            self.record.note("other staging")
        application = self._start()
        application.plan_faults(application.driver, "driver killed")
        if faults.hits("second driver"):
            self.hub.after(chooser.seconds(0.1, 100), self._start)
        patience = chooser.seconds(1, 600) if self.query.trigger == PROCESSING_TIME else 1800.0
        end = self.hub.now + patience
        while application.is_alive and self.hub.now < end:
            self._wait(min(end - self.hub.now, chooser.seconds(0.1, 100)))
            if chooser.chance(0.5):
                self._publish()
            if chooser.chance(0.3):
                self._break_things_now(application)
        if is_last and application.is_alive and chooser.chance(0.3):
            return False
        self._end(application)
        return True

    def _end(self, application: Application) -> None:
        """Stop an application as Spark does, or kill it."""
        if application.is_alive and self.chooser.chance(0.7):
            application.stop()
            self._wait_for(application, 30.0)
        if application.is_alive:
            application.kill()
        for other in self.applications:
            if other.is_alive and self.chooser.chance(0.8):
                other.kill()

    def _wait_for(self, application: Application, seconds: float) -> None:
        end = self.hub.now + seconds
        while application.is_alive and self.hub.now < end:
            self._wait(min(1.0, end - self.hub.now))

    def _break_things(self) -> None:
        """Faults between two runs."""
        faults, chooser, checkpoint = self.faults, self.chooser, self.checkpoint
        if faults.hits("file removed"):
            self._remove_files()
        if faults.hits("checkpoint rolled back") and checkpoint.offsets:
            kept = chooser.below(len(checkpoint.offsets))
            self.record.note("rolled back")
            self.record.tell("operator", "rolls the checkpoint back to %s of %s batches", kept, len(checkpoint.offsets))
            del checkpoint.offsets[kept:]
            self.checkpoint.commits = {number for number in checkpoint.commits if number < kept}
            self.sink.written = {number: rows for number, rows in self.sink.written.items() if number < kept}
        self._break_service()

    def _break_service(self) -> None:
        faults, chooser, service, hub = self.faults, self.chooser, self.service, self.hub
        if faults.hits("seek back"):
            service.seek(hub.now - chooser.seconds(1, 2 * DAY))
        if faults.hits("seek forward"):
            service.seek(hub.now)
        if faults.hits("recreated"):
            service.recreate()
        for kind in ("service down", "service silent", "no quota"):
            if faults.hits(kind):
                hub.after(chooser.seconds(0.01, 60), lambda kind=kind: self._outage(kind))  # type: ignore[misc]

    def _outage(self, kind: str) -> None:
        seconds = self.chooser.seconds(0.5, 1200)
        if not self.faults.are_on:
            return
        self.record.note(kind, seconds)
        self.record.tell("service", f"{kind} for %s s", round(seconds, 1))
        until = self.hub.now + seconds
        if kind == "no quota":
            self.service.quota_until = until
        elif kind == "service silent":
            self.service.silent_until = until
            self.hub.after(seconds, self.service.resend)
        else:
            self.service.end_streams()
            self.service.down_until = until

    def _break_things_now(self, application: Application) -> None:
        """Faults while the query runs."""
        faults, chooser = self.faults, self.chooser
        if faults.hits("all suspended"):
            application.suspend_all(chooser.seconds(1, 900))
        if faults.hits("file removed"):
            self._remove_files()
        if faults.hits("driver killed") and chooser.chance(0.2):
            application.driver.kill()
        if faults.hits("power loss") and self.stores[0].is_local:
            self.record.tell("operator", "loses power")
            for each in self.applications:
                each.kill()
            for store in self.stores:
                store.lose_power()
        self._break_service()

    def _remove_files(self) -> None:
        """Remove one file, a batch, or everything, as a cleaner or a person does."""
        store = self.chooser.pick(self.stores)
        files = sorted(store.files)
        if not files:
            return
        chosen = self.chooser.pick(files)
        scope = self.chooser.pick((chosen, chosen.rpartition("/")[0] + "/", ""))
        for path in files:
            if path.startswith(scope):
                store.remove(path)

    # The quiet time

    def _calm(self) -> None:
        """Turn the faults off; wait until what was suspended runs again and late attempts have ended."""
        hub, service = self.hub, self.service
        self.record.tell("operator", "turns the faults off")
        self.faults.are_on = False
        hub.slow_threads = 0.0
        service.down_until = service.silent_until = service.quota_until = 0.0
        service.resend()
        self._store = self.stores[0]
        for process in self.hub.processes:
            process.at.clear()
        while any(process.is_suspended and not process.dead for process in hub.processes):
            self._wait(100.0)
        self._wait(max(self.chooser.pick((0.0, _LEASES_SECONDS)), self.settings.max_backoff))

    def _run_quietly(self) -> None:
        """Run the query until everything is delivered, and check what must be true then."""
        query, record = self.query, self.record
        running = next((each for each in self.applications if each.is_alive), None)
        for other in self.applications:
            if other is not running and other.is_alive:
                other.kill()
        runs = 2
        if query.is_asked_once:
            runs = 3 + len(record.messages) // query.budget.messages
        failures = 0
        while runs > 0:
            application = running or self._start(self.query)
            running = None
            self._run_one_quietly(application)
            if self._is_delivered():
                break
            if application.error is not None or not application.has_succeeded:
                failures += 1
                if failures > 3:
                    record.violate("I4", f"the query fails again and again: {application.error}")
                    return
                self._follow_the_advice(application)
                continue
            runs -= 1
            self._wait(max(_LEASES_SECONDS, self.settings.max_backoff))
        self._check_end()

    def _run_one_quietly(self, application: Application) -> None:
        end = self.hub.now + _QUIET_RUN_SECONDS
        runs_on = application.query.trigger == PROCESSING_TIME
        while application.is_alive and self.hub.now < end:
            self._wait(5.0)
            if runs_on and self._is_delivered():
                self._wait(60.0)  # the last batch is acknowledged by a trigger that finds nothing
                break
        if application.is_alive:
            if not runs_on:
                self.record.violate("I4", f"{application.name} has not ended after {_QUIET_RUN_SECONDS:.0f} quiet seconds")
            application.stop()
            self._wait_for(application, 60.0)
            if application.is_alive:
                self.record.violate("I4", f"{application.name} has not stopped within 60 quiet seconds")

    def _follow_the_advice(self, application: Application) -> None:
        """Do what a StagingError says: go on without the lost batches, or start a new checkpoint."""
        record = self.record
        lost = any(record.notes[kind] for kind in ("file removed", "rolled back", "other staging"))
        if application.error is None or not lost:
            return
        if self.query.fails_on_data_loss:
            record.tell("operator", "sets failOnDataLoss=false")
            options = replace(self.query.options, fail_on_data_loss=False)
            self.query = replace(self.query, options=options, fails_on_data_loss=False)
        else:
            record.tell("operator", "starts a new checkpoint")
            record.note("new checkpoint")
            self.checkpoint, self.sink = Checkpoint("new"), Sink()

    def _is_delivered(self) -> bool:
        return not checkers.undelivered(self.record) and not self._backlog()

    def _backlog(self) -> int:
        return self.service.broker.subscriptions[SUBSCRIPTION].backlog

    def _check_end(self) -> None:
        record = self.record
        if missing := checkers.undelivered(record):
            record.violate("I3", f"after the quiet runs {len(missing)} messages are no rows: {missing[:5]}")
        elif backlog := self._backlog():
            record.violate("I3", f"after the quiet runs {backlog} messages are not acknowledged")
        self.repeats = checkers.check_repeats(record)
        checkers.check_order(record)
        checkers.check_split_keys(record)
        lost = any(record.notes[kind] for kind in ("file removed", "rolled back", "other staging", "new checkpoint"))
        if not lost and self.chooser.chance(0.3):
            self._wait(2 * _LEASES_SECONDS)
            self._run_one_quietly(self._start(self.query))
            checkers.check_files(record, self.stores[0], int(self.query.is_asked_once))


def _options(chooser: Chooser, messages: int) -> ReadOptions:
    """The options of a query: those that decide about batches, small so that a few messages reach every limit."""
    return ReadOptions(
        endpoint=ADDRESS,
        subscription_id=SUBSCRIPTION,
        max_messages_per_trigger=messages,
        idle_timeout=chooser.pick((1.0, 5.0)),
        max_fetch_period=chooser.pick((1.0, 10.0, 60.0)),
        max_unacknowledged_batches=chooser.pick((1, 2, 100)),
    )


def run(plan: Plan) -> Outcome:
    """Run the history of a plan."""
    return History(plan).run()


__all__ = ["History", "Outcome", "Plan", "run"]
