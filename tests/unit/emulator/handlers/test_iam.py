"""IAM policies: one for each resource, versioned by etag. A policy grants every permission that the resource has."""

from __future__ import annotations

import pytest
from google.iam.v1 import iam_policy_pb2, options_pb2, policy_pb2
from google.protobuf import field_mask_pb2
from google.type import expr_pb2

from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.handlers import iam
from pubsub_spark.emulator.runtime.clock import Clock
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.state.policies import UNTOUCHED
from pubsub_spark.emulator.state.state import State

TOPIC = "projects/p/topics/news"
READERS = policy_pb2.Binding(role="roles/pubsub.viewer", members=["user:a@example.com"])


@pytest.fixture
def state():
    state = State()
    state.broker.create_topic(TOPIC)
    return state


@pytest.fixture
def policies(state):
    engine = Engine(state, Clock())
    yield iam.IamPolicy(engine)
    engine.close()


def get(policies, name=TOPIC, version=0):
    options = options_pb2.GetPolicyOptions(requested_policy_version=version)
    return policies.get_iam_policy(iam_policy_pb2.GetIamPolicyRequest(resource=name, options=options))


def put(policies, *bindings, etag=b"", version=0, mask=(), audit_configs=()):
    policy = policy_pb2.Policy(bindings=bindings, etag=etag, version=version, audit_configs=audit_configs)
    mask = field_mask_pb2.FieldMask(paths=mask)
    return policies.set_iam_policy(iam_policy_pb2.SetIamPolicyRequest(resource=TOPIC, policy=policy, update_mask=mask))


def may(policies, name, *permissions):
    request = iam_policy_pb2.TestIamPermissionsRequest(resource=name, permissions=permissions)
    return list(policies.test_iam_permissions(request).permissions)


def test_untouched_resource_has_an_empty_policy(policies):
    """A resource whose policy was never set has an empty one with the service's first etag."""
    assert policy_pb2.Policy(etag=b"\x00\x20\x01") == get(policies)


def test_set_policy_is_returned(policies):
    """A stored policy is read again as version 1 with a new etag."""
    stored = put(policies, READERS)

    assert [READERS] == list(stored.bindings)
    assert 1 == stored.version
    assert UNTOUCHED != stored.etag
    assert stored == get(policies)


def test_etag_that_is_current_is_accepted(policies):
    """An undisturbed read-modify-write succeeds and returns a new etag."""
    first = put(policies, READERS, etag=get(policies).etag)

    assert first.etag != put(policies, etag=first.etag).etag


def test_stale_etag_is_aborted(policies):
    """A write based on an outdated policy is refused and changes nothing."""
    put(policies, READERS)

    with pytest.raises(RpcError, match="concurrent policy changes") as refused:
        put(policies, etag=UNTOUCHED)

    assert "ABORTED" == refused.value.code
    assert [READERS] == list(get(policies).bindings)


def test_policy_dies_with_its_resource(policies, state):
    """A resource of the same name, created after the first was deleted, has no policy."""
    put(policies, READERS)

    state.broker.delete_topic(state.broker.topics[TOPIC])
    state.broker.create_topic(TOPIC)

    assert UNTOUCHED == get(policies).etag


def test_mask_decides_what_is_replaced(policies):
    """By default only bindings are replaced. A mask can name the audit configuration instead."""
    audit = policy_pb2.AuditConfig(service="pubsub.googleapis.com")
    put(policies, READERS, audit_configs=[audit])
    assert not get(policies).audit_configs

    stored = put(policies, audit_configs=[audit], mask=["audit_configs"])

    assert [READERS] == list(stored.bindings)
    assert [audit] == list(stored.audit_configs)


@pytest.mark.parametrize("rpc", [get, put])
def test_missing_resource_is_not_found(policies, state, rpc):
    """A policy of a missing resource can be neither read nor set."""
    state.clear()

    with pytest.raises(RpcError) as refused:
        rpc(policies)

    assert ("NOT_FOUND", "Resource not found (resource=news).") == (refused.value.code, refused.value.message)


@pytest.mark.parametrize("name", ["projects/p", "projects/p/topics/1news", "projects/p/things/news", ""])
def test_name_of_nothing_is_invalid(policies, name):
    """A name that is not of a topic, subscription, snapshot or schema is invalid."""
    with pytest.raises(RpcError, match="Invalid resource name given") as refused:
        get(policies, name)

    assert "INVALID_ARGUMENT" == refused.value.code


def test_conditions_need_version_3(policies):
    """A conditional binding is refused in a policy of version 1 and kept in one of version 3."""
    conditional = policy_pb2.Binding(
        role="roles/pubsub.viewer", members=["allUsers"], condition=expr_pb2.Expr(expression="true")
    )

    with pytest.raises(RpcError, match="must be of version 3"):
        put(policies, conditional, version=1)

    assert 3 == put(policies, conditional, version=3).version


def test_conditions_are_shown_to_those_who_know_them(policies):
    """A caller that does not request conditions gets a role of another name, which it cannot set."""
    conditional = policy_pb2.Binding(
        role="roles/pubsub.viewer", members=["allUsers"], condition=expr_pb2.Expr(expression="true")
    )
    plain = policy_pb2.Binding(role="roles/pubsub.editor", members=["allUsers"])
    put(policies, conditional, plain, version=3)
    shown = get(policies, version=1)
    hidden, other = shown.bindings

    assert [conditional, plain] == list(get(policies, version=3).bindings)
    assert 1 == shown.version
    assert hidden.role.startswith("roles/pubsub.viewer_withcond_")
    assert not hidden.HasField("condition")
    assert plain == other
    with pytest.raises(RpcError, match=r"viewer_withcond_[0-9a-f]+ is not valid"):
        put(policies, hidden)


@pytest.mark.parametrize(
    ("reason", "binding"),
    [
        ("Role viewer is not valid", policy_pb2.Binding(role="viewer")),
        ("Role  is not valid", policy_pb2.Binding()),
        ("Member bob is of an unknown type", policy_pb2.Binding(role="roles/viewer", members=["bob"])),
        ("1501", policy_pb2.Binding(role="roles/viewer", members=[f"user:{i}@example.com" for i in range(1501)])),
    ],
)
def test_wrong_binding_is_refused(policies, reason, binding):
    """A role or member that IAM could not know is refused. So are more members than a policy holds."""
    with pytest.raises(RpcError, match=reason):
        put(policies, binding)


def test_unknown_versions_and_masks_are_refused(policies):
    """Versions are 0, 1 and 3. Masks name fields of a policy."""
    with pytest.raises(RpcError, match="must be 0, 1 or 3, got 2"):
        get(policies, version=2)
    with pytest.raises(RpcError, match="must be 0, 1 or 3, got 4"):
        put(policies, version=4)
    with pytest.raises(RpcError, match="'colour' is not a known Policy field"):
        put(policies, mask=["colour"])


def test_permissions_of_the_resource_are_granted(policies):
    """Of the requested permissions, those that the kind of resource has are returned in the requested order."""
    asked = ["pubsub.topics.publish", "pubsub.subscriptions.consume", "pubsub.topics.get", "storage.objects.get"]

    assert ["pubsub.topics.publish", "pubsub.topics.get"] == may(policies, TOPIC, *asked)


def test_missing_resource_grants_nothing(policies):
    """Permissions on a missing resource are an empty set instead of an error."""
    assert [] == may(policies, "projects/p/topics/other", "pubsub.topics.get")


def test_wildcard_permission_is_refused(policies):
    """Permissions are requested one by one, without wildcards."""
    with pytest.raises(RpcError, match="wildcards are not allowed"):
        may(policies, TOPIC, "pubsub.topics.*")


def test_policy_goes_with_its_resource(policies, state):
    """The policy of a deleted resource is gone, even if no other resource of that name is created."""
    put(policies, READERS)
    assert 1 == len(state.policies.by_name)

    state.broker.delete_topic(state.broker.topics[TOPIC])

    assert 0 == len(state.policies.by_name)
