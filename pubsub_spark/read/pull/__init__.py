"""Pulling from a subscription: streams of messages, and acks and leases of any number of ack ids.

Each module uses those below it alone, and nothing here knows of batches, staging or Spark.

    driver_stream   the driver's own stream: a buffer of messages and their leases
    pull            one bounded pull of a task
    streaming_pull  one or more streams that reopen by themselves
    health          whether a stream is connected, idle or failing (pure)
    acks            Acknowledge, and ModifyAckDeadline to nack and extend
    lease           how long messages are leased, and when to extend (pure)
"""
