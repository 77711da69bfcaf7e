"""When a trigger plans a batch. Pure."""

from __future__ import annotations

from pubsub_spark.read.driver.triggers import Action, Step, StreamView, Triggers

EMPTY = StreamView(0, None, None, False, 0.0, 1e6)
IDLE = 2.0


def triggers(**settings: object) -> Triggers:
    made = Triggers(IDLE, **settings)  # type: ignore[arg-type]
    made.begin(100.0)
    return made


def holding(count: int, arrival: float = 100.0, published: float = 50.0, is_full: bool = False) -> StreamView:
    return StreamView(count, arrival, published, is_full, 0.0, 1e6)


def test_nothing_without_messages() -> None:
    """A query without an end plans nothing if nothing is buffered."""
    assert Step(Action.END) == triggers().next(EMPTY, 100.0)


def test_the_first_trigger_of_a_restart_waits_a_moment() -> None:
    """The stream was just opened, and `processAllAvailable` asks for the messages of now. An outage ends the wait."""
    made = Triggers(IDLE)
    made.begin(100.0, has_committed=True)
    assert Step(Action.WAIT, 0.5) == made.next(EMPTY, 100.0)
    assert Step(Action.WAIT, 0.25) == made.next(EMPTY._replace(idle_seconds=0.25), 100.5)
    assert Step(Action.END) == made.next(EMPTY._replace(idle_seconds=0.5), 101.0)
    assert Step(Action.END) == made.next(EMPTY, 100.0 + IDLE)
    made.begin(110.0, has_committed=True)
    assert Step(Action.END) == made.next(EMPTY, 110.0)


def test_a_batch_waits_a_moment_for_more() -> None:
    """A batch is planned `linger` seconds after its first message, or as soon as no more arrive."""
    made = triggers()
    assert Action.WAIT is made.next(holding(1), 100.0).action
    assert Action.WAIT is made.next(holding(2), 100.004).action
    assert Action.PLAN is made.next(holding(2), 100.010).action
    assert Action.PLAN is made.next(holding(9), 100.0 + made.linger).action


def test_a_full_stream_is_planned_at_once() -> None:
    """Flow control holds messages back, so that waiting brings no more."""
    assert Step(Action.PLAN) == triggers().next(holding(1000, is_full=True), 100.0)


def test_available_now_ends_after_idle_time_on_a_healthy_connection() -> None:
    """`availableNow` waits until the streams were idle for `idleTimeout`, and probes: an outage is not idle."""
    made = triggers(drained_from=99.0)
    assert Step(Action.WAIT, 0.5) == made.next(EMPTY, 100.0)
    assert Step(Action.WAIT, 0.25) == made.next(EMPTY._replace(idle_seconds=1.75), 101.75)
    assert Action.WAIT is made.next(EMPTY, 105.0).action
    assert Step(Action.PROBE) == made.next(EMPTY._replace(idle_seconds=2.0), 100.0)


def test_available_now_waits_a_moment_after_tasks_have_pulled() -> None:
    """Messages that tasks have nacked are redelivered at once: an idle driver stream is no proof yet."""
    made = triggers(drained_from=99.0)
    made.begin(100.0, was_pulled=True)
    assert Step(Action.WAIT, 0.5) == made.next(EMPTY._replace(idle_seconds=9.0), 100.0)
    assert Step(Action.PROBE) == made.next(EMPTY._replace(idle_seconds=9.5), 100.5)


def test_available_now_waits_for_room_in_the_stream() -> None:
    """A full stream holds messages back until its acks. Tasks that have pulled meanwhile would have received them."""
    made, acknowledged = triggers(drained_from=99.0), EMPTY._replace(idle_seconds=9.0, room_seconds=0.25)
    assert Step(Action.WAIT, 0.5) == made.next(acknowledged, 101.0)
    assert Step(Action.WAIT, 0.25) == made.next(acknowledged._replace(room_seconds=1.75), 101.0)
    made.begin(100.0, was_pulled=True)
    assert Step(Action.WAIT, 0.25) == made.next(acknowledged, 101.0)
    assert Step(Action.PROBE) == made.next(acknowledged._replace(room_seconds=0.5), 101.0)


def test_available_now_leaves_what_was_published_later() -> None:
    """Messages from after the start of the query are no reason for a batch."""
    made = triggers(drained_from=99.0)
    assert Step(Action.END) == made.next(holding(1, published=99.5, is_full=True), 100.0)
    assert Step(Action.PLAN) == made.next(holding(1, published=98.5, is_full=True), 100.0)


def test_the_only_batch_waits_until_no_more_come() -> None:
    """With `once` half a second must pass without a message. The second trigger is not the only one."""
    made = triggers(may_be_asked_once=True)
    assert Step(Action.WAIT, 0.5) == made.next(holding(1), 100.0)
    assert Action.WAIT is made.next(holding(2), 100.4).action
    assert Action.WAIT is made.next(holding(2), 100.8).action
    assert Step(Action.PLAN) == made.next(holding(2), 100.9)
    made.begin(101.0)
    assert Step(Action.END) == made.next(EMPTY, 101.0)


def test_available_now_waits_for_room_although_later_messages_come() -> None:
    """Acks that were just accepted may let earlier messages come. A message published after the start says nothing."""
    made, later = triggers(drained_from=99.0), holding(1, arrival=90.0, published=100.0)
    made.next(later, 100.0)
    assert Step(Action.WAIT, 0.5) == made.next(later._replace(room_seconds=0.25), 101.0)
    assert Step(Action.WAIT, 0.25) == made.next(later._replace(room_seconds=1.75), 101.0)
    assert Step(Action.END) == made.next(later._replace(room_seconds=2.0), 101.0)
