"""The scenarios that are enumerated: small histories with one or two faults, each of them at any point.

`_crash` is the basic one: two messages, two batches, one crash and one late attempt. Enumerated are the protocol, the
trigger and two faults. The driver is killed at any point: each call of the store and the service, each message that
arrives, each write of Spark's logs and of the sink, or never. The first attempt of a pulling task is suspended at any
point and for each duration. Threads run as soon as they can, and nothing else fails.

Most of the others were written for a fault that random histories found late or not at all.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from pubsub_spark.emulator.state.settings import DAY, Settings
from pubsub_spark.options import ReadOptions
from tests.simulation import checkers, product
from tests.simulation.chooser import Enumerated, Fixed
from tests.simulation.connection import ADDRESS
from tests.simulation.faults import Faults
from tests.simulation.history import BUFFERED_RESPONSES, SINGLE_BATCH_RUNS
from tests.simulation.hub import Process
from tests.simulation.schemas import Schema
from tests.simulation.service import DEAD_LETTERS, SUBSCRIPTION, TOPIC, Code, SimRpcError
from tests.simulation.spark import AVAILABLE_NOW, ONCE, PROCESSING_TIME, Application, Query, Sink
from tests.simulation.store import SimStore
from tests.simulation.world import Setup, World

_SINK_SECONDS = 30.0  # of a batch after the crash
_LATE_SECONDS = (20.0, 700.0)  # while the batch is being evaluated again, and after its leases
_TRIGGERS = ((PROCESSING_TIME, True), (AVAILABLE_NOW, True), (AVAILABLE_NOW, False), (ONCE, True))
_LEASES_SECONDS = 700.0
_LATE_ACKS_SECONDS = 62.0  # until acks are accepted, after the lease of the driver stream
_LATE_START_SECONDS = 70.0  # until a later run has written ids in doubt
_SILENCES_SECONDS = 1.0, 620.0, 10.0, 10.0  # at the end of the last, a message of the run before is not due yet
_PULL_SECONDS = 5.0  # of a task
_IN_A_PULL_SECONDS = (1.0, 3.0)
_BEFORE_PULL_SECONDS = (15.0, 25.0)  # after which a batch is planned while no lease ends soon
_NO_QUOTA_SECONDS = 100.0  # until acks are accepted, long after the lease of the driver stream
_LONG_PULL_SECONDS = 20.0
_LATE_PULL_SECONDS = (35.0, 45.0)  # of an attempt, until the first lease ends
_LEASED_SECONDS = (40.0, 60.0)  # after which the lease ends of an attempt that has pulled at once, or late
_LONG_SINK_SECONDS = (1000.0, 1400.0)  # doubt spreads for less than the latter
_SLOW_SINK_SECONDS = 58.0  # a few less than a lease
_APART_SECONDS = (0.1, 5.0)  # two messages: their leases are extended at once, or one after the other
_EXTENDED_SECONDS = 6.0  # until the lease of the first message is extended, and the other one is not due
_TAKEN_OVER_SECONDS = 8.0  # of a run, while the second one replays its batch
_OF_A_START = tuple(range(1, 21))  # operations
_BEFORE_DELETION_SECONDS = 20.0  # after which ids in doubt are not so any more
_LONG_IDLE_SECONDS = 150.0
_KEPT_DAYS = 10  # after which ids in doubt are forgotten
_BACKLOG = 30  # messages
_METRICS = "shop-orders.prom"


def _query(trigger: str, passes_start: bool, pull_seconds: float = 1.0, messages: int = 2) -> Query:
    """messages: the most of a batch."""
    options = ReadOptions(
        endpoint=ADDRESS,
        subscription_id=SUBSCRIPTION,
        max_messages_per_trigger=messages,
        idle_timeout=pull_seconds,
        max_fetch_period=pull_seconds,
    )
    return Query(options, trigger, passes_start, product.Budget(messages, 10**6), fetch_partitions=1, buffered=1)


def _crash(world: World, choices: Enumerated) -> None:
    """Kill the driver, and suspend the first attempt of a task."""
    query = _query(*choices.pick(_TRIGGERS))
    world.publish(1)
    world.publish(1)
    application = world.start(query)
    application.driver.on_operation = _once(choices, application.driver.kill)
    application.on_attempt = lambda process: _make_late(application, process, choices)
    end = world.hub.now + 30.0
    while application.is_alive and world.hub.now < end:
        world.wait(1.0)
    _stop(world, application)
    application.driver.on_operation = None
    _run_until_delivered(world, replace(query, sink_seconds=_SINK_SECONDS))
    _check(world)


def _leave_an_attempt(world: World, choices: Enumerated) -> None:
    """Commit a batch while an attempt of its task lives on, which is suspended.

    The batch is deleted late. More messages make a task pull at the time when the lease of the attempt ends.
    """
    world.faults.rates["partial action"] = 1.0
    world.store.delays["creates", "1"] = _LEASES_SECONDS  # that batch 1 was acknowledged
    for key in "ab":
        world.publish(1, key)
    application = world.start(_query(PROCESSING_TIME, choices.pick((True, False)), _PULL_SECONDS))
    application.on_attempt = lambda process: _make_late(application, process, choices)
    world.wait(_LATE_SECONDS[0])
    world.faults.are_on = False
    world.store.delays.clear()
    world.wait(choices.pick(_LEASED_SECONDS))
    for key in "cde":
        world.publish(1, key)
    world.run_quietly(application)
    _check(world)


def _end_with_a_redelivery(world: World, choices: Enumerated) -> None:
    """Kill or stop a run at any point at which it may have been sent a message whose id is in doubt.

    The next run must not take the subscription for empty before the message is redelivered.
    """
    query = replace(_query(PROCESSING_TIME, True), buffered=choices.pick((1, 1000)))
    world.service.quota_until = world.hub.now + _LATE_ACKS_SECONDS
    world.publish(1)
    application = world.start(query)
    world.wait(_LATE_ACKS_SECONDS + 5.0)
    _stop(world, application)
    world.wait(DAY)
    world.service.quota_until = world.hub.now + choices.pick((0.0, _LATE_ACKS_SECONDS))
    application = world.start(query)
    ends = choices.pick((application.driver.kill, application.stop))
    application.driver.on_operation = _once(choices, ends)
    world.wait(10.0)
    _stop(world, application)
    world.wait(choices.pick((0.0, _LEASES_SECONDS)))
    _read_after_silences(world, query)


def _pull_late(world: World, choices: Enumerated) -> None:
    """Suspend an attempt at one of its operations, so that its pull ends after the lease of the batch before."""
    world.service.quota_until = world.hub.now + _NO_QUOTA_SECONDS
    world.publish(1)
    query = _query(PROCESSING_TIME, choices.pick((True, False)), choices.pick((_PULL_SECONDS, _LONG_PULL_SECONDS)))
    application = world.start(replace(query, buffered=2))
    world.wait(choices.pick(_BEFORE_PULL_SECONDS))
    world.publish(3)
    application.on_attempt = lambda process: _make_late(application, process, choices, _LATE_PULL_SECONDS)
    world.wait(_NO_QUOTA_SECONDS)
    world.publish(1)
    world.run_quietly(application)
    _check(world)


def _write_late(world: World, choices: Enumerated) -> None:
    """Write that a batch was acknowledged only after the next run. Stage a part of that run after its deletion."""
    query = _query(PROCESSING_TIME, choices.pick((True, False)), _PULL_SECONDS)
    world.store.delays["creates", "1"] = _LEASES_SECONDS  # that batch 1 was acknowledged
    world.publish(1)
    application = world.start(query)
    world.wait(_PULL_SECONDS)
    _stop(world, application)
    world.store.delays.clear()
    world.faults.rates["speculation"] = 1.0
    for _ in range(3):
        world.publish(1)
    application = world.start(query)
    application.on_attempt = lambda process: _make_late(application, process, choices)
    world.wait(_LATE_SECONDS[0])
    world.faults.are_on = False
    _stop(world, application)
    world.wait(_LEASES_SECONDS)
    world.run_quietly(world.start(query))
    _check(world)


def _stage_late(world: World, choices: Enumerated) -> None:
    """Kill a run whose driver's part comes into the store after later runs have committed its batch without it."""
    query = _query(*choices.pick(_TRIGGERS))
    world.store.delays["creates", "part-0"] = _NO_QUOTA_SECONDS
    world.publish(1)
    application = world.start(query)
    world.wait(_PULL_SECONDS)
    application.kill()
    world.store.delays.clear()
    application = world.start(query)
    application.driver.on_operation = _once(choices, application.driver.kill)
    world.wait(_PULL_SECONDS)
    _stop(world, application)
    world.publish(1)
    application = world.start(query)
    world.wait(_PULL_SECONDS)
    _stop(world, application)
    for _ in range(SINGLE_BATCH_RUNS):
        world.wait(_LEASES_SECONDS)
        world.run_quietly(world.start(query))
    _check(world)


def _roll_back(world: World, choices: Enumerated) -> None:
    """Put the checkpoint back by a batch whose ids are in doubt. Its messages must be rows again before their acks."""
    query = replace(_query(PROCESSING_TIME, choices.pick((True, False))), buffered=choices.pick((1, 1000)))
    world.service.quota_until = world.hub.now + _NO_QUOTA_SECONDS
    application = world.start(query)
    for _ in range(2):
        world.publish(1)
        world.wait(_PULL_SECONDS)
    world.wait(_LATE_ACKS_SECONDS)
    world.publish(1)  # ids are put in doubt before a batch is planned
    application.driver.on_operation = _once(choices, choices.pick((application.driver.kill, application.stop)))
    world.wait(_PULL_SECONDS)
    _stop(world, application)
    world.roll_back(1)
    world.wait(choices.pick((0.0, _LEASES_SECONDS)))
    world.run_quietly(world.start(query))
    _check(world)


def _start_late(world: World, choices: Enumerated) -> None:
    """Suspend a start at any point. Meanwhile a later run takes over, and has a message whose id is in doubt."""
    query = _query(PROCESSING_TIME, choices.pick((True, False)))
    application = world.start(query)
    world.wait(_PULL_SECONDS)
    _stop(world, application)
    late = world.start(query)
    late.driver.on_operation = _once(choices, lambda: late.suspend(late.driver, _LATE_START_SECONDS))
    world.wait(1.0)
    world.publish(1)
    world.service.quota_until = world.hub.now + _LATE_ACKS_SECONDS
    application = world.start(query)
    world.wait(_LATE_START_SECONDS + 5.0)
    choices.pick((application.kill, application.stop))()
    _stop(world, application)
    _stop(world, late)
    _read_after_silences(world, query)


def _lose_a_lease(world: World, choices: Enumerated) -> None:
    """Refuse to extend the lease of a buffered message. It ends, and it is redelivered, while a batch is written."""
    query = replace(_query(PROCESSING_TIME, choices.pick((True, False))), sink_seconds=_SLOW_SINK_SECONDS, buffered=3)
    application = world.start(query)
    world.publish(1)
    world.wait(choices.pick(_APART_SECONDS))
    world.publish(1)
    world.wait(_EXTENDED_SECONDS)
    world.faults.rates["some ids fail"] = 1.0
    world.service.chooser = Fixed(at=-1)  # the last reason is permanent
    world.wait(_SLOW_SINK_SECONDS / 2)
    world.faults.are_on = False
    world.run_quietly(application)
    _check(world)


def _deliver_a_key_twice(world: World, choices: Enumerated) -> None:
    """End leases early, so that two tasks are sent the same messages of a key. One is suspended at any point."""
    query = _query(PROCESSING_TIME, choices.pick((True, False)), _PULL_SECONDS, messages=1000)
    application = world.start(replace(query, fetch_partitions=2))
    world.wait(_PULL_SECONDS)
    world.faults.rates["lease cut"] = 1.0
    for key, count in (("b", 1), ("a", 2), ("a", 1)):
        world.publish(count, key)
    application.on_attempt = lambda process: _make_late(application, process, choices, _IN_A_PULL_SECONDS)
    world.wait(choices.pick((*_IN_A_PULL_SECONDS, _PULL_SECONDS + 1.0)))
    world.faults.are_on = False
    world.run_quietly(application)
    _check(world)
    checkers.check_keys(world.record)


def _take_over(world: World, choices: Enumerated) -> None:
    """Start a second run while the driver of the first, or its task, is suspended at any point."""
    query = replace(_query(PROCESSING_TIME, choices.pick((True, False))), buffered=choices.pick((1, 1000)))
    world.publish(1)
    world.publish(1)
    first, seconds = world.start(query), choices.pick((0.0, _SINK_SECONDS))

    def take_over(process: Process) -> None:
        world.start(replace(query, sink_seconds=seconds))
        first.suspend(process, _TAKEN_OVER_SECONDS)

    if choices.chance(0.5):
        first.driver.on_operation = _once(choices, lambda: take_over(first.driver))
    else:
        first.on_attempt = lambda process: _at_any_point(first, process, choices, lambda: take_over(process))
    world.wait(_PULL_SECONDS)
    first.driver.on_operation = None
    world.wait(_SINK_SECONDS + _TAKEN_OVER_SECONDS)
    for application in list(world.applications):
        _stop(world, application)
    world.run_quietly(world.start(query))
    _check(world)


def _take_over_a_deletion(world: World, choices: Enumerated) -> None:
    """Start a second run while the first puts an id in doubt and deletes its batch. Both are suspended at any point."""
    query = _query(PROCESSING_TIME, True)
    world.service.quota_until = world.hub.now + _LATE_ACKS_SECONDS
    world.publish(1)
    first = world.start(query)
    world.wait(_LATE_ACKS_SECONDS - 0.5)

    def take_over() -> None:
        second = world.start(query)
        second.driver.on_operation = _once(choices, lambda: second.suspend(second.driver, 2 * _PULL_SECONDS))
        first.suspend(first.driver, _PULL_SECONDS / 2)

    first.driver.on_operation = _once(choices, take_over)
    world.wait(_PULL_SECONDS)
    for application in world.applications:
        application.driver.on_operation = None
    world.wait(4 * _PULL_SECONDS)
    _stop(world, first)
    world.wait(_LEASES_SECONDS)
    if len(world.applications) == 1:
        _read_after_silences(world, query)
    else:
        world.run_quietly(world.applications[1])
        _check(world)


def _take_over_ids(world: World, choices: Enumerated) -> None:
    """Start a second run at any point at which the first deletes files of ids in doubt. It and its tasks read them."""
    query = _query(PROCESSING_TIME, True)
    world.service.quota_until = world.hub.now + _LATE_ACKS_SECONDS
    world.publish(1)
    first = world.start(replace(query, buffered=1000))
    world.wait(_PULL_SECONDS)
    world.publish(1)
    world.wait(_LATE_ACKS_SECONDS - _PULL_SECONDS + 3.0)
    world.publish(1)

    def take_over() -> None:
        second = world.start(query)
        second.driver.at[choices.pick(_OF_A_START)] = lambda: second.suspend(second.driver, 2 * _PULL_SECONDS)
        first.suspend(first.driver, _PULL_SECONDS / 2)

    world.wait(_BEFORE_DELETION_SECONDS)
    first.driver.on_operation = _once(choices, take_over)
    world.wait(_IN_A_PULL_SECONDS[1])
    first.driver.on_operation = None
    world.wait(_SINK_SECONDS)
    _stop(world, first)
    world.publish(4)
    world.wait(_LATE_SECONDS[0])
    _stop(world, world.applications[-1])
    world.run_quietly(world.start(query))
    _check(world)


def _lose_files(world: World, choices: Enumerated) -> None:
    """Remove one file of a batch, or all, while one of the attempts of its task is suspended at any point."""
    query = _query(PROCESSING_TIME, True, _PULL_SECONDS, messages=3)
    application = world.start(query)
    world.wait(_PULL_SECONDS)
    world.faults.rates["speculation"] = 1.0
    query.sink_seconds = _SINK_SECONDS
    application.on_attempt = lambda process: _make_late(application, process, choices, _LATE_SECONDS[:1])
    for _ in range(4):
        world.publish(1)
    world.wait(_LATE_SECONDS[0] - 1.0)
    _remove(world, choices, with_pairs=True)
    if choices.chance(0.5):
        application.driver.kill()
    world.wait(_SINK_SECONDS)
    query.sink_seconds = 0.0
    world.faults.are_on = False
    _stop(world, application)
    _read_on(world, query)


def _lose_files_after_the_sink(world: World, choices: Enumerated) -> None:
    """Kill a driver when the sink has its batch and the commit log has not. Remove one of the files, or all.

    One of two attempts of a task is suspended at any point, and may stage its part before the replay.
    """
    with _logged() as logged:
        query = _query(PROCESSING_TIME, choices.pick((True, False)), _PULL_SECONDS, messages=3)
        application = world.start(query)
        world.wait(_PULL_SECONDS)
        world.faults.rates["speculation"] = 1.0
        application.on_attempt = lambda process: _make_late(application, process, choices, _LATE_SECONDS[:1])
        log, sink = world.checkpoint, world.sink

        def kill() -> None:
            if any(rows and number not in log.commits for number, rows in sink.written.items()):
                application.driver.kill()

        application.driver.on_operation = kill
        for _ in range(4):
            world.publish(1)
        world.wait(_LATE_SECONDS[0] - 1.0)
        _remove(world, choices)
        world.wait(_PULL_SECONDS)
        world.faults.are_on = False
        _read_on(world, query)
    _check_reports(world, logged)


def _lose_a_sibling(world: World, choices: Enumerated) -> None:
    """Send two tasks of a batch the same messages. Kill the driver, and remove one file of the batch, or all."""
    query = replace(_query(PROCESSING_TIME, True, _PULL_SECONDS, messages=5), fetch_partitions=2)
    application = world.start(query)
    world.wait(_PULL_SECONDS)
    query.sink_seconds = application.query.sink_seconds = 2 * _SINK_SECONDS

    def suspend(process: Process) -> None:
        if process.name.endswith(".1.0") and not application.outlives:
            application.outlives.add(process)
            process.at[1] = lambda: application.suspend(process, 70.0)

    application.on_attempt = suspend
    world.publish(1)
    world.publish(2)
    world.service.quota_until = world.hub.now + _NO_QUOTA_SECONDS
    world.wait(90.0)
    application.kill()
    _remove(world, choices)
    world.wait(_LATE_SECONDS[0])
    query.sink_seconds = 0.0
    _read_on(world, query)


def _doubt_slowly(world: World, choices: Enumerated) -> None:
    """Write ids in doubt for so long that a lease ends before a task of the batch pulls."""
    query = _query(PROCESSING_TIME, True, 2 * _PULL_SECONDS, messages=1000)
    query = replace(query, buffered=choices.pick((4, 6)))
    world.service.quota_until = world.hub.now + _NO_QUOTA_SECONDS
    world.publish(1)
    application = world.start(query)
    world.wait(_BEFORE_PULL_SECONDS[1])
    epoch = next(path for path in world.store.files if "/owners/" in path).rpartition("/")[2]
    seconds = choices.pick((46.0, 48.0, 50.0, 52.0))
    for number in range(9):
        world.store.delays["creates", f"{epoch}-{number}"] = seconds
    world.publish(1)
    world.wait(choices.pick((5.5, 6.0, 6.5)))
    world.publish(choices.pick((6, 12)))
    world.wait(_NO_QUOTA_SECONDS)
    world.store.delays.clear()
    world.run_quietly(application)
    _check(world)


def _read_without_acks(world: World, choices: Enumerated) -> None:
    """Read messages while Pub/Sub answers no acks for a quarter of an hour."""
    query = _query(PROCESSING_TIME, choices.pick((True, False)), messages=1000)
    query = replace(query, buffered=1000, interval=choices.pick((0.0, 10.0)))
    world.service.quota_until = world.hub.now + 900.0
    application = world.start(query)
    for _ in range(9):
        world.publish(1)
        world.wait(100.0)
        if missing := checkers.undelivered(world.record):
            world.record.violate("I4", f"{missing} is no row after 100 s, although its stream is open")
    world.run_quietly(application)
    _check(world)


def _stand_still(world: World, choices: Enumerated) -> None:
    """Suspend the driver for longer than a lease, while a message comes. It must not use up its attempts."""
    query = replace(_query(PROCESSING_TIME, choices.pick((True, False))), buffered=1000)
    application = world.start(query)
    world.wait(2 * _PULL_SECONDS)
    seconds = choices.pick((61.0, 65.0, 70.0))
    application.suspend(application.driver, seconds)
    world.wait(choices.pick((0.5, seconds - 2.0)))
    world.publish(1)
    world.run_quietly(application)
    if any(message.ended for message in world.record.messages.values()):
        world.record.violate("I3", "a message that was never a row is a dead letter")
    _check(world)


def _lose_files_of_a_replay(world: World, choices: Enumerated) -> None:
    """Remove one file of a replayed batch, or all. A part of its first run is staged before or after."""
    query = _query(PROCESSING_TIME, choices.pick((True, False)))
    world.store.delays["creates", "part-1"] = 2 * _PULL_SECONDS
    world.publish(1)
    world.publish(1)
    application = world.start(query)
    world.wait(1.0)
    application.kill()
    world.service.quota_until = world.hub.now + 3 * _PULL_SECONDS
    query.sink_seconds = choices.pick((0.0, _SINK_SECONDS))
    application = world.start(query)
    world.wait(choices.pick((_PULL_SECONDS, 2 * _PULL_SECONDS)))
    world.store.delays.clear()
    _remove(world, choices)
    world.wait(2 * _PULL_SECONDS)
    if choices.chance(0.5):
        application.kill()
    query.sink_seconds = 0.0
    world.wait(_SINK_SECONDS)
    _stop(world, application)
    _read_on(world, query)


def _lose_a_file(world: World, choices: Enumerated) -> None:
    """Remove any file of a batch before any attempt of a task, while two actions read it."""
    world.hub.chooser = Fixed(at=-1)  # of the numbers of actions, the last is two
    query = _query(*choices.pick(_TRIGGERS))
    world.publish(1)
    world.publish(3)
    application = world.start(query)
    lose = _once(choices, lambda: _remove(world, choices))
    application.on_attempt = lambda _: lose()
    world.wait(_LATE_SECONDS[0])
    _stop(world, application)
    _read_on(world, query)


def _lose_files_before_acks(world: World, choices: Enumerated) -> None:
    """Remove files of a committed batch before its acks are accepted. No message is a row again without a WARNING.

    If nothing of a part is left, a restart does not know that there was one.
    """
    query = _query(PROCESSING_TIME, choices.pick((True, False)))
    world.service.quota_until = world.hub.now + _LATE_ACKS_SECONDS
    world.publish(1)
    world.publish(1)
    with _logged() as logged:
        application = world.start(query)
        world.wait(2 * _PULL_SECONDS)
        _remove(world, choices, with_parts=True)
        if choices.chance(0.5):
            application.kill()
            application = world.start(query)
        world.wait(_LEASES_SECONDS)
        _stop(world, application)
        _read_on(world, query)
    _check_reports(world, logged)


def _use_another_area(world: World, choices: Enumerated) -> None:
    """Start in another area while a batch is not committed, and return. It has no rows there, or the start fails."""
    query = replace(_query(*choices.pick(_TRIGGERS)), sink_seconds=_SINK_SECONDS)
    world.publish(1)
    application = world.start(query)
    world.wait(_PULL_SECONDS)
    application.kill()
    world.use_area(1)
    world.publish(1)
    fails = choices.pick((False, True))
    options = replace(query.options, fail_on_data_loss=fails)
    application = world.start(replace(query, options=options, fails_on_data_loss=fails))
    application.driver.on_operation = _once(choices, application.driver.kill)
    world.wait(2 * _SINK_SECONDS)
    _stop(world, application)
    world.use_area(0)
    _read_on(world, query)


def _read_once_a_day(world: World, choices: Enumerated) -> None:
    """Read one batch a day, so that each ack is late. On the third day acks are refused for a while, at any time."""
    query = _query(*choices.pick(_TRIGGERS[2:]), messages=choices.pick((3, 1000)))
    query = replace(query, buffered=choices.pick((2, 3, 4)))
    after, seconds = choices.pick((0.005, 0.012, 0.02)), choices.pick((0.5, 1.0, 2.0))

    def refuse() -> None:
        world.service.quota_until = world.hub.now + seconds

    for day, published in enumerate((3, 7, 0, 0)):
        for _ in range(published):
            world.publish(1)
        if day == 2:
            world.hub.after(after, refuse)
        world.run_quietly(world.start(query))
        world.wait(DAY)
    checkers.check_repeats(world.record)


def _seek_back(world: World, choices: Enumerated) -> None:
    """Seek past a message whose id is in doubt, and back after the days that ids are kept. Starts keep its time."""
    query = _query(*choices.pick(_TRIGGERS))
    published = world.hub.now
    world.service.quota_until = world.hub.now + _NO_QUOTA_SECONDS
    world.publish(1)
    application = world.start(query)
    world.wait(_NO_QUOTA_SECONDS + _PULL_SECONDS)
    _stop(world, application)
    world.service.seek(world.hub.now)
    for _ in range(_KEPT_DAYS):
        world.wait(DAY)
        world.run_quietly(world.start(query))
    world.service.seek(published)
    for _ in range(SINGLE_BATCH_RUNS):
        world.wait(_LEASES_SECONDS)
        world.run_quietly(world.start(query))
    _check(world)
    if len(world.record.committed[min(world.record.messages)]) < 2:
        world.record.violate("I1", "a message is no row again after a seek back, and is acknowledged")


def _wait_for_silence(world: World, choices: Enumerated) -> None:
    """End after an idle time that is longer than a silent stream stays open."""
    query = _query(*choices.pick(_TRIGGERS[1:]))
    query = replace(query, options=replace(query.options, idle_timeout=_LONG_IDLE_SECONDS))
    world.publish(1)
    for _ in range(SINGLE_BATCH_RUNS):
        world.run_quietly(world.start(query), 4 * _LONG_IDLE_SECONDS)
        world.wait(_LEASES_SECONDS)
    _check(world)


def _refuse_acks(world: World, choices: Enumerated) -> None:
    """Refuse acks for as long as a run lives, so that too many batches wait for theirs. It ends by itself."""
    world.service.is_transient = world.settings.exactly_once and choices.pick((False, True))
    query = _query(AVAILABLE_NOW, True, messages=choices.pick((1, 2)))
    query = replace(query, options=replace(query.options, max_unacknowledged_batches=choices.pick((1, 2))))
    world.service.quota_until = math.inf
    for _ in range(5):
        world.publish(1)
    world.run_quietly(world.start(query), _LEASES_SECONDS)
    world.service.quota_until = 0.0
    for _ in range(2):
        world.wait(_LEASES_SECONDS)
        world.run_quietly(world.start(query))
    _check(world)


def _evaluate_for_long(world: World, choices: Enumerated) -> None:
    """Evaluate a batch for longer than doubt spreads. An earlier message of its key is delivered again meanwhile."""
    query = replace(_query(PROCESSING_TIME, True, messages=1000), buffered=1000)
    world.publish(1, "a")
    world.service.quota_until = world.hub.now + _LATE_SECONDS[0]
    application = world.start(query)
    world.wait(_LATE_SECONDS[0] / 2)
    application.kill()
    world.wait(_LATE_START_SECONDS)
    world.publish(1, "a")
    application = world.start(replace(query, sink_seconds=choices.pick(_LONG_SINK_SECONDS)))
    world.wait(choices.pick((0.016, 0.018, 0.022)))
    world.service.quota_until = world.hub.now + choices.pick((20.0, 35.0, 50.0))
    world.wait(2 * _LONG_SINK_SECONDS[1])
    application.query.sink_seconds = 0.0
    world.run_quietly(application)
    _check(world)


def _acknowledge_slowly(world: World, choices: Enumerated) -> None:
    """Read a backlog that the driver stream has no room for, while acks take longer than the idle time."""
    query = replace(_query(AVAILABLE_NOW, True, messages=2), buffered=2)
    world.service.quota_until = world.hub.now + choices.pick((0.0, 8.0, 16.0))
    for _ in range(5):
        world.publish(1)
    world.run_quietly(world.start(query))
    if missing := checkers.undelivered(world.record):
        world.record.violate("I4", f"a run has ended without an error before it has read {missing}")
    _check(world)


def _plan_with_a_later_schema(world: World, choices: Enumerated) -> None:
    """Kill a run at any point. A revision was committed after its driver had started, before the first batch."""
    world.service.schema = schema = Schema()
    query = _query(PROCESSING_TIME, choices.pick((True, False)))
    query = replace(query, options=replace(query.options, decode="topic"))
    application = world.start(query)
    world.wait(1.0)
    world.publish(1)
    schema.commit(world.hub.now)
    application.driver.on_operation = _once(choices, application.driver.kill)
    world.wait(_LATE_SECONDS[0])
    _stop(world, application)
    world.run_quietly(world.start(query))
    _check(world)


def _change_the_schema(world: World, choices: Enumerated) -> None:
    """Kill a run at any point. Before the replay, the revision that a message names is shown or deleted."""
    world.service.schema = schema = Schema()
    query = _query(PROCESSING_TIME, choices.pick((True, False)))
    query = replace(query, options=replace(query.options, decode="topic"))
    world.publish(1)  # its reader has a field more
    schema.commit(world.hub.now)
    application = world.start(query)
    application.driver.on_operation = _once(choices, application.driver.kill)
    world.wait(_PULL_SECONDS)
    shown_after, is_deleted = choices.pick(((0.0, True), (_LATE_SECONDS[0], False)))
    schema.commit(world.hub.now + shown_after)
    world.publish(1)
    world.wait(_LATE_SECONDS[0])
    _stop(world, application)
    schema.commit(world.hub.now)
    if is_deleted:
        schema.delete(2)
    world.run_quietly(world.start(query))
    _check(world)


def _publish_dead_letters(world: World, choices: Enumerated) -> None:
    """Kill the driver or the first attempt of a task at any point. One of two messages cannot be decoded."""
    world.service.schema = Schema()
    query = _query(PROCESSING_TIME, passes_start=True)
    options = replace(query.options, decode="topic", mode="DROPMALFORMED", dead_letter_topic=TOPIC)
    query = replace(query, options=options)
    world.publish(1)
    world.service.publish([b"no JSON"], "")
    application = world.start(query)
    if choices.chance(0.5):
        application.driver.on_operation = _once(choices, application.driver.kill)
    else:
        application.on_attempt = lambda process: _at_any_point(application, process, choices, process.kill)
    world.wait(_PULL_SECONDS)
    _stop(world, application)
    _run_until_delivered(world, query)
    _check(world)
    if len(world.record.dead_letters) != 1 or len(world.record.committed) != 1:
        world.record.violate("I3", f"{world.record.dead_letters} are dead letters, and {world.record.committed} rows")


def _read_a_backlog(world: World, choices: Enumerated) -> None:
    """Read a backlog while the rest of the driver's buffer is too small for a response, with no fault."""
    query = _query(*choices.pick(_TRIGGERS[:2]), messages=1000)
    buffered = BUFFERED_RESPONSES * (world.service.response or 1)
    world.publish(_BACKLOG)
    world.run_quietly(world.start(replace(query, buffered=buffered)))
    checkers.check_batches(world.record, _BACKLOG, len(world.record.commits))
    _check(world)


def _pause_the_machine(world: World, choices: Enumerated) -> None:
    """Pause the driver's machine at any point, for longer than a lease. None of its clocks shows it."""
    query = _query(*choices.pick(_TRIGGERS[:2]))
    world.publish(1)
    world.publish(1)
    application = world.start(query)
    pause = partial(application.pause, application.driver, _LEASES_SECONDS)
    application.driver.on_operation = _once(choices, pause)
    world.wait(_LEASES_SECONDS + 30.0)
    _stop(world, application)
    application.driver.on_operation = None
    _run_until_delivered(world, query)
    _check(world)


def _write_twice_or_late(world: World, choices: Enumerated) -> None:
    """Kill the driver at any point. The sink writes batches that it has, or returns before it has written."""
    is_idempotent = choices.chance(0.5)
    world.sink = Sink(is_idempotent, lag=2.0 if is_idempotent else 0.0)
    query = _query(*choices.pick(_TRIGGERS[:2]))
    world.publish(1)
    application = world.start(query)
    application.driver.on_operation = _once(choices, application.driver.kill)
    world.wait(_PULL_SECONDS)
    _stop(world, application)
    _run_until_delivered(world, query)
    _check(world)


def _publish_twice(world: World, choices: Enumerated) -> None:
    """Publish a message again, before or after the first one is a row."""
    query = _query(*choices.pick(_TRIGGERS))
    application = world.start(query)
    world.publish(1)
    world.wait(choices.pick((0.0, _PULL_SECONDS)))
    world.publish_again()
    world.wait(_PULL_SECONDS)
    _stop(world, application)
    _run_until_delivered(world, query)
    _check(world)


def _count_again(world: World, choices: Enumerated) -> None:
    """Keep the checkpoint while an emulator restarts without its messages, and uses their ids again.

    The acks of the messages before it were accepted, or not, or not at first.
    """
    query = _query(*choices.pick(_TRIGGERS))
    world.service.quota_until = world.hub.now + choices.pick((0.0, _LATE_ACKS_SECONDS, DAY))
    world.publish(1)
    application = world.start(query)
    world.wait(choices.pick(_IN_A_PULL_SECONDS))
    _stop(world, application)
    world.service.quota_until = 0.0
    world.service.count_again()
    world.publish(1)
    _run_until_delivered(world, query)
    _check(world)


def _report_metrics(world: World, choices: Enumerated) -> None:
    """Kill the driver at any point while it writes metrics into a store that takes them, refuses them, or is slow.

    If it takes them, and no run was killed, the file counts all rows.
    """
    refuses, seconds = choices.pick(((0.0, 0.0), (1.0, 0.0), (0.0, _PULL_SECONDS)))
    faults = Faults(Fixed(), {"store refuses": refuses})
    store = world.metrics_store = SimStore(world.hub, faults, world.record, "sim://metrics")
    store.delays["writes", _METRICS] = seconds
    query = _query(PROCESSING_TIME, passes_start=True)
    world.publish(1)
    application = world.start(query)
    application.driver.on_operation = _once(choices, application.driver.kill)
    world.wait(_PULL_SECONDS)
    _stop(world, application)
    world.publish(1)
    _run_until_delivered(world, query)
    _check(world)
    counted = b'messages_total{subscription="projects/shop/subscriptions/orders"} 2\n'
    if not (refuses or application.is_killed) and counted not in store.files.get(_METRICS, b""):
        world.record.violate("I4", f"the metrics are {store.files}")
    store.close()


def _end_streams_at_once(world: World, choices: Enumerated) -> None:
    """Have each stream end at once without a message. A run may not take that for an empty subscription, or wait."""
    error = choices.pick((None, SimRpcError(Code.UNAVAILABLE, "no")))
    world.service.brief = choices.chance(0.5), error
    query = _query(AVAILABLE_NOW, choices.pick((True, False)))
    world.publish(1)
    application = world.start(query)
    world.wait_for(application, _NO_QUOTA_SECONDS)
    if application.error is None:
        world.record.violate("I4", f"{application.name} has not failed, though no stream brings anything")
    world.service.brief = None
    _run_until_delivered(world, query)
    _check(world)


def _send_nothing(world: World, choices: Enumerated) -> None:
    """Send responses without messages. They do not restart the idle time of a run that has read everything."""
    query = _query(AVAILABLE_NOW, choices.pick((True, False)))
    world.publish(1)
    application = world.start(query)
    world.wait(choices.pick((0.1, 1.0)))
    for stream in world.service.streams:
        stream.send_nothing(choices.pick((0.1, 0.5)))
    world.run_quietly(application, _NO_QUOTA_SECONDS)
    _run_until_delivered(world, query)
    _check(world)


def _damage_a_part(world: World, choices: Enumerated) -> None:
    """Kill a run before a commit or before the acks, and damage a block of one of its parts.

    The block begins at one of Arrow's messages. No message is lost without an error.
    """
    is_committed = choices.chance(0.5)
    world.service.quota_until = DAY if is_committed else 0.0
    query = replace(_query(PROCESSING_TIME, True, messages=1000), buffered=1000)
    application = world.start(query)
    world.wait(1.0)
    _stop(world, application)
    for _ in range(3):
        world.publish(1)
    application = world.start(replace(query, sink_seconds=0.0 if is_committed else _SINK_SECONDS))
    world.wait(_PULL_SECONDS)
    application.kill()
    world.service.quota_until = 0.0
    path = choices.pick([path for path in sorted(world.store.files) if "/part-" in path])
    messages = [found.start() for found in re.finditer(b"\xff\xff\xff\xff", world.store.files[path])]
    world.store.damage(path, choices.pick(messages))
    world.run_quietly(world.start(query), _NO_QUOTA_SECONDS)
    for path in list(world.store.files):  # the advice of the error
        world.store.remove(path)
    _read_on(world, query)


def _run_until_delivered(world: World, query: Query) -> None:
    """Run the query as often as it may need."""
    for _ in range(SINGLE_BATCH_RUNS if query.is_asked_once else 2):
        if not world.is_delivered:
            world.run_quietly(world.start(query))
            world.wait(_LEASES_SECONDS)


def _read_after_silences(world: World, query: Query) -> None:
    """Run the query to the end. Each message comes after a silence, and redeliveries may be due during it."""
    application = world.start(query)
    for seconds in _SILENCES_SECONDS:
        world.wait(seconds)
        world.publish(1)
    world.run_quietly(application)
    _check(world)


def _check_reports(world: World, logged: list[str]) -> None:
    """Check that a WARNING has said that messages are rows again."""
    repeated = [message_id for message_id, commits in world.record.committed.items() if len(commits) > 1]
    if repeated and not any("will be delivered again" in line for line in logged):
        world.record.violate("I4", f"{len(repeated)} messages are rows again, and no WARNING has said so: {logged}")


@contextmanager
def _logged() -> Iterator[list[str]]:
    """Yield the WARNINGs of the connector and worse, as they come."""
    logged: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logger, disabled = logging.getLogger("pubsub_spark"), logging.root.manager.disable
    logging.disable(logging.NOTSET)
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        yield logged
    finally:
        logger.propagate = before
        logger.removeHandler(handler)
        logging.disable(disabled)


def _remove(world: World, choices: Enumerated, with_pairs: bool = False, with_parts: bool = False) -> None:
    """Remove one of the files of batches, or all, as a cleaner does.

    with_pairs: or a part and its `given` file. with_parts: or all files but the `given` ones.
    """
    paths = sorted(path for path in world.store.files if path.split("/")[-2].isdigit())
    pairs = [[path, given] for path in paths if (given := path.replace("/part-", "/given-")) != path and given in paths]
    parts = [[path for path in paths if "/given-" not in path]]
    more = (pairs if with_pairs else []) + (parts if with_parts else [])
    for path in choices.pick([paths, *([path] for path in paths), *more]):
        world.store.remove(path)


def _read_on(world: World, query: Query) -> None:
    """Read on after files were lost, as the errors advise."""
    query = replace(query, options=replace(query.options, fail_on_data_loss=False), fails_on_data_loss=False)
    for _ in range(2 * SINGLE_BATCH_RUNS):
        world.run_quietly(world.start(query))
        world.wait(_LEASES_SECONDS)
    _check(world)


def _stop(world: World, application: Application) -> None:
    if application.is_alive:
        application.stop()
        world.wait_for(application, 60.0)


def _check(world: World) -> None:
    world.check_end()
    checkers.check_repeats(world.record)


def _once(choices: Enumerated, happens: Callable[[], None]) -> Callable[[], None]:
    """Return the chooser that decides at each operation whether something happens there. It happens once at most."""
    has_happened: list[bool] = []

    def decide() -> None:
        if not has_happened and choices.chance(0.5):
            has_happened.append(True)
            happens()

    return decide


def _make_late(
    application: Application,
    process: Process,
    choices: Enumerated,
    durations: tuple[float, ...] = _LATE_SECONDS,
) -> None:
    """Suspend the first attempt at one of its operations. It lives on when its driver is gone."""
    _at_any_point(application, process, choices, lambda: application.suspend(process, choices.pick(durations)))


def _at_any_point(application: Application, process: Process, choices: Enumerated, happens: Callable[[], None]) -> None:
    """Let something happen at one of the operations of the first attempt."""
    if not application.outlives:
        application.outlives.add(process)
        process.on_operation = _once(choices, happens)


_FORGOTTEN = Settings(ack_deadline=10, retain_acked=True, retention=31 * DAY, min_backoff=600, max_backoff=600)
SCENARIOS = (
    (_crash, Setup(Settings(ack_deadline=10))),
    (_leave_an_attempt, Setup(Settings(ack_deadline=10, ordering=True))),
    (_end_with_a_redelivery, Setup(Settings(ack_deadline=10, min_backoff=600, max_backoff=600))),
    (_pull_late, Setup(Settings(ack_deadline=10))),
    (_write_late, Setup(Settings(ack_deadline=10))),
    (_stage_late, Setup(Settings(ack_deadline=10))),
    (_roll_back, Setup(Settings(ack_deadline=10))),
    (_start_late, Setup(Settings(ack_deadline=10, min_backoff=600, max_backoff=600))),
    (_lose_a_lease, Setup(Settings(ack_deadline=10, exactly_once=True))),
    (_deliver_a_key_twice, Setup(Settings(ack_deadline=10, ordering=True))),
    (_take_over, Setup(Settings(ack_deadline=10))),
    (_take_over_a_deletion, Setup(Settings(ack_deadline=10, min_backoff=600, max_backoff=600))),
    (_take_over_ids, Setup(Settings(ack_deadline=10))),
    (_lose_files, Setup(Settings(ack_deadline=10))),
    (_lose_files_after_the_sink, Setup(Settings(ack_deadline=10))),
    (_lose_a_sibling, Setup(Settings(ack_deadline=10))),
    (_doubt_slowly, Setup(Settings(ack_deadline=10))),
    (_read_without_acks, Setup(Settings(ack_deadline=10))),
    (_stand_still, Setup(Settings(ack_deadline=10, dead_letter_topic=DEAD_LETTERS, dead_letter_attempts=5))),
    (_lose_files_of_a_replay, Setup(Settings(ack_deadline=10))),
    (_lose_a_file, Setup(Settings(ack_deadline=10))),
    (_lose_files_before_acks, Setup(Settings(ack_deadline=10))),
    (_use_another_area, Setup(Settings(ack_deadline=10))),
    (_use_another_area, Setup(Settings(ack_deadline=10), is_one_path=True)),
    (_read_once_a_day, Setup(Settings(ack_deadline=10), response=2)),
    (_seek_back, Setup(_FORGOTTEN)),
    (_wait_for_silence, Setup(Settings(ack_deadline=10))),
    (_refuse_acks, Setup(Settings(ack_deadline=10))),
    (_refuse_acks, Setup(Settings(ack_deadline=10, exactly_once=True))),
    (_evaluate_for_long, Setup(Settings(ack_deadline=10, ordering=True), response=5)),
    (_acknowledge_slowly, Setup(Settings(ack_deadline=10))),
    (_plan_with_a_later_schema, Setup(Settings(ack_deadline=10))),
    (_change_the_schema, Setup(Settings(ack_deadline=10))),
    (_publish_dead_letters, Setup(Settings(ack_deadline=10))),
    (_read_a_backlog, Setup(Settings(ack_deadline=10), response=2)),
    (_pause_the_machine, Setup(Settings(ack_deadline=10))),
    (_write_twice_or_late, Setup(Settings(ack_deadline=10))),
    (_publish_twice, Setup(Settings(ack_deadline=10))),
    (_count_again, Setup(Settings(ack_deadline=10))),
    (_report_metrics, Setup(Settings(ack_deadline=10))),
    (_end_streams_at_once, Setup(Settings(ack_deadline=10))),
    (_send_nothing, Setup(Settings(ack_deadline=10))),
    (_damage_a_part, Setup(Settings(ack_deadline=10))),
)
