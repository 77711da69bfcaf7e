"""Reading a subscription. The way of a message, and of its ack.

On the driver, in Spark's long-lived Python worker:

    stream_reader      Spark's calls, as dictionaries; `session` is what they do
    session            which batch is planned, committed, acknowledged: start here
    offset             the end of a batch, as the checkpoint has it
    subscription       the subscription before the first pull: get, create, seek
    driver_stream      the driver's own StreamingPull, whose messages start a batch
    partitions         the input partitions of a batch, by volume
    leases             when leases expire and batches may be acknowledged (pure)
    ack_worker         the background thread: acks of committed batches, then `lease_extender`

In a task:

    partition_reader   staged already, or pull, stage and give the messages
    pull               one bounded pull
    rows               messages to rows, decoded; `dead_letters` for those that cannot be
    batch_reader       `spark.read`: messages are read and nacked

In both:

    streaming_pull     a StreamingPull that reopens by itself
    staged_schemas     the schemas that a batch is decoded with, at each evaluation
    staging            the staging area; `staged_part` is the format of its parts, `staged_streams` lists it for the CLI
    acks               Acknowledge, and ModifyAckDeadline to nack and extend
    deduplication      which messages may be delivered again, and dropping them
    recent_ids         the ids of those messages: sorted runs of digests (pure)
    claims             which part of a batch has the row of an id, with `idAttribute`

What happens to an ack that fails is in `acks`, `ack_worker` and `deduplication`.
"""
