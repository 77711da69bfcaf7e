"""`pubsub-spark doctor`: every check in order, a table of them with the remedies, exit code 1 if anything is wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .command import Service, command, pairs
from .output import print_json, print_table, table_of

if TYPE_CHECKING:
    from ..options import ReadOptions, WriteOptions
    from .checks import Finding

_SHOWN = {"ok": ("ok", "green"), "wrong": ("WRONG", "red"), "skipped": ("skipped", "yellow")}


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "doctor")(doctor)


def doctor(
    service: Service,
    subscription: Annotated[str | None, typer.Option(metavar="NAME", help="A subscription to be read.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="A topic to be written to.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the read or the write; may be repeated."),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Start Spark and check that it finds this data source.")
    ] = True,
    send: Annotated[
        bool,
        typer.Option(
            "--try",
            help="Send a message and pull it: on a temporary topic, or to --topic, whose subscribers get it, too.",
        ),
    ] = False,
) -> None:
    """Check this machine, Spark, Pub/Sub and the staging area; each finding with its remedy. Ends with 1 if any is bad.

    Nothing is changed without `--try`. Permissions are those that the options of a read of --subscription and of a
    write to --topic need.
    """
    given = pairs(option)
    if subscription:
        given["subscriptionId"] = subscription
    findings = []
    for finding in _findings(service, given, topic, spark, send):
        findings.append(finding)
        if sys.stderr.isatty():
            typer.echo(f"\x1b[2K{finding.check}\r", nl=False, err=True)
    if service.as_json:
        print_json([asdict(each) for each in findings])
    else:
        _print(findings)
    if any(each.state == "wrong" for each in findings):
        raise typer.Exit(1)


def _print(findings: list[Finding]) -> None:
    if not sys.stdout.isatty():
        rows = [[_SHOWN[each.state][0], each.check, each.found, each.remedy] for each in findings]
        print_table(["", "check", "found", "remedy"], rows)
        return
    from rich.console import Console
    from rich.text import Text

    table = table_of(("", "check", "found", "remedy"))
    for each in findings:
        word, colour = _SHOWN[each.state]
        table.add_row(Text(word, style=colour), Text(each.check), Text(each.found), Text(each.remedy, style="bold"))
    Console().print(table)


def _findings(service: Service, given: dict[str, str], topic: str | None, spark: bool, send: bool) -> Iterator[Finding]:
    from . import checks

    yield checks.driver_python()
    before = [checks.pyspark(), checks.java(os.environ), *checks.worker_python(os.environ)]
    yield from before
    if not spark:
        yield checks.Finding("Spark", "skipped", "not asked for")
    elif any(each.state == "wrong" for each in before):
        yield checks.Finding("Spark", "skipped", "not before the above is right")
    else:
        yield from checks.spark_source()
    read, write, complaints = _parsed(service, given, topic)
    yield from complaints
    if complaints:
        return
    yield checks.staging((read.staging_location if read is not None else None) or _default_location())
    backend = service.backend
    endpoint = checks.endpoint(backend.address)
    yield endpoint
    credentials = checks.credentials(backend)
    yield credentials
    if "wrong" in (endpoint.state, credentials.state):
        yield checks.Finding("permissions", "skipped", "not without endpoint and credentials")
        return
    if not send:
        yield checks.clock(backend)
    wanted = checks.needed(read, write)
    with service.connect() as resources:
        if not wanted:
            yield checks.Finding("permissions", "skipped", "name a resource with `--subscription` or `--topic`")
        yield from checks.permissions(resources, wanted, None if read is None else read.topic)
        if send:
            full = None if write is None else write.topic
            yield from checks.message_out_and_in(resources, full, service.project)


def _default_location() -> str:
    from ..read.staging import default_location

    return default_location()


def _parsed(
    service: Service, given: dict[str, str], topic: str | None
) -> tuple[ReadOptions | None, WriteOptions | None, list[Finding]]:
    """The options of a read, where a subscription is given, and of a write, where a topic is; and what is wrong."""
    from ..errors import OptionsError
    from ..options import ReadOptions, WriteOptions
    from .checks import Finding

    shared = service.options()
    of_write = {option.name.lower() for option in WriteOptions.declared()}
    of_read = {option.name.lower() for option in ReadOptions.declared()}
    reads, writes = "subscriptionId" in given, topic is not None
    findings: list[Finding] = []
    read: ReadOptions | None = None
    write: WriteOptions | None = None
    try:
        if reads or (given and not writes):
            mine = {name: text for name, text in given.items() if name.lower() in of_read or not writes}
            read = ReadOptions.parse(shared | mine, {})
        if writes:
            mine = {name: text for name, text in given.items() if name.lower() in of_write or not reads}
            write = WriteOptions.parse(shared | mine | {"topicId": str(topic)}, {})
        if reads and writes:
            strange = [name for name in given if name.lower() not in of_read | of_write]
            ReadOptions.parse(shared | {name: given[name] for name in ["subscriptionId", *strange]}, {})
    except OptionsError as error:
        remedy = "`pubsub-spark options` lists them."
        findings = [Finding("options", "wrong", problem, remedy) for problem in error.problems]
    return read, write, findings
