"""Reading a subscription: the way of a message, and of its ack.

    stream_reader   Spark's calls, from dictionaries to objects and back
    driver/         planning, committing and acknowledging batches. Start with `query_driver` and `ledger`
    task/           the messages of a partition: staged already, or pulled, staged and yielded
    pull/           StreamingPull, bounded pulls, Acknowledge and ModifyAckDeadline
    staging/        the staging area: its store, its files and their formats
    offset          the end of a batch, as the checkpoint has it
    rows            messages to decoded rows. `dead_letters` publishes malformed ones
    batch_reader    `spark.read`: messages are read and nacked
    runtime         clocks, waits and threads, passed in

Each folder imports only those below it, and its docstring is its map.
"""
