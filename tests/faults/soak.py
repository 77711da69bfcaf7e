"""A streaming query for an hour, through faults chosen at random by a seed. After each round everything is compared.

    python -m tests.faults.soak [--seconds 3600] [--seed 1] [--folder soak-output]

The query is a Spark application (`tests.spark.application`) that reads into Parquet, in one process or with executors
of their own. The emulator and an S3 server (moto) are in this process, each behind a proxy. The staging area is in S3
or on the disk. Messages are published all the time. A round is a few faults, one after the other, out of FAULTS. Then
all are over, and the round ends when every message is acknowledged. Everything that was published must be in the sink,
once, and each process must be back at its former level: threads, open files, memory (`processes`). A query that has
ended must have an error message of ours, unless a fault killed it, and is started again.

After ROUNDS_OF_A_QUERY rounds a new query, on a new subscription, has the next of SETTINGS. The tally is kept in
`tally.json` in the folder. Another start continues its rounds.

Which clocks move: the service's, by `Emulator.advance`: less than a lease while the query runs or is stopped by
SIGSTOP, and past all leases when it was killed, which in production takes minutes. The driver measures leases by
CLOCK_BOOTTIME, which cannot be moved for a running process, nor can the clock of the day for one process alone. For
those, test_rights_and_stores.py passes the session a clock of its own. The store stalls for less than a lease:
docs/guarantee.md lists the duplicates after a longer stall. The emulator is not killed, because it does not keep its
messages.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import resource
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

from pubsub_spark.emulator import Emulator
from tests.conftest import Bucket, Names
from tests.faults.processes import Usage, excesses, usages
from tests.faults.proxy import Proxy
from tests.faults.tally import Tally, by_kill, reason
from tests.spark.application import Application
from tests.spark.scenario import LEASE, command, descendants

START_SECONDS, DRAIN_SECONDS = 180.0, 300.0
SLOW_LINK_BYTES_PER_SECOND = 125_000  # 1 Mbit/s
SETTLE_SECONDS = 30.0  # until threads, files and memory are back, once all is acknowledged
ROUNDS_OF_A_QUERY = 5
_SOURCE_WORKER, _TASK_WORKER = "python_streaming_source_runner", "pyspark.daemon"  # in their command lines
_ROOM_BYTES = 20_000  # for a file on the full disk, at most
_JUMP_SECONDS = 40.0  # less than the lease of 60 s
_OPTIONS = {"maxMessagesPerTrigger": "3000", "connectTimeout": "30s", "numFetchPartitions": "2", "idleTimeout": "500ms"}


class SoakError(Exception):
    """A round that lost, repeated or kept back messages, or a query that ended without a sentence."""


class Setting(NamedTuple):
    """Where the executors of a query are, and its staging area."""

    master: str
    staging: str  # "S3" or "disk"

    def __str__(self) -> str:
        return f"{self.master.partition('[')[0]} with {self.staging}"


SETTINGS = [
    Setting("local[2,4]", "S3"),
    Setting("local[2,4]", "disk"),
    Setting("local-cluster[2,1,1024]", "S3"),
    Setting("local-cluster[2,1,1024]", "disk"),
]


class Soak:
    """One query, its service, its store, and the messages that were published."""

    def __init__(self, folder: Path, tally: Tally, service: Proxy, store: Proxy, application: Application) -> None:
        self.tally, self.setting = tally, setting_of(tally.seed, tally.rounds)
        self.service, self.store, self.application = service, store, application
        self.emulator = application.emulator
        self.chance = random.Random(f"{tally.seed}/{tally.rounds}")
        self.published: list[str] = []
        self._folder = folder
        self._compared = 0  # of those that were published
        self.killed: str | None = None  # the fault that may end the query
        self._usages: dict[str, Usage] = {}  # at the end of the round before

    # Faults: each is over when it returns, but for the links and the disk, which `heal` ends

    def drop_connections(self) -> None:
        self.service.drop()

    def refuse_service(self) -> None:
        self.service.refuse()
        self.wait(1, 12)

    def black_hole_service(self) -> None:
        self.service.black_hole()
        self.wait(1, 12)

    def half_close_service(self) -> None:
        self.service.half_close()

    def delay_service(self) -> None:
        self.service.delay(0.2)
        self.wait(2, 6)

    def throttle_service(self) -> None:
        self.service.throttle(SLOW_LINK_BYTES_PER_SECOND)
        self.wait(2, 8)

    def refuse_store(self) -> None:
        self.store.refuse()
        self.wait(1, 8)

    def stall_store(self) -> None:
        self.store.black_hole()
        self.wait(1, 8)

    def slow_store(self) -> None:
        self.store.delay(0.3)
        self.wait(2, 6)

    def pause_query(self) -> None:
        """SIGSTOP every process of the query, for some seconds."""
        with self._stopped():
            self.wait(1, 8)

    def sleep_machine(self) -> None:
        """SIGSTOP every process of the query, while the service's clock advances by most of a lease."""
        with self._stopped():
            self.jump_clock()

    def jump_clock(self) -> None:
        """Advance only the service's clock, by up to most of a lease, and leave the driver's."""
        self.emulator.advance(self.chance.uniform(1, _JUMP_SECONDS))

    def fill_disk(self) -> None:
        """Limit the size of the workers' files: the kernel refuses the rest of a write."""
        self._limit_files(self.chance.randrange(_ROOM_BYTES))
        self.wait(1, 8)

    def kill_driver(self) -> None:
        """SIGKILL the driver and everything below it."""
        self.kill_all("kill_driver")

    def kill_source(self) -> None:
        """SIGKILL the process that has the driver stream. Spark ends the query for it."""
        self._kill_some("kill_source", _SOURCE_WORKER)

    def kill_workers(self) -> None:
        """SIGKILL the Python processes of tasks. Spark starts others."""
        self._kill_some("kill_workers", _TASK_WORKER)

    def kill_executor(self) -> None:
        """SIGKILL an executor's JVM at any moment. Spark starts another."""
        self.killed = "kill_executor"
        for pid in self.application.executors()[:1]:
            _send(pid, signal.SIGKILL)

    def refuse_acks(self) -> None:
        self.emulator.fail("Acknowledge", "INTERNAL", count=self.chance.randrange(1, 20))

    def end_streams(self) -> None:
        self.emulator.close_streams("UNAVAILABLE")

    def wait(self, least: float, most: float) -> None:
        """Publish on for some seconds."""
        time.sleep(self.chance.uniform(least, most))

    # A round

    def round(self) -> None:
        """Run some faults while messages are published, then the end of all of them, and the comparison."""
        began = time.monotonic()
        with self._publishing():
            self._wait_for_a_stream()
            self.killed = None  # a process killed in the last round has ended the query by now, or never will
            self.wait(1, 4)
            possible = [fault for fault in FAULTS if is_possible(fault, self.setting)]
            for fault in self.chance.sample(possible, min(len(possible), self.chance.randrange(1, 4))):
                self._wait_for_a_stream()
                self.tally.faults[fault.__name__] = self.tally.faults.get(fault.__name__, 0) + 1
                fault(self)
                self.heal()
                self.wait(0.5, 3)
                self.restart_if_dead()
        self._drain()
        self.tally.rounds += 1
        self.tally.settings[str(self.setting)] = self.tally.settings.get(str(self.setting), 0) + 1
        self.tally.seconds += time.monotonic() - began
        self.compare()

    def heal(self) -> None:
        """End the faults of the links and of the disk."""
        self.service.heal()
        self.store.heal()
        self._limit_files(resource.RLIM_INFINITY)

    def _wait_for_a_stream(self) -> None:
        """Wait until the query reads: a fault before that hits nothing."""
        end = time.monotonic() + START_SECONDS
        while not self.emulator.streams() and time.monotonic() < end:
            self.restart_if_dead()
            time.sleep(0.1)

    def restart_if_dead(self) -> None:
        """Start the query again if it has ended. Raise SoakError if it reported no reason."""
        process = self.application.process
        if process is not None and process.poll() is None:
            return
        if process is not None:
            self.record_end()
            self.kill_all(None)  # the remaining processes below it
            self.emulator.advance(LEASE)
        in_s3 = {"stagingLocation": "s3://staging/area"} if self.setting.staging == "S3" else {}
        self.application.start(
            master=self.setting.master,
            trigger={"processingTime": "0 seconds"},
            options={**_OPTIONS, "endpoint": self.service.endpoint, **in_s3},
        )
        self.tally.starts += 1
        self.killed, self._usages = None, {}  # new processes are compared with the limits, not with the old ones

    def record_end(self) -> None:
        log = self.application.log.read_text()
        assert self.application.process is not None
        name = reason(log) or by_kill(log, self.application.process.returncode, self.killed)
        kept = self._folder / f"ended-{self.tally.starts}-{name or 'unexplained'}.log"
        kept.write_text(log)  # the next start overwrites the driver's
        if name is None:
            raise SoakError(f"a query ended without a sentence of ours: {kept}")
        self.tally.failures[name] = self.tally.failures.get(name, 0) + 1

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        """Publish messages all the while, straight to the emulator."""
        over = threading.Event()

        def publish() -> None:
            while not over.wait(0.1):
                texts = [f"m{len(self.published) + each}" for each in range(chance.randrange(1, 80))]
                self.emulator.publish(self.application.names.topic, *texts)
                self.published += texts

        chance = random.Random(self.chance.random())
        thread = threading.Thread(target=publish, name="publisher")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _drain(self) -> None:
        """Wait until every message is acknowledged."""
        end = time.monotonic() + DRAIN_SECONDS
        subscription = self.application.names.subscription
        while self.emulator.backlog(subscription) and time.monotonic() < end:
            self.restart_if_dead()
            time.sleep(0.5)

    def compare(self) -> None:
        self.tally.published += len(self.published) - self._compared
        self._compared = len(self.published)
        arrived = Counter(self.application.texts())
        lost = len(set(self.published) - set(arrived))
        repeated = sum(arrived.values()) - len(arrived)
        unacknowledged = self.emulator.backlog(self.application.names.subscription)
        self.tally.lost += lost  # another start continues the tally: a clean round erases nothing
        self.tally.repeated += repeated
        self.tally.unacknowledged += unacknowledged
        self._measure()
        if lost or repeated or unacknowledged:
            raise SoakError(f"round {self.tally.rounds} of seed {self.tally.seed}")

    def _measure(self) -> None:
        """Record the use of the processes when all is acknowledged.

        Raise SoakError if it does not soon return to that of the round before.
        """
        end = time.monotonic() + SETTLE_SECONDS
        while found := excesses(now := usages(self._pids()), self._usages):
            if time.monotonic() > end:
                raise SoakError(f"round {self.tally.rounds} of seed {self.tally.seed}: {'; '.join(found)}")
            time.sleep(0.5)
        self._usages = self._usages | now
        for kind, used in now.items():
            self.tally.most[kind] = [*(Usage(*self.tally.most.get(kind, Usage())) | used)]

    def _pids(self) -> list[int]:
        process = self.application.process
        return [process.pid, *descendants(process.pid)] if process is not None else []

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        pids = self._pids()
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                _send(pid, signal.SIGCONT)

    def _limit_files(self, size: int) -> None:
        """Let no file of the workers grow beyond `size` bytes. Spark's own files do, and the driver's log."""
        for pid in self._pids():
            if any(module in command(pid) for module in (_SOURCE_WORKER, _TASK_WORKER)):
                with suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def _kill_some(self, fault: str, module: str) -> None:
        self.killed = fault
        for pid in self._pids():
            if module in command(pid):
                _send(pid, signal.SIGKILL)

    def kill_all(self, fault: str | None) -> None:
        self.killed = fault
        for pid in reversed(self._pids()):
            _send(pid, signal.SIGKILL)
        if self.application.process is not None:
            self.application.process.wait()
        end = time.monotonic() + START_SECONDS
        while self.emulator.streams() and time.monotonic() < end:
            time.sleep(0.05)


FAULTS: list[Callable[[Soak], None]] = [
    Soak.drop_connections,
    Soak.refuse_service,
    Soak.black_hole_service,
    Soak.half_close_service,
    Soak.delay_service,
    Soak.throttle_service,
    Soak.refuse_store,
    Soak.stall_store,
    Soak.slow_store,
    Soak.pause_query,
    Soak.kill_driver,
    Soak.kill_source,
    Soak.kill_workers,
    Soak.refuse_acks,
    Soak.end_streams,
    Soak.jump_clock,
    Soak.sleep_machine,
    Soak.fill_disk,
    Soak.kill_executor,
]
# The words that a fault needs in a setting. The others are possible everywhere.
_NEEDS: dict[Callable[[Soak], None], str] = {
    Soak.refuse_store: "S3",
    Soak.stall_store: "S3",
    Soak.slow_store: "S3",
    Soak.fill_disk: "disk",
    Soak.kill_executor: "local-cluster",
}


def is_possible(fault: Callable[[Soak], None], setting: Setting) -> bool:
    """Return whether a fault hits anything of a query with this setting."""
    return _NEEDS.get(fault, "") in str(setting)


def setting_of(seed: int, rounds: int) -> Setting:
    """Return the setting of the query after `rounds` rounds: each in its turn, the first by the seed."""
    return SETTINGS[(seed + rounds // ROUNDS_OF_A_QUERY) % len(SETTINGS)]


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@contextmanager
def running(folder: Path, tally: Tally) -> Iterator[Soak]:
    """Yield a soak with a new subscription, store and query. Everything is ended at the end."""
    from moto.server import ThreadedMotoServer

    part = folder / f"from-round-{tally.rounds}-{uuid.uuid4().hex[:6]}"
    part.mkdir(parents=True)
    s3 = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    s3.start()
    try:
        with (
            Emulator() as emulator,
            Proxy(int(emulator.endpoint.rpartition(":")[2])) as service,
            Proxy(s3.get_host_and_port()[1]) as store,
        ):
            bucket = Bucket(f"http://{store.endpoint}", "staging")
            urlopen(Request(f"{bucket.endpoint}/{bucket.name}", method="PUT")).close()
            names = Names("soak", "soak-topic", "soak-subscription", "soak-schema")
            emulator.create_topic(names.topic)
            emulator.create_subscription(names.subscription, names.topic)
            application = Application(emulator, names, part, bucket.environment)
            soak = Soak(folder, tally, service, store, application)
            try:
                soak.restart_if_dead()
                yield soak
            finally:
                soak.kill_all(None)
    finally:
        s3.stop()


def run(folder: Path, seed: int, seconds: float, say: Callable[[str], object] = sys.stdout.write) -> Tally:
    """Run rounds for `seconds` and return the tally. Raise SoakError at the first round that went wrong."""
    folder = folder.resolve()  # the query has a working folder of its own
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tally.json"
    tally = Tally.read(path, seed)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            setting = setting_of(seed, tally.rounds)
            with running(folder, tally) as soak:
                while time.monotonic() < end and setting_of(seed, tally.rounds) == setting:
                    try:
                        soak.round()
                    finally:
                        path.write_text(json.dumps(asdict(tally)))
                        say(f"{tally}\n")
    except KeyboardInterrupt:
        say("stopped\n")
    return tally


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("SOAK_SECONDS", "3600")))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("soak-output"))
    given = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    try:
        run(given.folder, given.seed, given.seconds)
    except SoakError as error:
        sys.exit(str(error))
