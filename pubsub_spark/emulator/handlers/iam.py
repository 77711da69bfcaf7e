"""google.iam.v1.IAMPolicy for topics, subscriptions, snapshots and schemas: kept, versioned, and granting everything.

The emulator knows no callers, so a policy decides nothing: it is stored and returned, a stale etag is refused, and
every permission that a resource has is granted. `Policies` is pure; the handlers below it speak protobuf. A policy
belongs to one incarnation of a resource: it goes when the resource is deleted, and a new one of the same name starts
without.
"""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from google.iam.v1 import iam_policy_pb2, policy_pb2

from pubsub_spark import names
from pubsub_spark.emulator.api.errors import RpcError, invalid, not_found
from pubsub_spark.emulator.resources.limits import invalid_name
from pubsub_spark.emulator.runtime.engine import Engine

MAX_MEMBERS = 1500  # of one policy
UNTOUCHED = b"\x00\x20\x01"  # the service's first etag; REST shows it as `ACAB`
DEFAULT_MASK = frozenset({"bindings", "etag"})
VERSIONS = (0, 1, 3)
_CONDITIONAL = 3  # the version of a policy that has conditions
_WITH_CONDITION = "_withcond_"  # stands in the name of a role whose condition is not shown

# cloud.google.com/pubsub/docs/access-control: what can be done to each kind of resource.
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


class Resources(Protocol):
    """Live resources by name."""

    def get(self, name: str, /) -> object | None: ...


class Policy(NamedTuple):
    """A stored policy: the serialized message without its etag, and the etag."""

    document: bytes
    etag: bytes


class Policies:
    """The policies of all resources. A resource is the object that is its present incarnation."""

    def __init__(self) -> None:
        self._policies: weakref.WeakKeyDictionary[object, Policy] = weakref.WeakKeyDictionary()
        self._changes = 0

    def get(self, owner: object) -> Policy:
        return self._policies.get(owner, Policy(b"", UNTOUCHED))

    def set(self, owner: object, document: bytes, etag: bytes) -> Policy:
        """Store a policy; RpcError when `etag` is given and somebody else has changed the policy since."""
        if etag and etag != self.get(owner).etag:
            raise RpcError(
                "ABORTED",
                "There were concurrent policy changes. "
                "Please retry the whole read-modify-write with exponential backoff.",
            )
        self._changes += 1
        policy = Policy(document, b"\x07" + self._changes.to_bytes(7))
        self._policies[owner] = policy
        return policy


class IamPolicy:
    """The handlers of google.iam.v1.IAMPolicy; `resources` are the places where one may be, by name."""

    def __init__(self, engine: Engine, policies: Policies, resources: Sequence[Resources]) -> None:
        self._engine = engine
        self._policies = policies
        self._resources = resources

    def get_iam_policy(self, request: Any) -> Any:
        """An untouched resource has an empty policy."""
        version = request.options.requested_policy_version
        if version not in VERSIONS:
            raise invalid(f"The requested policy version must be 0, 1 or 3, got {version}.")
        with self._engine.open():
            policy = _written(self._policies.get(self._owner(request.resource)))
        if version != _CONDITIONAL and _has_conditions(policy):
            _hide_conditions(policy)
        return policy

    def set_iam_policy(self, request: Any) -> Any:
        """Replaces what the mask names, the bindings unless it says otherwise."""
        mask = frozenset(request.update_mask.paths) or DEFAULT_MASK
        if unknown := sorted(mask - set(policy_pb2.Policy.DESCRIPTOR.fields_by_name)):
            raise invalid(
                f"Invalid update_mask provided in the SetIamPolicyRequest: '{unknown[0]}' is not a known Policy field."
            )
        _check(request.policy)
        with self._engine.open():
            owner = self._owner(request.resource)
            document = policy_pb2.Policy.FromString(self._policies.get(owner).document)
            for field in ("bindings", "audit_configs"):
                if field in mask:
                    document.ClearField(field)
                    getattr(document, field).extend(getattr(request.policy, field))
            document.version = _CONDITIONAL if _has_conditions(document) else 1
            stored = self._policies.set(owner, document.SerializeToString(), request.policy.etag)
            return _written(stored)

    def test_iam_permissions(self, request: Any) -> Any:
        """What of the asked can be done to the resource; nothing to one that does not exist."""
        collection = _collection(request.resource)
        if wild := [permission for permission in request.permissions if "*" in permission]:
            raise invalid(f"Permission {wild[0]} is not valid: wildcards are not allowed.")
        with self._engine.open():
            exists = self._find(request.resource) is not None
        granted: Collection[str] = PERMISSIONS[collection] if exists else ()
        prefix = f"pubsub.{collection}."
        return iam_policy_pb2.TestIamPermissionsResponse(
            permissions=[
                permission
                for permission in request.permissions
                if permission.startswith(prefix) and permission.removeprefix(prefix) in granted
            ]
        )

    def _find(self, name: str) -> object | None:
        return next((found for place in self._resources if (found := place.get(name)) is not None), None)

    def _owner(self, name: str) -> object:
        _collection(name)
        owner = self._find(name)
        if owner is None:
            raise not_found(name)
        return owner


def _collection(name: str) -> names.Collection:
    """The collection that a resource's name belongs to."""
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
    """What a caller gets who does not say that it knows conditions, so that it does not take the roles for granted.

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
