"""`pubsub-spark doctor`: every check in order, a table of them with the remedies, exit code 1 if anything is wrong.

On a terminal the table grows as checks end, and its last row is the one that runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .command import Service, command, pairs
from .output import print_json, print_table, table_of

if TYPE_CHECKING:
    from rich.table import Table

    from ..options import ReadOptions, WriteOptions
    from .checks import Finding

_HEADING = ("", "check", "found", "remedy")
_SHOWN = {"ok": ("ok", "green"), "wrong": ("WRONG", "red"), "skipped": ("skipped", "yellow"), "running": ("...", "dim")}


def register(app: typer.Typer) -> None:
    command(app, "doctor")(doctor)


def doctor(
    service: Service,
    subscription: Annotated[str | None, typer.Option(metavar="NAME", help="A subscription to be read.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="A topic to be written to.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the read or the write. May be repeated."),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Start Spark and check that it finds this data source.")
    ] = True,
    send: Annotated[
        bool,
        typer.Option(
            "--try",
            help="Send a message and pull it: on a temporary topic, or on --topic, whose subscribers also receive it.",
        ),
    ] = False,
) -> None:
    """Check this machine, Spark, Pub/Sub and the staging area. Each problem has a remedy. Ends with 1 if any is bad.

    Nothing is changed without `--try`. Permissions are those that the options of a read of --subscription and of a
    write to --topic need.
    """
    texts = pairs(option)
    if subscription:
        texts["subscriptionId"] = subscription
    findings = _ended(_findings(service, texts, topic, spark, send), sys.stdout.isatty() and not service.as_json)
    if service.as_json:
        print_json([asdict(finding) for finding in findings])
    elif not sys.stdout.isatty():
        print_table(_HEADING, [[_SHOWN[row.state][0], row.check, row.found, row.remedy] for row in findings])
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(1)


def _ended(findings: Iterator[Finding], is_live: bool) -> list[Finding]:
    """Show running checks in the table of a terminal, else on stderr."""
    from rich.console import Console
    from rich.live import Live

    ended: list[Finding] = []
    with Live(console=Console(), auto_refresh=False) if is_live else nullcontext() as live:
        for finding in findings:
            if live is not None:
                live.update(_table([*ended, finding]), refresh=True)
            elif finding.state == "running" and sys.stderr.isatty():
                typer.echo(f"{finding.check} {finding.found}", err=True)
            if finding.state != "running":
                ended.append(finding)
    return ended


def _table(findings: Sequence[Finding]) -> Table:
    from rich.text import Text

    table = table_of(_HEADING)
    for row in findings:
        word, colour = _SHOWN[row.state]
        table.add_row(Text(word, style=colour), Text(row.check), Text(row.found), Text(row.remedy, style="bold"))
    return table


def _findings(service: Service, texts: dict[str, str], topic: str | None, spark: bool, send: bool) -> Iterator[Finding]:
    from ..backend import from_options
    from . import checks
    from .checks import Finding

    yield from _machine(spark)
    read, write, complaints = _parsed(service, texts, topic)
    if complaints:
        yield from complaints
        yield Finding("Pub/Sub, staging area", "skipped", "not before the options are right")
        return
    options = read or write
    backend = service.backend if options is None else from_options(options)
    yield checks.staging(read, backend)
    yield Finding("Pub/Sub", "running", "is asked")
    endpoint = checks.endpoint(backend.address)
    yield endpoint
    credentials = checks.credentials(backend)
    yield credentials
    if "wrong" in (endpoint.state, credentials.state):
        yield Finding("permissions", "skipped", "not without endpoint and credentials")
        return
    if not send:
        yield checks.clock(backend)
    wanted = checks.needed(read, write)
    with backend.connect() as connection:
        if not wanted:
            yield Finding("permissions", "skipped", "name a resource with `--subscription` or `--topic`")
        yield from checks.permissions(connection.admin, wanted, None if read is None else read.topic)
        if send:
            yield Finding("a message", "running", "is sent and pulled")
            full = None if write is None else write.topic
            yield from checks.message_out_and_in(connection.admin, full, service.project)


def _machine(spark: bool) -> Iterator[Finding]:
    """Spark is not needed without PySpark and with `--no-spark`."""
    from . import checks
    from .checks import Finding

    before = [checks.driver_python(), checks.pyspark(), checks.java(os.environ)]
    if not spark and not checks.has_pyspark():
        yield before[0]
        yield Finding("Spark", "skipped", "PySpark is not installed, and Spark is not asked for")
        return
    yield from before
    yield Finding("worker's Python", "running", "is asked for its packages")
    workers = checks.worker_python(os.environ)
    yield from workers
    if not spark:
        yield Finding("Spark", "skipped", "not asked for")
    elif any(finding.state == "wrong" for finding in (*before, *workers)):
        yield Finding("Spark", "skipped", "not before the above is right")
    else:
        yield Finding("Spark", "running", "is being started, which takes half a minute and more")
        yield from checks.spark_source()


def _parsed(
    service: Service, texts: dict[str, str], topic: str | None
) -> tuple[ReadOptions | None, WriteOptions | None, list[Finding]]:
    """Return the options of a read, if there is a subscription, of a write, if there is a topic, and the problems."""
    from ..errors import OptionsError
    from ..options import ReadOptions, WriteOptions
    from .checks import Finding

    shared = service.options()
    of_write = {option.name.lower() for option in WriteOptions.declared()}
    of_read = {option.name.lower() for option in ReadOptions.declared()}
    reads, writes = "subscriptionId" in texts, topic is not None
    findings: list[Finding] = []
    read: ReadOptions | None = None
    write: WriteOptions | None = None
    try:
        if reads or (texts and not writes):
            mine = {name: text for name, text in texts.items() if name.lower() in of_read or not writes}
            read = ReadOptions.parse(shared | mine, os.environ)
        if writes:
            mine = {name: text for name, text in texts.items() if name.lower() in of_write or not reads}
            write = WriteOptions.parse(shared | mine | {"topicId": str(topic)}, os.environ)
        if reads and writes:
            strange = [name for name in texts if name.lower() not in of_read | of_write]
            ReadOptions.parse(shared | {name: texts[name] for name in ["subscriptionId", *strange]}, os.environ)
    except OptionsError as error:
        remedy = "`pubsub-spark options` lists them."
        findings = [Finding("options", "wrong", problem, remedy) for problem in error.problems]
    return read, write, findings
