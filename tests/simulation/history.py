"""One history: a seed draws a world, then faults happen in it, then it is quiet and everything must be delivered.

    safety    one to four runs of the query with the drawn faults: started, stopped, killed, suspended, seconds or days
              apart. After each step the invariants I1 and I2 are checked
    liveness  faults off. Two runs (more if Spark asks for one batch a run). Then I3, I5, I6 and the ordering keys

One history in five is of a job that runs again and again (`_JOB`): an id that a run forgets too early is a row of a
later run. Another one in five is of runs that are killed while their calls of the store take minutes (`_KILLED`): a
file of theirs comes after the start of a later run.

A `Plan` can leave things out, so that a failed history can be made smaller (`shrink`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from pubsub_spark.emulator.state.settings import DAY, Settings
from pubsub_spark.options import ReadOptions
from tests.simulation import checkers, product, schemas
from tests.simulation.chooser import Chooser, Seeded
from tests.simulation.connection import ADDRESS
from tests.simulation.faults import REPEATING, UNDOING, Faults
from tests.simulation.record import Record, Violation
from tests.simulation.service import DEAD_LETTERS, SUBSCRIPTION
from tests.simulation.spark import AVAILABLE_NOW, ONCE, PROCESSING_TIME, Application, Checkpoint, Query, Sink
from tests.simulation.world import Setup, World

_SHORT_SECONDS = 61.0  # between two runs, while a query of an earlier run lives on
_LEASES_SECONDS = 700.0  # after which no lease of a dead client is left
SINGLE_BATCH_RUNS = 4  # of one batch each: an old batch again, an empty one, the messages, their acks
_FEW_BYTES = 600  # of responses: a few messages
BUFFERED_RESPONSES = 4  # of a service that cuts none: a larger buffer is nearly full while the last does not fit
_MAX_FAILURES = 3  # of quiet runs after a loss, each with an error that says what to do. Without one none fails
_LOSSES = ("file removed", "rolled back", "other staging", "new checkpoint")


@dataclass(frozen=True)
class _Kind:
    """The draws of a kind of history. exactly_once, backoff, dead_letters: probabilities."""

    without: frozenset[str] = frozenset()  # kinds of faults
    most_faults: int = 5
    always: tuple[str, ...] = ()  # kinds of faults that are drawn besides
    runs: tuple[int, ...] = (1, 2, 3, 4)
    gaps: tuple[float, ...] = (0.0, 0.0, 1.0, 30.0, 700.0, 3600.0, DAY, 3 * DAY)  # seconds between two runs
    messages: tuple[int, ...] = (3, 10, 30)
    exactly_once: float = 0.35
    backoff: float = 0.2
    dead_letters: float = 0.1
    responses: tuple[int | None, ...] = (None, None, None, 2)
    budgets: tuple[int, ...] = (1, 3, 10, 1000)  # messages of a batch
    buffered: tuple[int, ...] = (1, 3, 1000)  # messages
    triggers: tuple[str, ...] = (PROCESSING_TIME, PROCESSING_TIME, AVAILABLE_NOW, AVAILABLE_NOW, ONCE)


_ANY = _Kind()
# Few messages fit into a buffer or a batch, most runs are longer apart than a lease, and no fault explains a repeat.
_JOB = _Kind(
    without=REPEATING,
    most_faults=3,
    runs=(3, 4, 5, 6, 7),
    gaps=(0.0, 30.0, 61.0, 590.0, 610.0, 700.0, 1250.0, 1300.0, 1300.0, 1900.0, 1900.0, 3600.0, 3600.0, DAY, DAY),
    messages=(10, 30),
    exactly_once=0.6,
    backoff=0.6,
    dead_letters=0.0,
    responses=(None,),
    budgets=(2, 3),
    buffered=(2, 3, 4, 1000),
    triggers=(AVAILABLE_NOW, AVAILABLE_NOW, ONCE),
)
# No fault but a late call of an earlier run changes the files of a later one.
_KILLED = _Kind(
    without=UNDOING,
    most_faults=2,
    always=("driver killed", "store slow"),
    runs=(3, 4, 5, 6),
    gaps=(0.0, 0.0, 1.0, 30.0, 61.0, 700.0),
    messages=(3, 10),
    budgets=(1, 2, 3),
    buffered=(1, 2, 3, 1000),
)
_TAKEN_OVER = replace(_KILLED, always=("second driver", "store slow"))


@dataclass(frozen=True)
class Plan:
    """A seed, and the differences from its draws. without: kinds of faults that are left out. spared: see `Faults`."""

    seed: int
    runs: int | None = None
    messages: int | None = None
    without: frozenset[str] = frozenset()
    spared: frozenset[int] = frozenset()


@dataclass
class Outcome:
    """The end of a history. violation: None if every invariant held. rates, hit: see `Faults`."""

    plan: Plan
    violation: Violation | None
    record: Record
    rates: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    runs: int = 0
    hit: int = 0

    @property
    def messages(self) -> int:
        """The number of published messages."""
        return len(self.record.messages)

    @property
    def happened(self) -> int:
        """The number of faults that were hit and not spared."""
        return self.hit - sum(number <= self.hit for number in self.plan.spared)


def run(plan: Plan) -> Outcome:
    """Run the history of a plan."""
    chooser = Seeded(plan.seed)
    kind = chooser.pick((_ANY, _ANY, _ANY, _JOB, _KILLED, _TAKEN_OVER))
    faults = Faults.drawn(chooser, kind.most_faults, plan.without | kind.without, kind.always, plan.spared)
    history = History(plan, World(chooser, faults, _setup(chooser, faults, kind)), kind)
    world, record = history.world, history.world.record
    world.run(history.operate, plan.seed)
    rates, runs = faults.rates, len(world.applications)
    return Outcome(plan, record.violation, record, rates, world.hub.steps, runs, faults.hit)


def _setup(chooser: Chooser, faults: Faults, kind: _Kind) -> Setup:
    settings = Settings(
        ack_deadline=10,
        retention=31 * DAY,
        ttl=math.inf,
        exactly_once="some ids fail" in faults.rates or chooser.chance(kind.exactly_once),
        # A task looks for late parts if its messages have keys, and an ack that fails has effects on its key.
        ordering=chooser.chance(
            0.8 if {"partial action", "some ids fail", "acks dropped"} & faults.rates.keys() else 0.25
        ),
    )
    if chooser.chance(kind.backoff):
        settings = replace(settings, min_backoff=10, max_backoff=chooser.pick((10, 600)))
    if chooser.chance(kind.dead_letters):
        settings = replace(settings, dead_letter_topic=DEAD_LETTERS, dead_letter_attempts=chooser.pick((5, 20)))
    if chooser.chance(0.5):
        settings = replace(settings, retain_acked=True)
    skews = (0.0, -120.0, 7200.0) if faults.hits("clocks apart") else (0.0,)
    return Setup(
        settings,
        chooser.pick((10.0, float("inf"))),
        chooser.chance(0.5),
        tuple(chooser.pick(skews) for _ in range(chooser.pick((1, 3)))),
        chooser.pick(kind.responses),
        "other staging" in faults.rates and chooser.chance(0.5),
        chooser.pick((1, 3, 3000)),
    )


def _query(chooser: Chooser, response: int | None, kind: _Kind) -> Query:
    messages, volume = chooser.pick(kind.budgets), chooser.pick((10**6, 10**6, _FEW_BYTES))
    buffered = chooser.pick(kind.buffered)
    if response is not None:
        messages, buffered = 1000, BUFFERED_RESPONSES * response
    return Query(
        _options(chooser, messages, volume),
        chooser.pick(kind.triggers),
        chooser.chance(0.6),
        product.Budget(messages, volume),
        chooser.pick((1, 2, 3)),
        buffered,
        chooser.pick((0.0, 0.0, 0.0, 5.0, 60.0)),
    )


def _options(chooser: Chooser, messages: int, volume: int) -> ReadOptions:
    """Return the options of a query: those of batches are small, so that a few messages reach every limit."""
    return ReadOptions(
        endpoint=ADDRESS,
        subscription_id=SUBSCRIPTION,
        max_messages_per_trigger=messages,
        max_bytes_per_trigger=volume,
        idle_timeout=chooser.pick((1.0, 5.0)),
        max_fetch_period=chooser.pick((1.0, 10.0, 60.0)),
        max_unacknowledged_batches=chooser.pick((1, 2, 100)),
    )


class History:
    """The operator of one history: starts, stops and breaks things."""

    def __init__(self, plan: Plan, world: World, kind: _Kind) -> None:
        self.world, self._kind = world, kind
        self._chooser, self._faults, self._record = world.chooser, world.faults, world.record
        self._query = _query(world.chooser, world.service.response, kind)
        if world.service.schema is not None:
            self._query = replace(self._query, options=replace(self._query.options, decode="topic"))
        self._runs = plan.runs or world.chooser.pick(kind.runs)
        self._messages_left = plan.messages or world.chooser.pick(kind.messages)

    def operate(self) -> None:
        """Run the history."""
        for number in range(self._runs):
            self._publish()
            if self._run_with_faults(is_last=number == self._runs - 1):
                is_idle = not any(each.is_alive for each in self.world.applications)
                gaps = [gap for gap in self._kind.gaps if is_idle or gap <= _SHORT_SECONDS]
                self.world.wait(self._chooser.pick(gaps))
        self._publish(everything=True)
        self._calm()
        self._run_quietly()

    def _publish(self, everything: bool = False) -> None:
        chooser = self._chooser
        count = self._messages_left if everything else min(self._messages_left, chooser.pick((0, 1, 3, 10, 30)))
        self._messages_left -= count
        keys = ("a", "b") if self.world.settings.ordering else ("",)
        while count > 0:
            together = min(count, chooser.pick((1, 2, 10)))
            self.world.publish(together, chooser.pick(keys))
            count -= together

    def _run_with_faults(self, is_last: bool) -> bool:
        """Run the query for a while. Returns False if it runs on, into the quiet time."""
        chooser, faults = self._chooser, self._faults
        self._break_things()
        if faults.hits("other options"):
            options = _options(chooser, self._query.budget.messages, self._query.budget.bytes)
            self._query = replace(self._query, options=replace(options, decode=self._query.options.decode))
        self.world.use_area(int(faults.hits("other staging")))
        application = self.world.start(self._query)
        application.plan_faults(application.driver, "driver killed")
        if faults.hits("second driver"):
            self.world.hub.after(
                chooser.seconds(0.1, 100),
                lambda: faults.are_on and application.is_alive and self.world.start(self._query),
            )
        patience = chooser.seconds(1, 600) if self._query.trigger == PROCESSING_TIME else 1800.0
        end = self.world.hub.now + patience
        while application.is_alive and self.world.hub.now < end:
            self.world.wait(min(end - self.world.hub.now, chooser.seconds(0.1, 100)))
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
        if application.is_alive and self._chooser.chance(0.7):
            application.stop()
            self.world.wait_for(application, 30.0)
        if application.is_alive:
            application.kill()
        for other in self.world.applications:
            if other.is_alive and self._chooser.chance(0.8):
                other.kill()

    def _break_things(self) -> None:
        """Break things between two runs."""
        faults, chooser, checkpoint = self._faults, self._chooser, self.world.checkpoint
        if faults.hits("file removed"):
            self._remove_files()
        is_in_use = any(each.is_alive for each in self.world.applications)
        if faults.hits("checkpoint rolled back") and checkpoint.offsets and not is_in_use:
            self.world.roll_back(chooser.below(len(checkpoint.offsets)))
        self._break_service()

    def _break_service(self) -> None:
        faults, chooser, service, hub = self._faults, self._chooser, self.world.service, self.world.hub
        if faults.hits("seek back"):
            service.seek(hub.now - chooser.seconds(1, 2 * DAY))
        if faults.hits("seek forward"):
            service.seek(hub.now)
        if faults.hits("recreated"):
            service.recreate()
        if service.schema is not None and faults.hits("schema changed"):
            service.schema.commit(hub.now + chooser.pick(schemas.LATE_SECONDS))
            self._record.tell("operator", "commits revision %s", len(service.schema.revisions) - 1)
        if service.schema is not None and faults.hits("schema changed"):
            deleted = chooser.below(len(service.schema.revisions))
            service.schema.delete(deleted)
            self._record.tell("operator", "deletes revision %s", deleted)
        for kind in ("service down", "service silent", "no quota"):
            if faults.hits(kind):
                hub.after(chooser.seconds(0.01, 60), lambda kind=kind: self._outage(kind))  # type: ignore[misc]

    def _outage(self, kind: str) -> None:
        seconds = self._chooser.seconds(0.5, 1200)
        if not self._faults.are_on:
            return
        self._record.note(kind, seconds)
        self._record.tell("service", f"{kind} for %s s", round(seconds, 1))
        until = self.world.hub.now + seconds
        if kind == "no quota":
            self.world.service.quota_until = until
            self.world.service.is_transient = self.world.settings.exactly_once and self._chooser.chance(0.3)
        elif kind == "service silent":
            self.world.service.silent_until = until
            self.world.hub.after(seconds, self.world.service.resend)
        else:
            self.world.service.end_streams()
            self.world.service.down_until = until

    def _break_things_now(self, application: Application) -> None:
        """Break things while the query runs."""
        faults, chooser = self._faults, self._chooser
        if faults.hits("all suspended"):
            application.suspend_all(chooser.seconds(1, 900))
        if faults.hits("file removed"):
            self._remove_files()
        if faults.hits("driver killed") and chooser.chance(0.2):
            application.driver.kill()
        if faults.hits("power loss") and self.world.stores[0].is_local:
            self._record.tell("operator", "loses power")
            for each in self.world.applications:
                each.kill()
            for store in self.world.stores:
                store.lose_power()
        self._break_service()

    def _remove_files(self) -> None:
        """Remove one file, a batch, or everything, as a cleaner or a person does."""
        store = self._chooser.pick(self.world.stores)
        files = sorted(store.files)
        if not files:
            return
        chosen = self._chooser.pick(files)
        scope = self._chooser.pick((chosen, chosen.rpartition("/")[0] + "/", ""))
        for path in files:
            if path.startswith(scope):
                store.remove(path)

    # The quiet time

    def _calm(self) -> None:
        """Turn the faults off. Wait until suspended processes run again and late attempts have ended."""
        hub, service = self.world.hub, self.world.service
        self._record.tell("operator", "turns the faults off")
        self._faults.are_on = False
        hub.slow_threads = hub.preempted = 0.0
        service.down_until = service.silent_until = service.quota_until = 0.0
        service.resend()
        self.world.use_area(0)
        for process in self.world.hub.processes:
            process.at.clear()
        while any(process.suspensions and not process.dead for process in hub.processes) or any(
            machine.is_asleep for machine in self.world.machines
        ):
            self.world.wait(100.0)
        self.world.wait(max(self._chooser.pick((0.0, _LEASES_SECONDS)), self.world.settings.max_backoff))

    def _run_quietly(self) -> None:
        """Run the query until everything is delivered, and check the final invariants."""
        world = self.world
        running = next((each for each in world.applications if each.is_alive), None)
        for other in world.applications:
            if other is not running and other.is_alive:
                other.kill()
        runs, failures = self._quiet_runs(), 0
        while runs > 0 and not world.is_delivered:
            application, is_old = running or world.start(self._query), running is not None
            running = None
            backlog, batches = world.backlog, len(self._record.commits)
            world.run_quietly(application)
            if application.has_succeeded:
                self._check_batches(backlog, len(self._record.commits) - batches)
                # A call of the store that began with the faults may take long, and delay a deletion beyond the end.
                if not is_old and world.is_delivered and application.is_idle and application.memory is not None:
                    is_calm = self._is_calm and not any(each.is_killed for each in world.applications)
                    checkers.check_memory(self._record, application.memory, is_calm)
                runs -= 1
                world.wait(max(_LEASES_SECONDS, world.settings.max_backoff))
                continue
            failures += 1
            allowed = _MAX_FAILURES if self._record.has_lost else int(is_old)
            if failures > allowed:
                self._record.violate(
                    "I4",
                    f"{application.name} fails, which is the failure {failures} of quiet runs: {application.error}",
                )
                return
            self._follow_the_advice(application)
        self._check_end()

    def _quiet_runs(self) -> int:
        """Return after how many runs everything is delivered: two, or one without any fault. More for one batch a run.

        Then it is the run after the next, or one run for each message if there are more than fit into a batch, or if
        acks of ordering keys have to come first. A batch that was not committed takes a run of its own, and so does the
        first one in a new staging area.
        """
        query, messages = self._query, len(self._record.messages)
        settings = self.world.settings
        if not query.is_asked_once:
            return 1 if self._is_calm else 2
        is_small = settings.ordering or query.budget.bytes <= _FEW_BYTES
        fits = 1 if is_small else min(query.budget.messages, query.buffered)
        left = max(len(checkers.undelivered(self._record)), self.world.backlog)
        return SINGLE_BATCH_RUNS + (messages if left > fits else 0)

    @property
    def _is_calm(self) -> bool:
        """Whether nothing delays a message until a later run of `availableNow`."""
        settings, query = self.world.settings, self._query
        delays = self._faults.rates or settings.ordering or settings.min_backoff or settings.exactly_once
        return not (delays or query.runs_on or query.is_asked_once)

    def _check_batches(self, backlog: int, batches: int) -> None:
        """Check I4: tasks pull a backlog that is larger than the buffer, also if the last response does not fit."""
        fits = self.world.service.response is not None and self._query.budget.bytes > _FEW_BYTES  # into one batch
        if fits and self._is_calm:
            checkers.check_batches(self._record, backlog, batches)

    def _follow_the_advice(self, application: Application) -> None:
        """Follow the advice of a StagingError: continue without the lost batches, or start a new checkpoint."""
        record = self._record
        if application.error is None or not record.has_lost:
            return
        if self._query.fails_on_data_loss:
            record.tell("operator", "sets failOnDataLoss=false")
            options = replace(self._query.options, fail_on_data_loss=False)
            self._query = replace(self._query, options=options, fails_on_data_loss=False)
        else:
            record.tell("operator", "starts a new checkpoint")
            record.note("new checkpoint")
            self.world.checkpoint, self.world.sink = Checkpoint("new"), Sink()

    def _check_end(self) -> None:
        record, world = self._record, self.world
        world.check_end()
        checkers.check_repeats(record)
        checkers.check_driver_parts(record)
        if not any(record.notes[kind] for kind in _LOSSES) and self._chooser.chance(0.3):
            world.wait(2 * _LEASES_SECONDS)
            world.run_quietly(world.start(self._query))
            checkers.check_files(record, world.store, world.checkpoint.stream, self._query.is_asked_once)
