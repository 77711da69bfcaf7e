"""`pubsub-spark publish`, `pull` and `tail`: single messages, to inspect and to try.

`pull` and `tail` show each message with the value that the topic's schema decodes, if the topic has one.
"""

from __future__ import annotations

import datetime
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .command import Service, choices, command, exit_with, names_of, pairs
from .output import print_json, printed_at_the_end, progress

if TYPE_CHECKING:
    from ..backend.admin import Admin
    from ..codec.registry import TopicSchema

_REQUEST_MESSAGES = 1000  # Pub/Sub's limit for one Publish
_REQUEST_BYTES = 5_000_000  # half of Pub/Sub's limit
_WAIT_SECONDS = 2.0  # of a pull for a first message
_EXPIRATION_SECONDS = 86_400  # of the temporary subscription of a `tail` that was killed: Pub/Sub's shortest
_DELETION_SECONDS = 5.0  # of that subscription at the end: after Ctrl-C the user waits for a service that is lost
_HELD_MESSAGES, _HELD_SECONDS = 1000, 600  # of a subscription of others: a nack at once would burn delivery attempts
_REMEMBERED_IDS = 100_000  # of messages that `tail --subscription` has shown and gets again


def register(app: typer.Typer) -> None:
    command(app, "publish")(publish)
    command(app, "pull")(pull)
    command(app, "tail")(tail)


def publish(
    service: Service,
    topic: Annotated[str, typer.Argument(**names_of("topics", "TOPIC"))],
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE", show_default="lines of standard input")] = None,
    message: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="A message. May be repeated.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="A file is one message, instead of a message a line.")] = False,
    attribute: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE,...", help="Attributes of each message.")
    ] = None,
    ordering_key: Annotated[str | None, typer.Option(metavar="KEY", help="Ordering key of each message.")] = None,
    encode: Annotated[
        str,
        typer.Option(**choices("none", "topic"), help="`topic`: a line is JSON, to be encoded by the topic's schema."),
    ] = "none",
) -> None:
    """Publish messages: lines of standard input, lines of files, whole files, or `--message`. Prints their ids."""
    from google.pubsub_v1 import types

    if encode not in ("none", "topic"):
        exit_with(f"`--encode` must be `none` or `topic`, got `{encode}`.", 2)
    if message and files:
        exit_with("Pass messages with either `--message` or files.", 2)
    name, attributes = service.full(topic, "topics"), pairs(attribute)
    payloads = [text.encode() for text in message] if message else _payloads(files or [], whole)
    ids: list[str] = []
    with service.connect() as admin, printed_at_the_end(service.as_json, {"messageIds": ids}):
        encoded = _encoded(admin, name, payloads) if encode == "topic" else payloads
        for batch in progress(_requests(encoded), "publishing"):
            messages = [
                types.PubsubMessage(data=data, attributes=attributes, ordering_key=ordering_key or "") for data in batch
            ]
            published = _published(admin, name, messages, encode)
            ids += published
            if not service.as_json:
                typer.echo("\n".join(published))


def _published(admin: Admin, topic: str, messages: Sequence[Any], encode: str) -> list[str]:
    """Raises InvalidError with advice if a schema refuses messages that are not encoded."""
    from ..errors import InvalidError

    try:
        return admin.publish(topic, messages)
    except InvalidError as error:
        if encode == "none" and "schema" in str(error).replace(topic, ""):  # which may be part of the topic's name
            raise InvalidError(f"{error} `--encode topic` encodes lines of JSON by that schema.") from None
        raise


def pull(
    service: Service,
    subscription: Annotated[str, typer.Argument(**names_of("subscriptions", "SUBSCRIPTION"))],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many messages.")] = 1,
    auto_ack: Annotated[
        bool, typer.Option("--auto-ack", help="Acknowledge them, so they are not redelivered.")
    ] = False,
    decode: Annotated[bool, typer.Option("--decode/--raw", help="Decode by the topic's schema.")] = True,
) -> None:
    """Pull messages. Without `--auto-ack` they are nacked.

    If the subscription has a dead-letter topic, a nack counts as a failed delivery.
    """
    name = service.full(subscription, "subscriptions")
    with service.connect() as admin:
        decoder = _Decoder(service, admin, _topic_of(admin, name)) if decode else _Decoder(service)
        received = admin.pull(name, limit, _WAIT_SECONDS)
        shown = decoder.decoded(received)
        if received:
            (admin.acknowledge if auto_ack else admin.nack)(name, [delivery.ack_id for delivery in received])
    if service.as_json:
        print_json(shown)
    else:
        for row in shown:
            print_message(row)


def tail(
    service: Service,
    topic: Annotated[
        str | None, typer.Argument(**names_of("topics", "TOPIC"), show_default="that of --subscription")
    ] = None,
    subscription: Annotated[
        str | None,
        typer.Option(**names_of("subscriptions"), help="Show messages of this subscription, and nack them."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="End after this many messages.", show_default="never")
    ] = None,
    decode: Annotated[bool, typer.Option("--decode/--raw", help="Decode by the topic's schema.")] = True,
) -> None:
    """Follow the messages of a topic or a subscription until Ctrl-C.

    A topic is followed through a temporary subscription, which is deleted at the end. Other subscribers are not
    affected. With `--subscription` the last 1,000 messages are held until the command ends, for ten minutes at most.
    Then they are nacked. Its readers receive them later and perhaps out of order. If the subscription has a dead-letter
    topic, that counts as a failed delivery.
    """
    from ..errors import ServiceError

    if (topic is None) == (subscription is None):
        exit_with("Name either a topic or, with `--subscription`, a subscription.", 2)
    signal.signal(signal.SIGTERM, _interrupt)  # the temporary subscription is also deleted then
    with service.connect() as admin:
        if subscription is not None:
            name = service.full(subscription, "subscriptions")
            of, temporary = _topic_of(admin, name), False
        else:
            of = service.full(str(topic), "topics")
            name, temporary = _temporary_subscription(admin, of), True
        try:
            decoder = _Decoder(service, admin, of) if decode else _Decoder(service)
            _follow(service, admin, name, decoder, limit, temporary)
        except KeyboardInterrupt:
            pass
        except ServiceError:
            temporary = False  # a service that did not answer cannot delete it either: the subscription expires
            raise
        finally:
            if temporary:
                admin.delete("subscriptions", name, _DELETION_SECONDS)


def _follow(service: Service, admin: Admin, name: str, decoder: _Decoder, limit: int | None, owned: bool) -> None:
    shown: dict[str, None] = {}  # the ids of messages, in the order of their arrival
    held: list[str] = []  # ack ids, the same
    typer.echo(f"following {name}", err=True)
    try:
        while limit is None or len(shown) < limit:
            received = admin.pull(name, 100, _WAIT_SECONDS)
            if not received:
                continue
            acks = [delivery.ack_id for delivery in received]
            if owned:
                admin.acknowledge(name, acks)
            else:
                held += acks
                admin.lease(name, acks, _HELD_SECONDS)
            fresh = [delivery for delivery in received if delivery.message.message_id not in shown]
            for row in decoder.decoded(fresh[: None if limit is None else limit - len(shown)]):
                shown[row["messageId"]] = None
                if service.as_json:
                    typer.echo(json.dumps(row, ensure_ascii=False))
                else:
                    print_message(row)
            sys.stdout.flush()
            if returned := held[:-_HELD_MESSAGES]:
                del held[:-_HELD_MESSAGES]
                admin.nack(name, returned)
            while limit is None and len(shown) > _REMEMBERED_IDS:
                del shown[next(iter(shown))]
    finally:
        if held:
            admin.nack(name, held)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _temporary_subscription(admin: Admin, topic: str) -> str:
    """The subscription expires a day after a `tail` that was killed."""
    import datetime
    import uuid

    from google.pubsub_v1 import types

    from ..errors import MissingError, PubSubError

    project = topic.split("/")[1]
    name = f"projects/{project}/subscriptions/pubsub-spark-tail-{uuid.uuid4().hex[:12]}"
    ttl = datetime.timedelta(seconds=_EXPIRATION_SECONDS)
    wanted = types.Subscription(name=name, topic=topic, expiration_policy={"ttl": ttl}, message_retention_duration=ttl)
    try:
        admin.create("subscriptions", wanted, name)
    except MissingError as error:
        of_that_id = topic.replace("/topics/", "/subscriptions/")
        try:
            admin.get("subscriptions", of_that_id)
        except PubSubError:
            raise error from None
        raise MissingError(f"{error} `{of_that_id}` exists: follow it with `--subscription`.") from None
    return name


def _topic_of(admin: Admin, subscription: str) -> str | None:
    """Return None if the subscription was deleted or the caller may not view it."""
    from ..errors import ForbiddenError
    from ..names import DELETED_TOPIC

    try:
        topic = str(admin.get("subscriptions", subscription).topic)
    except ForbiddenError:
        return None
    return None if topic == DELETED_TOPIC else topic


class _Decoder:
    """`value` is decoded by the topic's schema, `data` is text or base64."""

    def __init__(self, service: Service, admin: Admin | None = None, topic: str | None = None) -> None:
        self._backend = service.backend
        self._schema = None if admin is None or topic is None else _schema_of(admin, topic)

    def decoded(self, received: Sequence[Any]) -> list[dict[str, Any]]:
        shown = [as_json(delivery) for delivery in received]
        if self._schema is None or not received:
            return shown
        import pyarrow as pa

        from ..backend.schemas import fetcher
        from ..codec.registry import Decoder
        from ..names import SCHEMA_ENCODING, SCHEMA_NAME, SCHEMA_REVISION

        def attributes(key: str) -> pa.StringArray:
            return pa.array([delivery.message.attributes.get(key) for delivery in received], pa.string())

        decoded = Decoder(self._schema, fetcher(self._backend)).decode(
            pa.array([delivery.message.data for delivery in received], pa.binary()),
            attributes(SCHEMA_REVISION),
            attributes(SCHEMA_ENCODING),
            attributes(SCHEMA_NAME),
        )
        columns = zip(shown, decoded.value.to_pylist(), decoded.error.to_pylist(), strict=True)
        for row, value, error in columns:
            if error is None:
                row["value"] = _plain(value)
            else:
                row["decodeError"] = error
        return shown


def _schema_of(admin: Admin, topic: str) -> TopicSchema | None:
    """Return None if the topic has no schema or the caller may not view it."""
    from ..backend import schemas
    from ..errors import ForbiddenError, MissingError, SchemaError

    try:
        return schemas.of_topic(admin, topic)
    except (ForbiddenError, MissingError):
        return None
    except SchemaError as error:
        typer.echo(f"{error} The messages are shown as they are.", err=True)
        return None


def as_json(received: Any) -> dict[str, Any]:
    """Return a ReceivedMessage as a JSON object. `data` is its text. Otherwise `dataBase64` has it."""
    message = received.message
    fields: dict[str, Any] = {"messageId": message.message_id, "publishTime": message.publish_time.isoformat()}
    if message.ordering_key:
        fields["orderingKey"] = message.ordering_key
    if message.attributes:
        fields["attributes"] = dict(message.attributes)
    if received.delivery_attempt:
        fields["deliveryAttempt"] = received.delivery_attempt
    try:
        text = message.data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if all(char.isprintable() or char in "\t\r\n" for char in text):
        return {**fields, "data": text}
    return {**fields, "dataBase64": _plain(message.data)}


def _plain(value: Any) -> Any:
    import base64

    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def print_message(message: dict[str, Any]) -> None:
    about = [typer.style(_moment(message["publishTime"]), dim=True), typer.style(message["messageId"], fg="cyan")]
    if "orderingKey" in message:
        about.append(typer.style(f"[{printable(message['orderingKey'])}]", fg="magenta"))
    about += (
        typer.style(f"{printable(key)}={printable(value)}", fg="yellow")
        for key, value in message.get("attributes", {}).items()
    )
    typer.echo("  ".join(about))
    if "value" in message:
        typer.secho(f"  {printable(json.dumps(message['value'], ensure_ascii=False))}", fg="green")
        return
    if "decodeError" in message:
        typer.secho(f"  {printable(message['decodeError'])}", fg="red")
    typer.echo(f"  {printable(str(message.get('data', message.get('dataBase64'))))}")


def _moment(text: str) -> str:
    moment = datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def printable(text: str) -> str:
    """Return the text with its control characters escaped: a payload must not drive a terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _payloads(files: Sequence[Path], whole: bool) -> Iterator[bytes]:
    """Empty lines are left out: Pub/Sub refuses them."""
    try:
        for file in files:
            with file.open("rb") as opened:
                yield from [opened.read()] if whole else _lines(opened)
    except OSError as error:
        exit_with(
            f"File `{error.filename}` cannot be read: {error.strerror}. Pass the text of a message with `--message`."
        )
    if not files:
        yield from [sys.stdin.buffer.read()] if whole else _lines(sys.stdin.buffer)


def _lines(opened: Any) -> Iterator[bytes]:
    return (line for raw in opened if (line := raw.rstrip(b"\r\n")))


def _requests(payloads: Any) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for payload in payloads:
        if batch and (len(batch) == _REQUEST_MESSAGES or size + len(payload) > _REQUEST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(payload)
        size += len(payload)
    if batch:
        yield batch


def _encoded(admin: Admin, topic: str, payloads: Any) -> Iterator[bytes]:
    import pyarrow as pa

    from ..backend import schemas
    from ..codec.registry import codec_of
    from ..errors import RowError, SchemaError

    schema = schemas.of_topic(admin, topic)
    if schema is None:
        raise SchemaError(
            f"Topic `{topic}` has no schema for `--encode topic`. Leave it out to send lines as they are."
        )
    definition, kind = schema.reader.parsed(), schema.arrow_type()
    decode = codec_of(schema.reader.type).decoder(definition, definition, "JSON")
    encode = schema.encoder(kind)
    for number, payload in enumerate(payloads, 1):
        values, errors = decode(pa.array([payload], pa.binary()))
        if errors[0].is_valid:
            values = _plain_row(payload, kind)
        if values is None:
            exit_with(f"Line {number} is not a message of the schema `{schema.reader}`: {errors[0]}.")
        try:
            yield bytes(encode(values)[0].as_py())
        except RowError as error:
            exit_with(f"Line {number} does not fit the schema `{schema.reader}`: {error.complaint}.")


def _plain_row(payload: bytes, kind: Any) -> Any | None:
    """Return a JSON object of plain values (`"x"`, not `{"string": "x"}`) as a row, or None."""
    import pyarrow as pa

    try:
        row = json.loads(payload)
        if isinstance(row, dict) and {*row} <= {field.name for field in kind}:
            return pa.array([row], kind)
    except (ValueError, TypeError, pa.ArrowException):
        pass
    return None
