"""`pubsub-spark backlog` and `seek`: the position of subscriptions.

Pub/Sub's API does not return a backlog. On Google Cloud it is read from Cloud Monitoring, which is a few minutes behind
(`roles/monitoring.viewer`).
"""

from __future__ import annotations

import datetime
import json
import signal
import sys
import threading
import time
from contextlib import nullcontext, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from .command import Service, command, exit_with, names_of
from .emulator_client import ask
from .output import print_json, print_table, table_of
from .snapshots import moment

if TYPE_CHECKING:
    from rich.table import Table

_MONITORING = "https://monitoring.googleapis.com/v3"
_METRICS = {
    "undelivered": "pubsub.googleapis.com/subscription/num_undelivered_messages",
    "oldestUnackedSeconds": "pubsub.googleapis.com/subscription/oldest_unacked_message_age",
}
_WINDOW_SECONDS = 600  # of Cloud Monitoring, to find the newest point
_TIMEOUT_SECONDS = 20.0
_POLL_SECONDS = 0.1  # between two checks whether Ctrl-C was pressed


class Backlog(TypedDict, total=False):
    """The backlog of one subscription. `leased` only if an emulator returns it."""

    undelivered: float
    leased: float
    oldestUnackedSeconds: float


def register(app: typer.Typer) -> None:
    command(app, "backlog")(backlog)
    command(app, "seek")(seek)


def backlog(
    service: Service,
    subscriptions: Annotated[
        list[str] | None, typer.Argument(**names_of("subscriptions", "SUBSCRIPTION"), show_default="all of the project")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="Time between two updates.")] = 2.0,
) -> None:
    """Show how many messages wait in subscriptions, again and again until Ctrl-C. Nothing is pulled.

    Google Cloud reports it through Cloud Monitoring, some minutes late. Google's emulator does not report it.
    """
    wanted = [service.full(name, "subscriptions") for name in subscriptions or ()]
    project = service.project if not wanted else None
    if not wanted and not project:
        service.the_project()
    if once:
        backlogs = _backlogs(service, wanted, project)
        if service.as_json:
            print_json(backlogs)
        else:
            print_table(_HEADING, _rows(backlogs, service.project))
        return
    from rich.console import Console
    from rich.live import Live

    interrupted = interrupts()
    is_live = sys.stdout.isatty() and not service.as_json
    with suppress(KeyboardInterrupt), Live(console=Console(), auto_refresh=False) if is_live else nullcontext() as live:
        while True:
            backlogs = _backlogs(service, wanted, project)
            if live is not None:
                live.update(_table(backlogs, service.project), refresh=True)
            elif service.as_json:
                typer.echo(json.dumps(backlogs))
            else:
                print_table(_HEADING, _rows(backlogs, service.project))
            if comes_within(interval, interrupted):
                return


def interrupts() -> SimpleQueue[int]:
    """Return a queue that receives the first Ctrl-C or SIGTERM. The second is a KeyboardInterrupt.

    gRPC can swallow a KeyboardInterrupt during a call. A signal handler that sets an Event waits forever if it
    interrupts a wait for that Event.
    """
    interrupted: SimpleQueue[int] = SimpleQueue()

    def interrupt(number: int, _: Any) -> None:
        interrupted.put(number)
        signal.signal(number, signal.default_int_handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    return interrupted


def comes_within(seconds: float, interrupted: SimpleQueue[int]) -> bool:
    """Polled: see `Runtime.queue` for the effects of a timeout of `get`."""
    end = time.monotonic() + seconds
    while interrupted.empty():
        remaining = end - time.monotonic()
        if remaining <= 0:
            return False
        threading.Event().wait(min(remaining, _POLL_SECONDS))
    return True


def seek(
    service: Service,
    subscription: Annotated[str, typer.Argument(**names_of("subscriptions", "SUBSCRIPTION"))],
    moment_: Annotated[
        datetime.datetime | None,
        typer.Option(
            "--time",
            parser=moment,
            metavar="TIME",
            help="Acknowledge earlier messages, and redeliver later ones.",
        ),
    ] = None,
    snapshot: Annotated[
        str | None, typer.Option(**names_of("snapshots"), help="The position that a snapshot has kept.")
    ] = None,
    snapshot_project: Annotated[str | None, typer.Option(metavar="ID", help="The project of --snapshot.")] = None,
) -> None:
    """Move a subscription to a time or to a snapshot. A running query continues from there."""
    if (moment_ is None) == (snapshot is None):
        exit_with("Pass either `--time` or `--snapshot`.", 2)
    if snapshot_project is not None and snapshot is None:
        exit_with("`--snapshot-project` needs `--snapshot`.", 2)
    name = service.full(subscription, "subscriptions")
    target = service.full(snapshot, "snapshots", snapshot_project) if snapshot is not None else moment_
    assert target is not None
    with service.connect() as admin:
        admin.seek(name, target)
    shown = target if isinstance(target, str) else target.isoformat()
    if service.as_json:
        print_json({"subscription": name, "to": shown})
    else:
        typer.echo(f"{name} is at {shown}")


_HEADING = ("subscription", "undelivered", "leased", "oldest unacked")


def _rows(backlogs: dict[str, Backlog], project: str | None) -> list[list[str]]:
    return [
        [
            name.removeprefix(f"projects/{project}/subscriptions/"),
            f"{int(backlog.get('undelivered', 0)):,}",
            f"{int(backlog['leased']):,}" if "leased" in backlog else "-",
            str(datetime.timedelta(seconds=round(backlog.get("oldestUnackedSeconds", 0)))),
        ]
        for name, backlog in backlogs.items()
    ]


def _table(backlogs: dict[str, Backlog], project: str | None) -> Table:
    table = table_of(_HEADING)
    for row in _rows(backlogs, project):
        table.add_row(*row)
    return table


def _backlogs(service: Service, wanted: list[str], project: str | None) -> dict[str, Backlog]:
    from ..backend import EmulatorBackend

    names = wanted or sorted(subscription.name for subscription in _listed(service, str(project)))
    backend = service.backend
    if isinstance(backend, EmulatorBackend):
        backlogs = ask(backend.address, "GET", "backlog")
    else:
        backlogs = _of_monitoring(service, {name.split("/")[1] for name in names})
    if missing := [name for name in names if name not in backlogs]:
        with service.connect() as admin:  # raises for one that does not exist: one without a message has no point
            for name in missing:
                admin.get("subscriptions", name)
    return {name: backlogs.get(name, {"undelivered": 0, "oldestUnackedSeconds": 0}) for name in names}


def _listed(service: Service, project: str) -> list[Any]:
    with service.connect() as admin:
        return admin.listed("subscriptions", project)


def _of_monitoring(service: Service, projects: set[str]) -> dict[str, Backlog]:
    """Not yet run against Google Cloud."""
    import google.auth
    import google.auth.exceptions
    import requests
    from google.auth.transport.requests import AuthorizedSession

    backlogs: dict[str, Backlog] = {}
    try:
        scopes = ["https://www.googleapis.com/auth/monitoring.read"]
        if service.credentials_file is None:
            credentials, _ = google.auth.default(scopes=scopes)
        else:
            credentials, _ = google.auth.load_credentials_from_file(service.credentials_file, scopes=scopes)
        session = AuthorizedSession(credentials)
        for project in projects:
            for field, metric in _METRICS.items():
                for name, value in _points(session, project, metric):
                    backlogs.setdefault(name, {})[field] = value  # type: ignore[literal-required]
    except (google.auth.exceptions.GoogleAuthError, requests.RequestException) as error:
        exit_with(f"Cloud Monitoring does not tell the backlog: {str(error).splitlines()[0]}.")
    return backlogs


def _points(session: Any, project: str, metric: str) -> list[tuple[str, float]]:
    now = datetime.datetime.now(datetime.UTC)
    parameters = {
        "filter": f'metric.type = "{metric}"',
        "interval.startTime": (now - datetime.timedelta(seconds=_WINDOW_SECONDS)).isoformat(),
        "interval.endTime": now.isoformat(),
    }
    points = []
    while True:
        answer = session.get(
            f"{_MONITORING}/projects/{project}/timeSeries", params=parameters, timeout=_TIMEOUT_SECONDS
        )
        if answer.status_code != 200:
            said = answer.json().get("error", {}).get("message", answer.reason)
            exit_with(f"Cloud Monitoring does not tell the backlog of project `{project}`: {said}")
        for series in answer.json().get("timeSeries", []):
            name = f"projects/{project}/subscriptions/{series['resource']['labels']['subscription_id']}"
            points.append((name, float(series["points"][0]["value"]["int64Value"])))
        if not answer.json().get("nextPageToken"):
            return points
        parameters["pageToken"] = answer.json()["nextPageToken"]
