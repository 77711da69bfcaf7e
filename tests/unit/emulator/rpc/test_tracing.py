"""Spans of calls, if OpenTelemetry is configured. A process of its own configures it."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import ROOT

CONFIGURED = """
import asyncio, json
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.rpc import tracing
from pubsub_spark.emulator.rpc.context import RpcContext

assert tracing.interceptor() is None
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
record_span = tracing.interceptor()

async def answer():
    return b"raw"

async def refuse():
    raise RpcError("NOT_FOUND", "nothing")

async def calls():
    metadata = (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("x-bin", b"y"))
    assert b"raw" == await record_span(RpcContext("/google.pubsub.v1.Publisher/Publish", metadata, "ipv4:1"), answer)
    try:
        await record_span(RpcContext("/google.pubsub.v1.Subscriber/Pull"), refuse)
    except RpcError:
        pass

asyncio.run(calls())
found = [(each.name, f"{each.context.trace_id:x}", each.status.status_code.name, dict(each.attributes)["rpc.method"])
         for each in exporter.get_finished_spans()]
print(json.dumps(found))
"""


def test_calls_are_spans_where_the_sdk_is_configured():
    """A call is a span below the client's, with its RPC and whether it failed. Without the SDK there are no spans."""
    done = subprocess.run([sys.executable, "-c", CONFIGURED], capture_output=True, text=True, cwd=ROOT, timeout=60)

    assert "" == done.stderr
    publish, pull = json.loads(done.stdout)
    assert ["google.pubsub.v1.Publisher/Publish", "af7651916cd43dd8448eb211c80319c", "UNSET", "Publish"] == publish
    assert ["google.pubsub.v1.Subscriber/Pull", "ERROR", "Pull"] == [pull[0], *pull[2:]]
