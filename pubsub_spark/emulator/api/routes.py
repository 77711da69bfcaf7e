"""The unary RPCs of the API: their messages, and their HTTP verbs and paths in the v1 JSON API.

One row for each `google.api.http` annotation, in a table of our own because the client library ships no service
descriptors. A test compares it with the library's REST transport.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from google.iam.v1 import iam_policy_pb2, policy_pb2

from pubsub_spark.emulator.api import protos

# RPC, verb, path below /v1/ (TOPIC is projects/*/topics/*, and so on), field that the body fills (* is the request,
# - is no field), request, response.
_ROWS = {
    "google.pubsub.v1.Publisher": """
  CreateTopic PUT {name=TOPIC} * Topic Topic
  UpdateTopic PATCH {topic.name=TOPIC} * UpdateTopicRequest Topic
  Publish POST {topic=TOPIC}:publish * PublishRequest PublishResponse
  GetTopic GET {topic=TOPIC} - GetTopicRequest Topic
  ListTopics GET {project=PROJECT}/topics - ListTopicsRequest ListTopicsResponse
  ListTopicSubscriptions GET {topic=TOPIC}/subscriptions - ListTopicSubscriptionsRequest ListTopicSubscriptionsResponse
  ListTopicSnapshots GET {topic=TOPIC}/snapshots - ListTopicSnapshotsRequest ListTopicSnapshotsResponse
  DeleteTopic DELETE {topic=TOPIC} - DeleteTopicRequest Empty
  DetachSubscription POST {subscription=SUBSCRIPTION}:detach - DetachSubscriptionRequest DetachSubscriptionResponse
    """,
    "google.pubsub.v1.Subscriber": """
  CreateSubscription PUT {name=SUBSCRIPTION} * Subscription Subscription
  GetSubscription GET {subscription=SUBSCRIPTION} - GetSubscriptionRequest Subscription
  UpdateSubscription PATCH {subscription.name=SUBSCRIPTION} * UpdateSubscriptionRequest Subscription
  ListSubscriptions GET {project=PROJECT}/subscriptions - ListSubscriptionsRequest ListSubscriptionsResponse
  DeleteSubscription DELETE {subscription=SUBSCRIPTION} - DeleteSubscriptionRequest Empty
  ModifyAckDeadline POST {subscription=SUBSCRIPTION}:modifyAckDeadline * ModifyAckDeadlineRequest Empty
  Acknowledge POST {subscription=SUBSCRIPTION}:acknowledge * AcknowledgeRequest Empty
  Pull POST {subscription=SUBSCRIPTION}:pull * PullRequest PullResponse
  ModifyPushConfig POST {subscription=SUBSCRIPTION}:modifyPushConfig * ModifyPushConfigRequest Empty
  GetSnapshot GET {snapshot=SNAPSHOT} - GetSnapshotRequest Snapshot
  ListSnapshots GET {project=PROJECT}/snapshots - ListSnapshotsRequest ListSnapshotsResponse
  CreateSnapshot PUT {name=SNAPSHOT} * CreateSnapshotRequest Snapshot
  UpdateSnapshot PATCH {snapshot.name=SNAPSHOT} * UpdateSnapshotRequest Snapshot
  DeleteSnapshot DELETE {snapshot=SNAPSHOT} - DeleteSnapshotRequest Empty
  Seek POST {subscription=SUBSCRIPTION}:seek * SeekRequest SeekResponse
    """,
    "google.pubsub.v1.SchemaService": """
  CreateSchema POST {parent=PROJECT}/schemas schema CreateSchemaRequest Schema
  GetSchema GET {name=SCHEMA} - GetSchemaRequest Schema
  ListSchemas GET {parent=PROJECT}/schemas - ListSchemasRequest ListSchemasResponse
  ListSchemaRevisions GET {name=SCHEMA}:listRevisions - ListSchemaRevisionsRequest ListSchemaRevisionsResponse
  CommitSchema POST {name=SCHEMA}:commit * CommitSchemaRequest Schema
  RollbackSchema POST {name=SCHEMA}:rollback * RollbackSchemaRequest Schema
  DeleteSchemaRevision DELETE {name=SCHEMA}:deleteRevision - DeleteSchemaRevisionRequest Schema
  DeleteSchema DELETE {name=SCHEMA} - DeleteSchemaRequest Empty
  ValidateSchema POST {parent=PROJECT}/schemas:validate * ValidateSchemaRequest ValidateSchemaResponse
  ValidateMessage POST {parent=PROJECT}/schemas:validateMessage * ValidateMessageRequest ValidateMessageResponse
    """,
    "google.iam.v1.IAMPolicy": """
  GetIamPolicy GET {resource=ANY}:getIamPolicy - GetIamPolicyRequest Policy
  SetIamPolicy POST {resource=ANY}:setIamPolicy * SetIamPolicyRequest Policy
  TestIamPermissions POST {resource=ANY}:testIamPermissions * TestIamPermissionsRequest TestIamPermissionsResponse
    """,
}
_RESOURCES = {
    "TOPIC": "projects/*/topics/*",
    "SUBSCRIPTION": "projects/*/subscriptions/*",
    "SNAPSHOT": "projects/*/snapshots/*",
    "SCHEMA": "projects/*/schemas/*",
}
_NAMES = re.compile(rf"(?<==)({'|'.join(_RESOURCES)}|PROJECT)(?=\}})")

_VARIABLE = re.compile(r"\{(?P<field>[\w.]+)=(?P<pattern>[^}]+)\}")


@dataclass(frozen=True)
class Route:
    """One annotation: the requests that it matches, and their RPC.

    `template` is the path in the annotation. `fields` are the request's fields that the groups of `pattern` fill.
    `body` is the field that the HTTP body fills, `*` for the request itself, or None.
    """

    verb: str
    template: str
    fields: tuple[str, ...]
    body: str | None
    rpc: str
    request: Any
    response: Any

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The expression of a path. It is compiled on the first request: all of them take 10 ms."""
        parts: list[str] = []
        end = 0
        for variable in _VARIABLE.finditer(self.template):
            parts.append(re.escape(self.template[end : variable.start()]))
            # A project may be `example.com:name`. In the last segment of the path a colon starts the verb.
            *parents, last = variable["pattern"].split("*")
            ends_path = "/" not in self.template[variable.end() :]
            parts.append(f"({'[^/]+'.join(parents)}{'[^/:]+' if ends_path else '[^/]+'}{last})")
            end = variable.end()
        parts.append(re.escape(self.template[end:]))
        return re.compile("".join(parts))


@lru_cache(maxsize=1)
def routes() -> tuple[Route, ...]:
    return tuple(_route(service, row) for service, rows in _ROWS.items() for row in _expanded(rows))


def _expanded(rows: str) -> list[list[str]]:
    """Return the fields of each row. A row for ANY resource becomes one row for each kind."""
    lines = [line for line in rows.splitlines() if line.strip()]
    return [
        line.replace("=ANY}", f"={kind}}}").split()
        for line in lines
        for kind in (_RESOURCES if "=ANY}" in line else [""])
    ]


def _route(service: str, row: list[str]) -> Route:
    rpc, verb, path, body, request, response = row
    template = f"/v1/{_NAMES.sub(lambda match: _RESOURCES.get(match[0], 'projects/*'), path)}"
    fields = tuple(variable["field"] for variable in _VARIABLE.finditer(template))
    full_name = f"/{service}/{rpc}"
    body_field = None if body == "-" else body
    return Route(verb, template, fields, body_field, full_name, _message(request), _message(response))


def _message(name: str) -> Any:
    module = next(module for module in (protos, iam_policy_pb2, policy_pb2) if hasattr(module, name))
    return getattr(module, name)


def find(verb: str, path: str) -> Route | None:
    return next((route for route in routes() if route.verb == verb and route.pattern.fullmatch(path)), None)
