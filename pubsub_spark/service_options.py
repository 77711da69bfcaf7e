"""The options that reading and writing share, and `parse`. The others are in `options`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from . import logs, names
from .declare import Declared, declare
from .errors import OptionsError

# Spark's own options, which it passes to a Python source among the user's: those of a query, and the properties of a
# table of its catalog. A table has the user's options a second time as `option.<name>`.
_SPARK_OWN = frozenset(
    {"checkpointlocation", "queryname", "provider", "owner", "location", "comment", "collation", "external"}
    | {"is_managed_location", "table_type", "serialization.format"}
)
_TABLE_OPTION = "option."
_ENDPOINT = re.compile(r"([^\s/:]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_EXAMPLE = "`host:port` without `http://`, the port 1 to 65535"
PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "PUBSUB_PROJECT_ID")  # the second is that of Google's emulator
_CREDENTIALS = frozenset({"credentialsFile", "credentials", "privateKey"})


def is_endpoint(text: str) -> bool:
    """Return whether a text is `host:port`."""
    match = _ENDPOINT.fullmatch(text)
    return match is not None and 1 <= int(match["port"]) <= 65535


def project_of(environ: Mapping[str, str]) -> str | None:
    return next((environ[name] for name in PROJECT_VARIABLES if environ.get(name)), None)


def host_of(endpoint: str) -> str:
    """Return the host of `host:port` in lower case, an IPv6 address without its brackets."""
    return endpoint.rpartition(":")[0].strip("[]").rstrip(".").lower()


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine by its name or address alone. Nothing is resolved."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


@dataclass(frozen=True, kw_only=True)
class ServiceOptions(Declared):
    elsewhere: ClassVar[Mapping[str, str]] = {
        "serviceCredential": "names a credential of Unity Catalog, which Databricks passes only to its own "
        "connector. Set `credentials`, `credentialsFile`, or `clientEmail` with its key",
        "kafka.bootstrap.servers": "is Kafka's. The address of an emulator or of a regional endpoint is `endpoint`",
        "subscribe": "is Kafka's. A subscription is read with `subscriptionId`",
        "startingOffsets": "is Kafka's. A subscription has its own position, or set `startingTimestamp` or "
        "`startingSnapshot`",
        "maxOffsetsPerTrigger": "is Kafka's. The limit of a micro-batch is `maxMessagesPerTrigger`",
        "minPartitions": "is Kafka's. The number of tasks that pull is `numFetchPartitions`",
        "topic": "is Kafka's. A topic is named by `topicId`",
        "path": "is not used: `save`, `load` and `start` accept none here. Name a topic with `topicId`, a subscription "
        "with `subscriptionId`",
    }

    project: str | None = declare(
        "projectId",
        "string",
        None,
        "The Google Cloud project of resources that are named by their id.",
        shown="`GOOGLE_CLOUD_PROJECT`, else `PUBSUB_PROJECT_ID`",
    )
    backend: str | None = declare(
        "backend",
        "choice",
        None,
        "Google Cloud with TLS and credentials, or an emulator with neither.",
        shown="by `endpoint` and credentials",
        choices=("gcp", "emulator"),
    )
    endpoint: str | None = declare(
        "endpoint",
        "string",
        None,
        "`host:port` of an emulator or of a regional service endpoint.",
        shown="`PUBSUB_EMULATOR_HOST`, else the global endpoint",
    )
    credentials_file: str | None = declare(
        "credentialsFile",
        "string",
        None,
        "Path on the driver of a credentials file in JSON.",
        shown="Application Default Credentials",
    )
    credentials: str | None = declare(
        "credentials", "string", None, "Credentials in JSON, or that JSON in base64.", secret=True
    )
    client_email: str | None = declare(
        "clientEmail", "string", None, "Databricks' way to name a service account: its e-mail."
    )
    client_id: str | None = declare("clientId", "string", None, "Databricks' way: the service account's client id.")
    private_key: str | None = declare(
        "privateKey", "string", None, "Databricks' way: the private key in PEM.", secret=True
    )
    private_key_id: str | None = declare(
        "privateKeyId", "string", None, "Databricks' way: the id of the private key.", secret=True
    )
    asyncapi: str | None = declare(
        "asyncapi", "string", None, "Path on the driver of an AsyncAPI document whose `message` sets other options."
    )
    message: str | None = declare(
        "message", "string", None, "The name of a message in the document of `asyncapi`.", shown="the only one"
    )
    described_attributes: tuple[tuple[str, str], ...] = ()  # by the document of `asyncapi`
    universe: str = "googleapis.com"  # the domain of Google's endpoints, by GOOGLE_CLOUD_UNIVERSE_DOMAIN
    connect_timeout: float = declare(
        "connectTimeout",
        "duration",
        20.0,
        "How long to wait for an endpoint that does not answer.",
        shown="20s",
        low=0.1,
        high=600,
    )
    log_level: str | None = declare(
        "logLevel",
        "choice",
        None,
        "Lowest level of the connector's log lines, on the driver and in tasks.",
        shown="`INFO`",
        choices=tuple(logs.LEVELS),
    )

    def problems(self) -> Iterator[str]:
        """Yield the complaints about options that do not fit together, a sentence each."""
        if self.message is not None and self.asyncapi is None:
            yield "`asyncapi` is required with `message`: the path of the document"
        credentials = self._given_credentials()
        if len(credentials) > 1:
            names = " and ".join(f"`{name}`" for name in credentials)
            yield f"{names} are set, but there can be only one credential. Keep one"
        if self.private_key is not None and self.client_email is None:
            yield "`clientEmail` is required with `privateKey`"
        parts = {"clientEmail": self.client_email, "clientId": self.client_id, "privateKeyId": self.private_key_id}
        if self.private_key is None and any(parts.values()):
            yield f"`privateKey` is required with {' and '.join(f'`{name}`' for name, value in parts.items() if value)}"
        if self.endpoint is not None and not is_endpoint(self.endpoint):
            yield f"`endpoint` must be {_EXAMPLE}, got `{self.endpoint}`"
        elif self.backend is None and not (credentials or self.is_emulator or self._is_googles()):
            yield (
                f"`endpoint` `{self.endpoint}` is neither in `{self.universe}` nor on this machine. If it is "
                f"Pub/Sub, set credentials or `backend=gcp`. If it is an emulator, set `backend=emulator` or "
                f"PUBSUB_EMULATOR_HOST"
            )
        if self.backend == "emulator" and self.endpoint is None:
            yield "`endpoint` is required with `backend=emulator`, e.g. `localhost:8085`, or set PUBSUB_EMULATOR_HOST"

    @property
    def is_emulator(self) -> bool:
        """Whether `endpoint` is an emulator, which is called without TLS and credentials."""
        if self.backend is not None or self.endpoint is None or self._given_credentials():
            return self.backend == "emulator"
        host = host_of(self.endpoint)
        return is_loopback(host) or not {".", ":"} & set(host)

    def _is_googles(self) -> bool:
        return self.endpoint is None or f".{host_of(self.endpoint)}".endswith(f".{self.universe}")

    def _given_credentials(self) -> list[str]:
        return [option.name for option, value in self.items() if option.name in _CREDENTIALS and value is not None]

    @classmethod
    def parse(cls, options: Mapping[str, str], environ: Mapping[str, str]) -> Self:
        """`options` have names in any case, and values as text. They are completed from the environment.

        Raises OptionsError with every problem found.
        """
        plain = {key: text for key, text in options.items() if not key.lower().startswith(_TABLE_OPTION)}
        of_table = {key[len(_TABLE_OPTION) :]: text for key, text in options.items() if key not in plain}
        own = of_table | plain
        # A table's `path` is also Spark's own. Without a table's `provider` it is the argument of `save` or `load`.
        names_of_spark = _SPARK_OWN | ({"path"} if "provider" in map(str.lower, own) else set())
        values, problems = cls.values({key: text for key, text in own.items() if key.lower() not in names_of_spark})
        emulator = environ.get("PUBSUB_EMULATOR_HOST")
        if emulator and values.get("backend") != "gcp" and values.get("endpoint", emulator) == emulator:
            values |= {"endpoint": emulator, "backend": "emulator"}
            if not is_endpoint(emulator):
                problems.append(f"the variable PUBSUB_EMULATOR_HOST must be {_EXAMPLE}, got `{emulator}`")
                del values["endpoint"], values["backend"]
        if environ.get("GOOGLE_CLOUD_UNIVERSE_DOMAIN"):
            values["universe"] = environ["GOOGLE_CLOUD_UNIVERSE_DOMAIN"].lower()
        if project := project_of(environ):
            values.setdefault("project", project)
        parsed = cls(**values)
        problems.extend(parsed.problems())
        if problems and not own:
            problems.append(
                "no option at all was set. Spark does not pass the options of a catalog's table to a Python source: "
                "read and write with `WITH (...)` behind the table's name, or from a view that was made by `CREATE "
                "TEMPORARY VIEW v USING pubsub OPTIONS (...)`"
            )
        if problems:
            raise OptionsError(problems)
        return parsed

    def _full(self, id_or_name: str | None, collection: names.Collection) -> str | None:
        return None if id_or_name is None else names.full(id_or_name, self.project, collection)

    def _named(self, option: str, value: str | None, collection: names.Collection) -> Iterator[str]:
        if value is not None:
            try:
                names.full(value, self.project, collection)
            except ValueError as error:
                yield f"`{option}`: {error}"
