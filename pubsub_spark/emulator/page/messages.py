"""The rows of messages: content, delivery state, and steps."""

from __future__ import annotations

from typing import Any

from pubsub_spark.emulator.page import payloads, rows
from pubsub_spark.emulator.state.history import Step
from pubsub_spark.emulator.state.inspection import DeliveryState, MessageState
from pubsub_spark.emulator.state.message import Message
from pubsub_spark.emulator.state.schema_store import Schemas

_STEPS = 7  # of a message's life on its line


def content(message: Message, schemas: Schemas) -> dict[str, Any]:
    return {
        "id": message.id,
        "published": message.published,
        "key": message.key,
        # The schema is named next to the payload.
        "attributes": {name: value for name, value in message.attributes.items() if name not in payloads.SCHEMA_NAMES},
        "payload": payloads.shown(message.data, payloads.schema_of(message.attributes, schemas)),
        "size": rows.amount(len(message.data)),
    }


def row(state: MessageState, steps: list[Step], schemas: Schemas, ready: str, now: float) -> dict[str, Any]:
    """`ready` is the reason why deliverable messages are not delivered now."""
    return content(state.message, schemas) | {
        "deliveries": state.deliveries,
        "failures": state.failures,
        "lease": state.lease,
        "why": _why(state, ready),
        "until": state.until,
        "in": rows.duration(max(0.0, state.until - now)) if state.until is not None else "",
        "life": _life(steps),
    }


def done(number: int, message: Message | None, steps: list[Step], schemas: Schemas) -> dict[str, Any]:
    """The content of the message is known if it is among the latest of its topic."""
    if message is None:
        return {"id": str(number), "payload": None, "searched": str(number), "lease": None, "life": _life(steps)}
    fields = content(message, schemas)
    shown = (fields["payload"].text, *message.attributes, *message.attributes.values(), message.key, message.id)
    return fields | {"searched": "\n".join(shown), "lease": None, "life": _life(steps)}


def matches(message: Message, text: str, schemas: Schemas) -> bool:
    """Return whether a text is in a message: its payload as sent or as shown, its attributes, its key, its id."""
    if text.encode() in message.frame or text == message.id:
        return True
    if payloads.SCHEMA_MARK not in message.frame:  # spares reading the attributes
        return False
    schema = payloads.schema_of(message.attributes, schemas)
    return schema is not None and text in payloads.shown(message.data, schema).text


def _life(steps: list[Step]) -> list[dict[str, Any]]:
    shown = [{"at": step.at, "event": step.event, "receiver": rows.client(step.receiver)} for step in steps]
    if len(shown) <= _STEPS:
        return shown
    left_out = {"at": None, "event": f"{len(shown) - _STEPS} more", "receiver": ""}
    return [shown[0], left_out, *shown[1 - _STEPS :]]


def _why(state: MessageState, ready: str) -> str:
    return {
        DeliveryState.LEASED: "leased until",
        DeliveryState.BACKING_OFF: "backs off until",
        DeliveryState.KEY_BACKING_OFF: "its ordering key backs off until",
        DeliveryState.RETURNED: f"to be delivered again: {ready}",
        DeliveryState.ACKED_BEHIND_GAP: "acked, but an earlier message of its ordering key is not",
        DeliveryState.KEY_BUSY: "behind its ordering key: an earlier message of it is leased",
        DeliveryState.KEY_READY: f"in the queue of its ordering key: {ready}",
        DeliveryState.FRESH: ready,
    }[state.state]
