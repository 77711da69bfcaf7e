"""The emulator as a process of its own, for `pubsub-spark emulator`."""

from __future__ import annotations

import gc
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from importlib import import_module

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.emulator import EmulatorFailedError
from pubsub_spark.emulator.journal.files import DataDirError
from pubsub_spark.emulator.options import EmulatorOptions, ServeOptions
from pubsub_spark.emulator.rpc.call_log import JsonFormatter
from pubsub_spark.emulator.seed_file import SeedFileError
from pubsub_spark.emulator.transport.origin import OriginError
from pubsub_spark.memory import keep_freed_memory, release_when_idle

_STOPS = {signal.SIGINT, signal.SIGTERM}
_SWITCH_SECONDS = 0.0005  # until a thread that compiles a schema lets the event loop work, instead of 5 ms


def serve(options: ServeOptions, prepare: Callable[[str], object] | None = None, as_json: bool = False) -> int:
    """Run until Ctrl-C or SIGTERM and return the exit code. Call it on the main thread, because of the signals.

    When it is ready, it prints one line that the shell evaluates, or JSON. If the data directory is empty, it first
    creates the resources of `options.config` and calls `prepare` with the endpoint.
    """
    options.remembered = options.remembered if options.record else 0
    # A failed emulator is stopped as by a signal. A signal to the process would end it on any thread of the caller
    # that was there before the signals were blocked.
    options.on_failure = partial(signal.pthread_kill, threading.get_ident(), signal.SIGTERM)
    handler = logging.StreamHandler(sys.stderr)
    is_json = options.log_format == "json"
    handler.setFormatter(JsonFormatter() if is_json else logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO if options.verbose else logging.WARNING, handlers=[handler])
    # Messages are many, small and free of cycles. Checking all of them as often as Python would costs a third.
    gc.set_threshold(50_000, 20, 100)
    sys.setswitchinterval(_SWITCH_SECONDS)
    keep_freed_memory()
    # Blocked before there are threads, so that the signals wait for `sigwait`. A handler that sets an Event can meet
    # the very lock that the main thread holds on its way into `wait`, and then nothing stops any more.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        with Emulator(**{field.name: getattr(options, field.name) for field in fields(EmulatorOptions)}) as emulator:
            if options.config is not None and not emulator.is_restored:
                emulator.load(options.config)
            if prepare is not None and not emulator.is_restored:
                prepare(emulator.endpoint)
            emulator.chaos(options.seed)
            page = _page_of(emulator)
            sys.stderr.write(f"{handler.format(_record(page)) if is_json else f'Page: {page}'}\n")
            ready = f"export PUBSUB_EMULATOR_HOST={emulator.endpoint}"
            sys.stdout.write(f"{json.dumps({'endpoint': emulator.endpoint, 'page': page}) if as_json else ready}\n")
            sys.stdout.flush()
            import_module("pubsub_spark.emulator.transport.http_app")  # before a client of HTTP would wait for it
            release_when_idle()
            signal.sigwait(_STOPS)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)  # a second one ends it at once
    except (OSError, SeedFileError, DataDirError, EmulatorFailedError, OriginError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0


def _page_of(emulator: Emulator) -> str:
    host = {"0.0.0.0": "localhost", "::": "localhost"}.get(emulator.host)  # noqa: S104 (nothing is bound)
    return f"http://{f'{host}:{emulator.port}' if host else emulator.endpoint}/"


def _record(page: str) -> logging.LogRecord:
    return logging.makeLogRecord({"levelname": "INFO", "msg": f"The page is at {page}", "fields": {"page": page}})
