"""The emulator as a process of its own, for `pubsub-spark emulator`.

Prints one line when it is ready, to be evaluated by the shell that started it (or JSON), and stops on Ctrl-C and
SIGTERM.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Literal

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.emulator import EmulatorFailedError
from pubsub_spark.emulator.journal.files import DataDirError, FsyncPolicy
from pubsub_spark.emulator.rpc.call_log import JsonFormatter
from pubsub_spark.emulator.seed_file import SeedFileError
from pubsub_spark.memory import keep_freed_memory

LogFormat = Literal["text", "json"]

_STOPS = {signal.SIGINT, signal.SIGTERM}
_REMEMBERED = 10_000  # acked messages of each subscription
_SWITCH_SECONDS = 0.0005  # a thread that compiles a schema lets the event loop work so soon, and not after 5 ms


def serve(
    host: str = "127.0.0.1",
    port: int = 8085,
    verbose: bool = False,
    config: Path | None = None,
    prepare: Callable[[str], object] | None = None,
    data_dir: Path | None = None,
    fsync: FsyncPolicy = "group",
    allow_hosts: Collection[str] = (),
    record: bool = False,
    log_format: LogFormat = "text",
    seed: int | None = None,
    allow_well_known_imports: bool = False,
    storage_root: str | None = None,
    bigquery_root: Path | None = None,
    bigquery_endpoint: str | None = None,
    kinesis_endpoint: str | None = None,
    kafka_endpoint: str | None = None,
    kafka_config: Path | None = None,
    as_json: bool = False,
) -> int:
    """Run until Ctrl-C or SIGTERM; the exit code. To be called from the main thread, because of the signals.

    `record` keeps calls and acked messages for the verbs that show them; `seed` is that of chaos.

    Where the data directory has nothing, `config` is a YAML file of what there is from the start (see `seed_file`), and
    `prepare` is called with the endpoint before the line is printed.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    # Messages are many, small and free of cycles; looking through all of them as often as Python would costs a third.
    gc.set_threshold(50_000, 20, 100)
    sys.setswitchinterval(_SWITCH_SECONDS)
    keep_freed_memory()
    # Blocked before there are threads, so that the signals wait for `sigwait`; a handler that sets an Event can meet
    # the very lock that the main thread holds on its way into `wait`, and then nothing stops any more.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        with Emulator(
            host,
            port,
            record=record,
            remembered=_REMEMBERED if record else 0,
            data_dir=data_dir,
            fsync=fsync,
            allow_hosts=allow_hosts,
            allow_well_known_imports=allow_well_known_imports,
            storage_root=storage_root,
            bigquery_root=bigquery_root,
            bigquery_endpoint=bigquery_endpoint,
            kinesis_endpoint=kinesis_endpoint,
            kafka_endpoint=kafka_endpoint,
            kafka_config=kafka_config,
            on_failure=partial(os.kill, os.getpid(), signal.SIGTERM),  # who has failed is stopped as by a signal
        ) as emulator:
            if config is not None and not emulator.is_restored:
                emulator.load(config)
            if prepare is not None and not emulator.is_restored:
                prepare(emulator.endpoint)
            emulator.chaos(seed)
            ready = f"export PUBSUB_EMULATOR_HOST={emulator.endpoint}"
            sys.stdout.write(f"{json.dumps({'endpoint': emulator.endpoint}) if as_json else ready}\n")
            sys.stdout.flush()
            signal.sigwait(_STOPS)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)  # a second one ends it at once
    except (OSError, SeedFileError, DataDirError, EmulatorFailedError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0
