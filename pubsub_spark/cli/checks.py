"""The checks of `pubsub-spark doctor`: of this machine, of Spark, of Pub/Sub, of the staging area.

A check returns findings and raises no error that a user can cause. A finding can make other checks pointless: they are
skipped, and report that.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .. import names
from ..errors import ForbiddenError, MissingError, PubSubError

if TYPE_CHECKING:
    from ..backend import Backend
    from ..backend.admin import Admin
    from ..names import Collection
    from ..options import ReadOptions, WriteOptions

State = Literal["running", "ok", "wrong", "skipped"]

_OLDEST_PYTHON, _OLDEST_JAVA, _OLDEST_SPARK = (3, 11), 17, (4, 0)
_CONNECT_TIMEOUT_SECONDS = 5.0
_PYTHON_TIMEOUT_SECONDS = 60.0  # of a worker's Python that imports the package
_SPARK_TIMEOUT_SECONDS = 180.0
_ARRIVAL_TIMEOUT_SECONDS = 30.0  # of the message that `--try` sends
_MAX_SKEW_SECONDS = 30.0  # tokens of service accounts are refused when the clock is minutes off

_WORKER = """
import importlib.util, json, sys
found = {"python": sys.version.split()[0], "executable": sys.executable}
for name in ("pubsub_spark", "fastavro", "google.pubsub_v1", "grpc", "numpy", "obstore", "ptars", "pyarrow"):
    try:
        there = importlib.util.find_spec(name) is not None
    except ImportError:
        there = False
    if not there:
        found.setdefault("missing", name)
if "missing" not in found:
    import pubsub_spark
    found["pubsub_spark"] = pubsub_spark.__version__
print(json.dumps(found))
"""

_SPARK = """
import json
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
found = {}
for name in ("pubsub", "pubsub_spark"):
    try:
        found[name] = spark.read.format(name).option("subscriptionId", "projects/p/subscriptions/none").load().columns
    except Exception as error:
        found[name] = str(error)
print(json.dumps(found))
spark.stop()
"""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check, or that it runs: its subject, the finding, and the remedy if that is wrong."""

    check: str
    state: State
    found: str
    remedy: str = ""


class Permission(NamedTuple):
    collection: Collection
    name: str
    permission: str
    role: str


def _ran(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)  # noqa: S603 (the user's own)


def _of_error(check: str, error: PubSubError) -> Finding:
    """The error's first sentence is what happened, the others are the remedy."""
    problem, _, remedy = str(error).partition(". ")
    return Finding(check, "wrong", problem, remedy)


def driver_python() -> Finding:
    """A driver that is started from this shell has this Python."""
    python = f"{sys.version.split()[0]}, {sys.executable}"
    if sys.version_info < _OLDEST_PYTHON:
        return Finding("driver's Python", "wrong", python, "Use Python 3.11 or newer.")
    return Finding("driver's Python", "ok", python)


def has_pyspark() -> bool:
    with suppress(metadata.PackageNotFoundError):
        return bool(metadata.version("pyspark"))
    return False


def pyspark() -> Finding:
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        remedy = "On a laptop install the extra `spark`. On a cluster run the doctor with the cluster's Python."
        return Finding("PySpark", "wrong", "is not installed", remedy)
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < _OLDEST_SPARK:
        return Finding("PySpark", "wrong", version, "Use PySpark 4.0 or newer.")
    return Finding("PySpark", "ok", version)


def java(environ: Mapping[str, str]) -> Finding:
    """Spark's launcher finds Java by JAVA_HOME if it is set, else by the path."""
    home = environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else "java"
    remedy = "Install a JRE 17 or newer, or point JAVA_HOME at one."
    try:
        said = _ran([command, "-version"], _PYTHON_TIMEOUT_SECONDS).stderr
    except (OSError, subprocess.SubprocessError):
        return Finding("Java", "wrong", f"`{command}` does not run", remedy)
    version = re.search(r'version "([^"]*)"', said)
    shown = version[1] if version else "of an unknown version"
    number = re.match(r"\d+", shown)
    is_new = number is not None and int(number[0]) >= _OLDEST_JAVA
    return Finding("Java", "ok" if is_new else "wrong", f"{shown}, {command}", "" if is_new else remedy)


def worker_python(environ: Mapping[str, str]) -> list[Finding]:
    """Return the findings about the Python of Spark's workers: its version, and this package with its dependencies.

    PySpark is not one of these: Spark brings it.
    """
    from .. import __version__

    command = environ.get("PYSPARK_PYTHON") or "python3"
    remedy = f"Activate the environment of the package, or set PYSPARK_PYTHON to `{sys.executable}`."
    executable = shutil.which(command)
    if executable is None:
        return [Finding("worker's Python", "wrong", f"`{command}` is not there", remedy)]
    try:
        worker = json.loads(_ran([executable, "-c", _WORKER], _PYTHON_TIMEOUT_SECONDS).stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return [Finding("worker's Python", "wrong", f"`{executable}` does not run", remedy)]
    return list(_of_worker(worker, f"{sys.version_info[0]}.{sys.version_info[1]}", __version__, remedy))


def _of_worker(worker: Mapping[str, str], driver_python: str, version: str, remedy: str) -> Iterator[Finding]:
    python = f"{worker['python']}, {worker['executable']}"
    same = worker["python"].startswith(f"{driver_python}.")
    yield Finding("worker's Python", "ok" if same else "wrong", python, "" if same else remedy)
    if "missing" in worker:
        yield Finding("package in workers", "wrong", f"no package `{worker['missing']}`", remedy)
    elif worker["pubsub_spark"] != version:
        yield Finding("package in workers", "wrong", f"{worker['pubsub_spark']}, and the driver's is {version}", remedy)
    else:
        yield Finding("package in workers", "ok", f"pubsub-spark {version}")


def spark_source() -> list[Finding]:
    """Return the findings about the data source's two names in a new Spark."""
    try:
        outcomes = json.loads(_ran([sys.executable, "-c", _SPARK], _SPARK_TIMEOUT_SECONDS).stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return [Finding("Spark", "wrong", "did not start in three minutes", "Start `pyspark` and read its log.")]
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        return [Finding("Spark", "wrong", lines[-1] if lines else "does not start", "Start `pyspark`, read its log.")]
    return [source_finding(name, outcomes[name]) for name in ("pubsub", "pubsub_spark")]


def source_finding(name: str, columns: Sequence[str] | str) -> Finding:
    """columns: of its rows, or Spark's error for it."""
    check = f'format("{name}")'
    if not isinstance(columns, str) and list(columns[:1]) == ["message_id"]:
        return Finding(check, "ok", "this package's source")
    if isinstance(columns, str) and ("DATA_SOURCE_NOT_FOUND" in columns or "No module named" in columns):
        remedy = (
            f"Set PYSPARK_PYTHON to `{sys.executable}` before Spark starts, or call `pubsub_spark.register(spark)`."
        )
        return Finding(check, "wrong", "Spark does not find it", remedy)
    return Finding(check, "wrong", "another source has this name", 'Use `format("pubsub_spark")`.')


def endpoint(address: str) -> Finding:
    """`address` is `host:port`. Behind a proxy, `permissions` shows whether it accepts connections."""
    from ..backend.connection import proxy_variable

    variable = proxy_variable(address, os.environ)
    if variable is not None:
        return Finding("endpoint", "skipped", f"{address} is called through the proxy of `{variable}`")
    host, _, port = address.rpartition(":")
    remedy = "Check `--endpoint` (PUBSUB_EMULATOR_HOST), the network and whether the server runs."
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_SECONDS):
            return Finding("endpoint", "ok", address)
    except OSError as error:
        return Finding("endpoint", "wrong", f"{address}: {error.strerror or error}", remedy)


def credentials(backend: Backend) -> Finding:
    """`permissions` shows whether they are accepted."""
    from ..backend import EmulatorBackend

    if isinstance(backend, EmulatorBackend):
        return Finding("credentials", "ok", "an emulator needs none")
    try:
        backend.connect().close()
    except PubSubError as error:
        return _of_error("credentials", error)
    return Finding("credentials", "ok", "found")


def clock(backend: Backend) -> Finding:
    """The service's clock is known from the `Date` of an HTTP response."""
    import email.utils
    import urllib.error
    import urllib.request

    from ..backend import EmulatorBackend

    if isinstance(backend, EmulatorBackend):
        return Finding("clock", "skipped", "an emulator does not report the time (`--try` compares it)")
    url = f"https://{backend.address}/"
    try:
        with urllib.request.urlopen(url, timeout=_CONNECT_TIMEOUT_SECONDS) as answer:
            date = answer.headers["Date"]
    except urllib.error.HTTPError as error:
        date = error.headers["Date"]
    except OSError as error:
        return Finding("clock", "skipped", f"`{url}` does not answer: {error}")
    if date is None:
        return Finding("clock", "skipped", "the service does not tell the time")
    return skew(email.utils.parsedate_to_datetime(date).timestamp() - time.time())


def skew(seconds: float) -> Finding:
    """The service's clock is `seconds` ahead of this machine's."""
    if abs(seconds) > _MAX_SKEW_SECONDS:
        return Finding("clock", "wrong", f"{abs(seconds):.0f} s off", "Have the clock set by NTP (`timedatectl`).")
    return Finding("clock", "ok", f"within {_MAX_SKEW_SECONDS:.0f} s of the service's")


def needed(read: ReadOptions | None, write: WriteOptions | None) -> list[Permission]:
    permissions: list[Permission] = []
    if read is not None:
        permissions.append(Permission("subscriptions", read.subscription, "pubsub.subscriptions.consume", "subscriber"))
        if read.delete_subscription_on_stream_stop:
            permissions.append(Permission("subscriptions", read.subscription, "pubsub.subscriptions.delete", "editor"))
        if read.decode == "topic" and read.schema is not None and read.schema_definition is None:
            schema = names.full(read.schema, read.project, "schemas")
            permissions.append(Permission("schemas", schema, "pubsub.schemas.get", "viewer"))
        if read.decode == "topic" and read.topic is not None:
            permissions.append(Permission("topics", read.topic, "pubsub.topics.get", "viewer"))
        elif read.decode == "topic" and read.schema is None:
            permissions.append(Permission("subscriptions", read.subscription, "pubsub.subscriptions.get", "viewer"))
        if read.dead_letter is not None:
            permissions.append(Permission("topics", read.dead_letter, "pubsub.topics.publish", "publisher"))
        if read.starting_snapshot is not None:
            name = names.full(read.starting_snapshot, read.project, "snapshots")
            permissions.append(Permission("snapshots", name, "pubsub.snapshots.seek", "subscriber"))
    if write is not None:
        topics = (topic for topic in (write.topic, write.dead_letter) if topic is not None)
        permissions += (Permission("topics", topic, "pubsub.topics.publish", "publisher") for topic in topics)
        if write.topic is not None and write.encode != "none":
            permissions.append(Permission("topics", write.topic, "pubsub.topics.get", "viewer"))
    return permissions


def permissions(admin: Admin, wanted: Sequence[Permission], creating_on: str | None = None) -> list[Finding]:
    """Ask testIamPermissions, also for the topic of a subscription and the schema of a topic that will be looked at.

    creating_on: the topic of a subscription that does not exist yet.
    """
    findings = []
    asked = list(wanted)
    for permission in asked:
        try:
            asked += _looked_at_next(permission, admin.get(permission.collection, permission.name))
        except MissingError as error:
            if permission.collection != "subscriptions" or creating_on is None:
                findings.append(_of_error(permission.name, error))
                continue
            findings.append(Finding(permission.name, "ok", "does not exist: the first start creates it"))
            permission = Permission("topics", creating_on, "pubsub.topics.attachSubscription", "subscriber")
        except ForbiddenError:
            pass  # a consumer need not have the permission to view it
        except PubSubError as error:
            findings.append(_of_error(permission.name, error))
            continue
        findings.append(_permission(admin, permission))
    return list(dict.fromkeys(findings))


def _looked_at_next(permission: Permission, resource: Any) -> list[Permission]:
    if permission.permission == "pubsub.subscriptions.get":
        return [Permission("topics", resource.topic, "pubsub.topics.get", "viewer")]
    if permission.permission == "pubsub.topics.get" and resource.schema_settings.schema:
        return [Permission("schemas", resource.schema_settings.schema, "pubsub.schemas.get", "viewer")]
    return []


def _permission(admin: Admin, wanted: Permission) -> Finding:
    check = f"{wanted.permission} on {wanted.name}"
    try:
        granted = admin.granted(wanted.collection, wanted.name, [wanted.permission])
    except PubSubError as error:
        return _of_error(check, error)
    if granted is None:
        return Finding(check, "skipped", "the service does not tell")
    if wanted.permission in granted:
        return Finding(check, "ok", "granted")
    return Finding(check, "wrong", "not granted", f"Grant the caller `roles/pubsub.{wanted.role}`.")


def staging(read: ReadOptions | None, backend: Backend) -> Finding:
    """Return whether a staging area stores a file, returns it, and refuses to create it a second time."""
    from ..backend import GcpBackend
    from ..read.staging.area import Staging
    from ..read.staging.store import default_location, open_store

    content = os.urandom(64)
    location = (read and read.staging_location) or default_location()
    credentials_json = backend.credentials_json if isinstance(backend, GcpBackend) else None
    try:
        store = open_store(location, credentials_json, read.fail_after if read else None)
        area = Staging(store, "projects/doctor/subscriptions/doctor", f"doctor-{uuid.uuid4().hex}")
        area.write_token()  # proves that the store does not overwrite an existing object
        area.create("1/part-0", [content])
        is_same = bytes(area.read("1/part-0") or b"") == content
        area.delete()
    except PubSubError as error:
        return _of_error("staging area", error)
    if not is_same:
        return Finding(
            "staging area", "wrong", "returned other bytes than were written", "Set another `stagingLocation`."
        )
    return Finding("staging area", "ok", f"{location}: written once, read, deleted")


def message_out_and_in(admin: Admin, topic: str | None, project: str | None) -> list[Finding]:
    """It also checks the service's clock. It uses resources of its own, which it deletes. topic: to publish to, instead
    of a temporary one.
    """
    from google.pubsub_v1 import types

    project = topic.split("/")[1] if topic is not None else project
    if not project:
        return [Finding("a message", "wrong", "no project to send it in", "Pass `--project` or `--topic`.")]
    token = f"pubsub-spark-doctor-{uuid.uuid4().hex[:12]}"
    on, subscription = topic or f"projects/{project}/topics/{token}", f"projects/{project}/subscriptions/{token}"
    with ExitStack() as ending:  # also on Ctrl-C: the temporary resources are deleted
        findings: list[Finding] = []
        try:
            if topic is not None and (schema := _schema_of(admin, topic)):
                remedy = "Leave out `--topic` to send it on a temporary topic."
                return [Finding("a message", "skipped", f"`{topic}` has the schema `{schema}`", remedy)]
            if topic is None:
                admin.create("topics", types.Topic(name=on), on)
                ending.callback(_deleted, admin, "topics", on, findings)
            resource = types.Subscription(name=subscription, topic=on)
            admin.create("subscriptions", resource, subscription)
            ending.callback(_deleted, admin, "subscriptions", subscription, findings)
            findings += _sent_and_pulled(admin, on, subscription)
        except PubSubError as error:
            findings.append(_of_error("a message", error))
    return findings


def _schema_of(admin: Admin, topic: str) -> str:
    """Return "" if the topic has no schema or the caller may not view the topic."""
    try:
        return str(admin.get("topics", topic).schema_settings.schema)
    except ForbiddenError:
        return ""


def _sent_and_pulled(admin: Admin, topic: str, subscription: str) -> list[Finding]:
    from google.pubsub_v1 import types

    began = time.time()
    [sent] = admin.publish(topic, [types.PubsubMessage(data=b"pubsub-spark doctor")])
    while time.time() < began + _ARRIVAL_TIMEOUT_SECONDS:
        for received in admin.pull(subscription, 100, 5.0):
            admin.acknowledge(subscription, [received.ack_id])
            if received.message.message_id == sent:
                outcome = f"published and pulled in {time.time() - began:.1f} s"
                return [Finding("a message", "ok", outcome), skew(received.message.publish_time.timestamp() - began)]
    waited = f"did not come within {_ARRIVAL_TIMEOUT_SECONDS:.0f} s"
    return [Finding("a message", "wrong", waited, "Look at the service's status page.")]


def _deleted(admin: Admin, collection: Collection, name: str, findings: list[Finding]) -> None:
    try:
        admin.delete(collection, name)
    except PubSubError as error:
        findings.append(Finding("a message", "wrong", str(error), f"Delete `{name}` yourself."))
