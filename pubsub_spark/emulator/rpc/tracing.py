"""Spans of OpenTelemetry: one for each call, below the client's span if its metadata name one.

They are made only if the SDK is configured before the emulator starts (by `opentelemetry-instrument`, or a test).
"""

from __future__ import annotations

import sys
from typing import Any

from pubsub_spark.emulator.rpc.context import RpcContext
from pubsub_spark.emulator.rpc.interceptors import Interceptor, Proceed


def interceptor() -> Interceptor | None:
    """Return None if OpenTelemetry is not configured."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    from opentelemetry import propagate

    tracer = trace.get_tracer("pubsub_spark.emulator")

    async def record_span(context: RpcContext, proceed: Proceed) -> Any:
        carrier = {name: value for name, value in context.metadata if isinstance(value, str)}
        service, _, method = context.method[1:].partition("/")
        attributes = {
            "rpc.system": "grpc",
            "rpc.service": service,
            "rpc.method": method,
            "client.address": context.peer,
        }
        with tracer.start_as_current_span(
            context.method[1:], propagate.extract(carrier), trace.SpanKind.SERVER, attributes
        ):
            return await proceed()

    return record_span
