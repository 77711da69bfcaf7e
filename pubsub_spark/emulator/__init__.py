"""A Pub/Sub server in pure Python: google.pubsub.v1 for tests and for a laptop, in process or on a port.

    with Emulator() as emulator:
        os.environ["PUBSUB_EMULATOR_HOST"] = emulator.endpoint

Three layers. What a client sees, from the outside in:

    wire      front (one port); connections, calls, http2 (gRPC); rest and transcode (JSON); server (what stands around
              a call), streaming, engine (the one lock, the clock, waking); pusher and oidc (push)
    handlers  services (which RPC, which handler), publisher, subscriber, snapshots, schemas, iam: parse, check, ask the
              broker once, reply; rules, masks, paging, configuration, outlets, preset
    state     broker, subscription, leases, ordering, delivery, message, revisions, chaos, faults, push, filter:
              pure; no lock, no proto, no clock

It stands alone: of this package it imports `names`, `memory` and the definitions of `codec`; the connector never
imports it.
"""

from pubsub_spark.emulator.emulator import Emulator, Record
from pubsub_spark.emulator.rpc.dispatcher import Recorded

__all__ = ["Emulator", "Record", "Recorded"]
