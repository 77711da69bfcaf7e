"""The routes of the JSON API, compared with the annotations of the protos."""

from __future__ import annotations

import inspect
import re
import typing

import pytest
from google.pubsub_v1.services.publisher.transports import base as publisher_base
from google.pubsub_v1.services.publisher.transports import rest_base as publisher_rest
from google.pubsub_v1.services.schema_service.transports import base as schema_base
from google.pubsub_v1.services.schema_service.transports import rest_base as schema_rest
from google.pubsub_v1.services.subscriber.transports import base as subscriber_base
from google.pubsub_v1.services.subscriber.transports import rest_base as subscriber_rest

from pubsub_spark.emulator.api.routes import routes

GENERATED = {
    "google.pubsub.v1.Publisher": (
        publisher_base.PublisherTransport,
        publisher_rest._BasePublisherRestTransport,
    ),
    "google.pubsub.v1.Subscriber": (
        subscriber_base.SubscriberTransport,
        subscriber_rest._BaseSubscriberRestTransport,
    ),
    "google.pubsub.v1.SchemaService": (
        schema_base.SchemaServiceTransport,
        schema_rest._BaseSchemaServiceRestTransport,
    ),
}
IAM = ("GetIamPolicy", "SetIamPolicy", "TestIamPermissions")


def http_annotations():
    """Return (RPC, verb, path, body, request, response) of every annotation in the client library."""
    for service, (base, rest) in GENERATED.items():
        for name, holder in inspect.getmembers(rest, inspect.isclass):
            if not hasattr(holder, "_get_http_options"):
                continue
            rpc = name.removeprefix("_Base")
            attribute = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rpc).lower()
            [request], response = typing.get_args(typing.get_type_hints(getattr(base, attribute).fget)["return"])
            types = [full_name(request), full_name(typing.get_args(response)[0])]
            for option in holder._get_http_options():
                path = f"/{'google.iam.v1.IAMPolicy' if rpc in IAM else service}/{rpc}"
                yield (path, option["method"].upper(), option["uri"], option.get("body"), *types)


def full_name(message):
    return (message.pb() if hasattr(message, "pb") else message).DESCRIPTOR.full_name


def test_routes_are_the_http_annotations():
    """Each annotation of the installed client library has its row in the table, and each row has its annotation."""
    expected = set(http_annotations())

    found = [
        (r.rpc, r.verb, r.template, r.body, r.request.DESCRIPTOR.full_name, r.response.DESCRIPTOR.full_name)
        for r in routes()
    ]

    assert expected == set(found)
    assert len(expected) == len(found) > 40


@pytest.mark.parametrize("rpc", ["StreamingPull"])
def test_rpc_without_an_annotation_has_no_route(rpc):
    """StreamingPull, the RPC without an annotation, has no route. It is only in gRPC."""
    assert not [route for route in routes() if route.rpc.endswith(f"/{rpc}")]
