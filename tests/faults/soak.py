"""A streaming query for an hour, through faults chosen at random by a seed; after each round everything is compared.

    python -m tests.faults.soak [--seconds 3600] [--seed 1] [--folder soak-output]

The query is a Spark application (`tests.spark.application`) that reads into Parquet. The emulator and an S3 server
(moto), which has the staging area, are in this process, each behind a proxy. Messages are published all the time. A
round is a few faults, one after the other, out of FAULTS; then the links are whole again, and the round ends when
every message is acknowledged. Everything that was published must be in the sink, once. A query that has failed must
have said so in one sentence of ours, unless the fault was a kill, and is started again.

The clock of the service is moved only while the query is dead, past the leases that it held: in life that takes
minutes. The tally is kept in `tally.json` in the folder; another start goes on with its rounds, on a new
subscription. The emulator is not killed, for it does not keep what it has.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.request import Request, urlopen

from pubsub_spark.emulator import Emulator
from tests.conftest import Bucket, Names
from tests.faults.proxy import Proxy
from tests.spark.application import Application
from tests.spark.scenario import LEASE, command, descendants

START_SECONDS, DRAIN_SECONDS = 180.0, 300.0
SLOW_LINK_BYTES_PER_SECOND = 125_000  # 1 Mbit/s
# Of the process with the driver stream between two rounds: 18, 16 and 260 where nothing leaks.
MOST_THREADS, MOST_FILES, MOST_MEGABYTES = 30, 40, 500
_OPTIONS = {"maxMessagesPerTrigger": "3000", "connectTimeout": "30s", "numFetchPartitions": "2", "idleTimeout": "500ms"}
# The sentences of ours that a failed query may end with: the classes of `pubsub_spark.errors`.
_OURS = re.compile(r"pubsub_spark\.errors\.(\w+Error): ")
_TRACEBACK = 'tests/spark/driver.py", line '  # of the driver, as Python prints it when a query has failed


class SoakError(Exception):
    """A round that lost, repeated or kept back messages, or a query that ended without a sentence."""


@dataclass
class Tally:
    """The counts of all rounds so far."""

    seed: int
    rounds: int = 0
    seconds: float = 0.0
    published: int = 0
    lost: int = 0
    repeated: int = 0
    unacknowledged: int = 0
    starts: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)  # by class of the error, or the signal
    most_threads: int = 0  # of the process that has the driver stream, at the end of a round
    most_files: int = 0
    most_megabytes: int = 0

    @classmethod
    def read(cls, path: Path, seed: int) -> Tally:
        """The tally of an earlier start; a new one where there is none, or where it had another seed."""
        if path.exists():
            found = cls(**json.loads(path.read_text()))
            if found.seed == seed:
                return found
        return cls(seed)

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        failures = ", ".join(f"{name} {count}" for name, count in sorted(self.failures.items())) or "none"
        return (
            f"seed {self.seed}: {self.rounds} rounds in {self.seconds:.0f} s, {self.published} messages, "
            f"{self.lost} lost, {self.repeated} repeated, {self.unacknowledged} unacknowledged; "
            f"{self.starts} starts; faults: {faults}; "
            f"queries that failed: {failures}; at the most {self.most_threads} threads, {self.most_files} files, "
            f"{self.most_megabytes} MB"
        )


class Soak:
    """One query, its service, its store, and the messages that were published."""

    def __init__(self, folder: Path, tally: Tally, service: Proxy, store: Proxy, application: Application) -> None:
        self.tally = tally
        self.service, self.store, self.application = service, store, application
        self.emulator = application.emulator
        self.chance = random.Random(f"{tally.seed}/{tally.rounds}")
        self.published: list[str] = []
        self._folder = folder
        self._compared = 0  # of those that were published
        self._killed = False

    # Faults: each is over when it returns, but for the links, which `heal` mends

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
        """SIGSTOP of every process of the query, for some seconds."""
        pids = self._pids()
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        self.wait(1, 8)
        for pid in pids:
            _send(pid, signal.SIGCONT)

    def kill_driver(self) -> None:
        """SIGKILL of the driver and everything below it."""
        self._kill_all()

    def kill_source(self) -> None:
        """SIGKILL of the process that has the driver stream; Spark ends the query for it."""
        self._kill_some("python_streaming_source_runner")

    def kill_workers(self) -> None:
        """SIGKILL of the Python processes of tasks; Spark starts others."""
        self._kill_some("pyspark.daemon")

    def refuse_acks(self) -> None:
        self.emulator.fail("Acknowledge", "INTERNAL", count=self.chance.randrange(1, 20))

    def end_streams(self) -> None:
        self.emulator.close_streams("UNAVAILABLE")

    def wait(self, least: float, most: float) -> None:
        """Publish on for some seconds."""
        time.sleep(self.chance.uniform(least, most))

    # A round

    def round(self) -> None:
        """Some faults while messages are published, then the end of all of them, and the comparison."""
        began = time.monotonic()
        with self._publishing():
            self._wait_for_a_stream()
            self._killed = False  # what was killed in the last round has ended the query by now, or never will
            self.wait(1, 4)
            for fault in self.chance.sample(FAULTS, min(len(FAULTS), self.chance.randrange(1, 4))):
                self._wait_for_a_stream()
                self.tally.faults[fault.__name__] = self.tally.faults.get(fault.__name__, 0) + 1
                fault(self)
                self.service.heal()
                self.store.heal()
                self.wait(0.5, 3)
                self.restart_if_dead()
        self._drain()
        self.tally.rounds += 1
        self.tally.seconds += time.monotonic() - began
        self._compare()

    def _wait_for_a_stream(self) -> None:
        """Wait until the query reads: a fault before that hits nothing."""
        end = time.monotonic() + START_SECONDS
        while not self.emulator.streams() and time.monotonic() < end:
            self.restart_if_dead()
            time.sleep(0.1)

    def restart_if_dead(self) -> None:
        """Start the query again if it has ended; SoakError if it gave no reason."""
        process = self.application.process
        if process is not None and process.poll() is None:
            return
        if process is not None:
            self._record_end()
            self._kill_all()  # what is left below it
            self.emulator.advance(LEASE)
        self.application.start(
            master="local[2,4]",
            trigger={"processingTime": "0 seconds"},
            options={**_OPTIONS, "endpoint": self.service.endpoint, "stagingLocation": "s3://staging/area"},
        )
        self.tally.starts += 1
        self._killed = False

    def _record_end(self) -> None:
        log = self.application.log.read_text()
        name = reason(log) or ("killed" if self._killed else None)  # a kill excuses no sentence that is there
        kept = self._folder / f"ended-{self.tally.starts}-{name or 'unexplained'}.log"
        kept.write_text(log)  # the next start overwrites the driver's
        if name is None:
            raise SoakError(f"a query ended without a sentence of ours: {kept}")
        self.tally.failures[name] = self.tally.failures.get(name, 0) + 1

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        """Messages published all the while, straight to the emulator."""
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

    def _compare(self) -> None:
        self.tally.published += len(self.published) - self._compared
        self._compared = len(self.published)
        arrived = Counter(self.application.texts())
        lost = len(set(self.published) - set(arrived))
        repeated = sum(arrived.values()) - len(arrived)
        unacknowledged = self.emulator.backlog(self.application.names.subscription)
        self.tally.lost += lost  # another start goes on with the tally: a round that was clean erases nothing
        self.tally.repeated += repeated
        self.tally.unacknowledged += unacknowledged
        self._measure()
        if lost or repeated or unacknowledged:
            raise SoakError(f"round {self.tally.rounds} of seed {self.tally.seed}")

    def _measure(self) -> None:
        """Threads, files and memory of the process with the driver stream; SoakError for more than a query needs."""
        for pid in self._pids():
            if "python_streaming_source_runner" in command(pid):
                status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
                threads, megabytes = int(status["Threads"]), int(status["VmRSS"].split()[0]) // 1024
                files = len([*Path(f"/proc/{pid}/fd").iterdir()])
                self.tally.most_threads = max(self.tally.most_threads, threads)
                self.tally.most_files = max(self.tally.most_files, files)
                self.tally.most_megabytes = max(self.tally.most_megabytes, megabytes)
                if threads > MOST_THREADS or files > MOST_FILES or megabytes > MOST_MEGABYTES:
                    raise SoakError(f"process {pid} has {threads} threads, {files} files and {megabytes} MB left")

    def _pids(self) -> list[int]:
        process = self.application.process
        return [process.pid, *descendants(process.pid)] if process is not None else []

    def _kill_some(self, module: str) -> None:
        self._killed = True
        for pid in self._pids():
            if module in command(pid):
                _send(pid, signal.SIGKILL)

    def _kill_all(self) -> None:
        self._killed = True
        for pid in reversed(self._pids()):
            _send(pid, signal.SIGKILL)
        if self.application.process is not None:
            self.application.process.wait()
        end = time.monotonic() + START_SECONDS
        while self.emulator.streams() and time.monotonic() < end:
            time.sleep(0.05)


def reason(log: str) -> str | None:
    """The class of our error that a driver ended with, by its log; None where its last words are not ours.

    Tasks that failed and were tried again are in the log, too, and are no reason: only what follows the driver's own
    traceback is.
    """
    _, traceback, end = log.rpartition(_TRACEBACK)
    found = _OURS.findall(end) if traceback else []
    return found[-1] if found else None


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
]


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@contextmanager
def running(folder: Path, tally: Tally) -> Iterator[Soak]:
    """A new subscription, store and query; everything is ended at the end."""
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
                soak._kill_all()
    finally:
        s3.stop()


def run(folder: Path, seed: int, seconds: float, say: Callable[[str], object] = sys.stdout.write) -> Tally:
    """Rounds for so many seconds; the tally. Raises SoakError at the first round that went wrong."""
    folder = folder.resolve()  # the query has a working folder of its own
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tally.json"
    tally = Tally.read(path, seed)
    with running(folder, tally) as soak:
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
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
