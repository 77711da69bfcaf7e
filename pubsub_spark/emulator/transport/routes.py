"""The routes of the v1 JSON API: which HTTP verb and path stands for which RPC.

One row for each `google.api.http` annotation of google/pubsub/v1/pubsub.proto, schema.proto and IAMPolicy, in a table
of our own because the client library ships no service descriptors. A test compares the table with the annotations that
the installed client library's REST transport was generated from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from google.iam.v1 import iam_policy_pb2, policy_pb2

from pubsub_spark.emulator.api import protos

_PROJECT = "projects/*"
_TOPIC = "projects/*/topics/*"
_SUBSCRIPTION = "projects/*/subscriptions/*"
_SNAPSHOT = "projects/*/snapshots/*"
_SCHEMA = "projects/*/schemas/*"

_Row = tuple[str, str, str, str | None, Any, Any]  # RPC, verb, path, field that the body fills, request, response

_PUBLISHER: tuple[_Row, ...] = (
    ("CreateTopic", "PUT", f"{{name={_TOPIC}}}", "*", protos.Topic, protos.Topic),
    ("UpdateTopic", "PATCH", f"{{topic.name={_TOPIC}}}", "*", protos.UpdateTopicRequest, protos.Topic),
    ("Publish", "POST", f"{{topic={_TOPIC}}}:publish", "*", protos.PublishRequest, protos.PublishResponse),
    ("GetTopic", "GET", f"{{topic={_TOPIC}}}", None, protos.GetTopicRequest, protos.Topic),
    ("ListTopics", "GET", f"{{project={_PROJECT}}}/topics", None, protos.ListTopicsRequest, protos.ListTopicsResponse),
    (
        "ListTopicSubscriptions",
        "GET",
        f"{{topic={_TOPIC}}}/subscriptions",
        None,
        protos.ListTopicSubscriptionsRequest,
        protos.ListTopicSubscriptionsResponse,
    ),
    (
        "ListTopicSnapshots",
        "GET",
        f"{{topic={_TOPIC}}}/snapshots",
        None,
        protos.ListTopicSnapshotsRequest,
        protos.ListTopicSnapshotsResponse,
    ),
    ("DeleteTopic", "DELETE", f"{{topic={_TOPIC}}}", None, protos.DeleteTopicRequest, protos.Empty),
    (
        "DetachSubscription",
        "POST",
        f"{{subscription={_SUBSCRIPTION}}}:detach",
        None,
        protos.DetachSubscriptionRequest,
        protos.DetachSubscriptionResponse,
    ),
)

_SUBSCRIBER: tuple[_Row, ...] = (
    ("CreateSubscription", "PUT", f"{{name={_SUBSCRIPTION}}}", "*", protos.Subscription, protos.Subscription),
    (
        "GetSubscription",
        "GET",
        f"{{subscription={_SUBSCRIPTION}}}",
        None,
        protos.GetSubscriptionRequest,
        protos.Subscription,
    ),
    (
        "UpdateSubscription",
        "PATCH",
        f"{{subscription.name={_SUBSCRIPTION}}}",
        "*",
        protos.UpdateSubscriptionRequest,
        protos.Subscription,
    ),
    (
        "ListSubscriptions",
        "GET",
        f"{{project={_PROJECT}}}/subscriptions",
        None,
        protos.ListSubscriptionsRequest,
        protos.ListSubscriptionsResponse,
    ),
    (
        "DeleteSubscription",
        "DELETE",
        f"{{subscription={_SUBSCRIPTION}}}",
        None,
        protos.DeleteSubscriptionRequest,
        protos.Empty,
    ),
    (
        "ModifyAckDeadline",
        "POST",
        f"{{subscription={_SUBSCRIPTION}}}:modifyAckDeadline",
        "*",
        protos.ModifyAckDeadlineRequest,
        protos.Empty,
    ),
    (
        "Acknowledge",
        "POST",
        f"{{subscription={_SUBSCRIPTION}}}:acknowledge",
        "*",
        protos.AcknowledgeRequest,
        protos.Empty,
    ),
    ("Pull", "POST", f"{{subscription={_SUBSCRIPTION}}}:pull", "*", protos.PullRequest, protos.PullResponse),
    (
        "ModifyPushConfig",
        "POST",
        f"{{subscription={_SUBSCRIPTION}}}:modifyPushConfig",
        "*",
        protos.ModifyPushConfigRequest,
        protos.Empty,
    ),
    ("GetSnapshot", "GET", f"{{snapshot={_SNAPSHOT}}}", None, protos.GetSnapshotRequest, protos.Snapshot),
    (
        "ListSnapshots",
        "GET",
        f"{{project={_PROJECT}}}/snapshots",
        None,
        protos.ListSnapshotsRequest,
        protos.ListSnapshotsResponse,
    ),
    ("CreateSnapshot", "PUT", f"{{name={_SNAPSHOT}}}", "*", protos.CreateSnapshotRequest, protos.Snapshot),
    ("UpdateSnapshot", "PATCH", f"{{snapshot.name={_SNAPSHOT}}}", "*", protos.UpdateSnapshotRequest, protos.Snapshot),
    ("DeleteSnapshot", "DELETE", f"{{snapshot={_SNAPSHOT}}}", None, protos.DeleteSnapshotRequest, protos.Empty),
    ("Seek", "POST", f"{{subscription={_SUBSCRIPTION}}}:seek", "*", protos.SeekRequest, protos.SeekResponse),
)

_SCHEMAS: tuple[_Row, ...] = (
    ("CreateSchema", "POST", f"{{parent={_PROJECT}}}/schemas", "schema", protos.CreateSchemaRequest, protos.Schema),
    ("GetSchema", "GET", f"{{name={_SCHEMA}}}", None, protos.GetSchemaRequest, protos.Schema),
    (
        "ListSchemas",
        "GET",
        f"{{parent={_PROJECT}}}/schemas",
        None,
        protos.ListSchemasRequest,
        protos.ListSchemasResponse,
    ),
    (
        "ListSchemaRevisions",
        "GET",
        f"{{name={_SCHEMA}}}:listRevisions",
        None,
        protos.ListSchemaRevisionsRequest,
        protos.ListSchemaRevisionsResponse,
    ),
    ("CommitSchema", "POST", f"{{name={_SCHEMA}}}:commit", "*", protos.CommitSchemaRequest, protos.Schema),
    ("RollbackSchema", "POST", f"{{name={_SCHEMA}}}:rollback", "*", protos.RollbackSchemaRequest, protos.Schema),
    (
        "DeleteSchemaRevision",
        "DELETE",
        f"{{name={_SCHEMA}}}:deleteRevision",
        None,
        protos.DeleteSchemaRevisionRequest,
        protos.Schema,
    ),
    ("DeleteSchema", "DELETE", f"{{name={_SCHEMA}}}", None, protos.DeleteSchemaRequest, protos.Empty),
    (
        "ValidateSchema",
        "POST",
        f"{{parent={_PROJECT}}}/schemas:validate",
        "*",
        protos.ValidateSchemaRequest,
        protos.ValidateSchemaResponse,
    ),
    (
        "ValidateMessage",
        "POST",
        f"{{parent={_PROJECT}}}/schemas:validateMessage",
        "*",
        protos.ValidateMessageRequest,
        protos.ValidateMessageResponse,
    ),
)

_IAM: tuple[_Row, ...] = tuple(
    row
    for resource in (_TOPIC, _SUBSCRIPTION, _SNAPSHOT, _SCHEMA)
    for row in (
        (
            "GetIamPolicy",
            "GET",
            f"{{resource={resource}}}:getIamPolicy",
            None,
            iam_policy_pb2.GetIamPolicyRequest,
            policy_pb2.Policy,
        ),
        (
            "SetIamPolicy",
            "POST",
            f"{{resource={resource}}}:setIamPolicy",
            "*",
            iam_policy_pb2.SetIamPolicyRequest,
            policy_pb2.Policy,
        ),
        (
            "TestIamPermissions",
            "POST",
            f"{{resource={resource}}}:testIamPermissions",
            "*",
            iam_policy_pb2.TestIamPermissionsRequest,
            iam_policy_pb2.TestIamPermissionsResponse,
        ),
    )
)

_SERVICES = {
    "google.pubsub.v1.Publisher": _PUBLISHER,
    "google.pubsub.v1.Subscriber": _SUBSCRIBER,
    "google.pubsub.v1.SchemaService": _SCHEMAS,
    "google.iam.v1.IAMPolicy": _IAM,
}

_VARIABLE = re.compile(r"\{(?P<field>[\w.]+)=(?P<pattern>[^}]+)\}")


@dataclass(frozen=True)
class Route:
    """One annotation: the requests that it matches, and the RPC that they stand for.

    `template` is the path as the annotation has it. `fields` are the request's fields that the groups of `pattern`
    fill. `body` is the field that the HTTP body fills, `*` for the request itself, None where there is no body.
    """

    verb: str
    template: str
    pattern: re.Pattern[str]
    fields: tuple[str, ...]
    body: str | None
    rpc: str
    request: Any
    response: Any


@lru_cache(maxsize=1)
def routes() -> tuple[Route, ...]:
    """Every route of the API."""
    found = []
    for service, rows in _SERVICES.items():
        for rpc, verb, path, body, request, response in rows:
            template = f"/v1/{path}"
            pattern, fields = _compiled(template)
            found.append(Route(verb, template, pattern, fields, body, f"/{service}/{rpc}", request, response))
    return tuple(found)


def find(verb: str, path: str) -> Route | None:
    """The route of a request; None when there is none for this verb and path."""
    return next((route for route in routes() if route.verb == verb and route.pattern.fullmatch(path)), None)


def _compiled(template: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    """The pattern of a template such as `/v1/{name=projects/*/topics/*}:publish`, and the fields its groups fill."""
    parts: list[str] = []
    fields: list[str] = []
    end = 0
    for variable in _VARIABLE.finditer(template):
        parts.append(re.escape(template[end : variable.start()]))
        # A project may be `example.com:name`; in the last segment of the path a colon starts the verb.
        *parents, last = variable["pattern"].split("*")
        ends_path = "/" not in template[variable.end() :]
        parts.append(f"({'[^/]+'.join(parents)}{'[^/:]+' if ends_path else '[^/]+'}{last})")
        fields.append(variable["field"])
        end = variable.end()
    parts.append(re.escape(template[end:]))
    return re.compile("".join(parts)), tuple(fields)
