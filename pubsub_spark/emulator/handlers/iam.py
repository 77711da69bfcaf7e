"""google.iam.v1.IAMPolicy for topics, subscriptions, snapshots and schemas.

The emulator knows no callers, so a policy decides nothing: it is stored and returned, a stale etag is refused, and
every permission that a resource has is granted.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from google.iam.v1 import iam_policy_pb2, policy_pb2

from pubsub_spark import names
from pubsub_spark.emulator.api.errors import RpcError, invalid, not_found
from pubsub_spark.emulator.resources.limits import invalid_name
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.state.policies import ConcurrentChangeError, Policy

MAX_MEMBERS = 1500  # of one policy
DEFAULT_MASK = frozenset({"bindings", "etag"})
VERSIONS = (0, 1, 3)
_CONDITIONAL = 3  # the version of a policy that has conditions
_WITH_CONDITION = "_withcond_"  # part of the name of a role whose condition is not shown

# cloud.google.com/pubsub/docs/access-control: the permissions on each kind of resource.
_ON_EACH = ("delete", "get", "getIamPolicy", "setIamPolicy", "update")
PERMISSIONS: dict[str, frozenset[str]] = {
    "topics": frozenset((*_ON_EACH, "attachSubscription", "detachSubscription", "publish", "updateTag")),
    "subscriptions": frozenset((*_ON_EACH, "consume")),
    "snapshots": frozenset((*_ON_EACH, "seek")),
    "schemas": frozenset((*_ON_EACH, "attach", "commit", "listRevisions", "rollback", "validate")),
}

_COLLECTIONS: tuple[names.Collection, ...] = ("topics", "subscriptions", "snapshots", "schemas")
_ROLE = re.compile(r"(projects/[^/]+/|organizations/[^/]+/)?roles/[A-Za-z0-9_.]+")
_MEMBER = re.compile(
    r"allUsers|allAuthenticatedUsers|(deleted:)?(user|serviceAccount|group|domain|principal|principalSet):.+"
    r"|project(Owner|Editor|Viewer):.+"
)


class IamPolicy:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._policies = engine.state.policies

    def get_iam_policy(self, request: Any) -> Any:
        version = request.options.requested_policy_version
        if version not in VERSIONS:
            raise invalid(f"The requested policy version must be 0, 1 or 3, got {version}.")
        with self._engine.open():
            policy = _written(self._policies.get(self._existing(request.resource)))
        if version != _CONDITIONAL and _has_conditions(policy):
            _hide_conditions(policy)
        return policy

    def set_iam_policy(self, request: Any) -> Any:
        """Replace the fields that the mask names, by default the bindings."""
        mask = frozenset(request.update_mask.paths) or DEFAULT_MASK
        if unknown := sorted(mask - set(policy_pb2.Policy.DESCRIPTOR.fields_by_name)):
            raise invalid(
                f"Invalid update_mask provided in the SetIamPolicyRequest: '{unknown[0]}' is not a known Policy field."
            )
        _check(request.policy)
        with self._engine.open():
            name = self._existing(request.resource)
            document = policy_pb2.Policy.FromString(self._policies.get(name).document)
            for field in ("bindings", "audit_configs"):
                if field in mask:
                    document.ClearField(field)
                    getattr(document, field).extend(getattr(request.policy, field))
            document.version = _CONDITIONAL if _has_conditions(document) else 1
            try:
                return _written(self._policies.set(name, document.SerializeToString(), request.policy.etag))
            except ConcurrentChangeError:
                raise RpcError(
                    "ABORTED",
                    "There were concurrent policy changes. "
                    "Please retry the whole read-modify-write with exponential backoff.",
                ) from None

    def test_iam_permissions(self, request: Any) -> Any:
        """Return those of the requested permissions that the resource has, or none if the resource does not exist."""
        collection = _collection(request.resource)
        if wild := [permission for permission in request.permissions if "*" in permission]:
            raise invalid(f"Permission {wild[0]} is not valid: wildcards are not allowed.")
        with self._engine.open():
            exists = self._exists(request.resource)
        granted = {f"pubsub.{collection}.{verb}" for verb in PERMISSIONS[collection]} if exists else ()
        return iam_policy_pb2.TestIamPermissionsResponse(permissions=[p for p in request.permissions if p in granted])

    def _exists(self, name: str) -> bool:
        broker = self._engine.broker
        resources = broker.topics, broker.subscriptions, broker.snapshots, self._engine.state.schemas
        return any(name in names for names in resources)

    def _existing(self, name: str) -> str:
        _collection(name)
        if not self._exists(name):
            raise not_found(name)
        return name


def _collection(name: str) -> names.Collection:
    for collection in _COLLECTIONS:
        try:
            names.parse(name, collection)
        except ValueError:
            continue
        return collection
    raise invalid_name(name)


def _check(policy: Any) -> None:
    if policy.version not in VERSIONS:
        raise invalid(f"The policy version must be 0, 1 or 3, got {policy.version}.")
    if policy.version != _CONDITIONAL and _has_conditions(policy):
        raise invalid("A policy with conditional role bindings must be of version 3.")
    for binding in policy.bindings:
        if not _ROLE.fullmatch(binding.role) or _WITH_CONDITION in binding.role:
            raise invalid(f"Role {binding.role} is not valid.")
        if wrong := [member for member in binding.members if not _MEMBER.fullmatch(member)]:
            raise invalid(f"Member {wrong[0]} is of an unknown type. Please set a valid type prefix for the member.")
    count = sum(len(binding.members) for binding in policy.bindings)
    if count > MAX_MEMBERS:
        raise invalid(
            f"The number of members in the policy ({count}) is larger than the maximum allowed ({MAX_MEMBERS})."
        )


def _has_conditions(policy: Any) -> bool:
    return any(binding.HasField("condition") for binding in policy.bindings)


def _hide_conditions(policy: Any) -> None:
    """Hide a policy's conditions from a caller that does not ask for them, so that it does not rely on the roles.

    https://cloud.google.com/iam/docs/troubleshooting-withcond
    """
    policy.version = 1
    for binding in policy.bindings:
        if binding.HasField("condition"):
            condition = binding.condition.SerializeToString(deterministic=True)
            binding.role += f"{_WITH_CONDITION}{hashlib.sha256(condition).hexdigest()[:20]}"
            binding.ClearField("condition")


def _written(policy: Policy) -> Any:
    message = policy_pb2.Policy.FromString(policy.document)
    message.etag = policy.etag
    return message
