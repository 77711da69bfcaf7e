"""On the driver, in Spark's long-lived Python worker: which batch is planned, committed and acknowledged.

query_driver     Spark's calls: start here
ledger           every part that is not settled, and what may be done with it (pure): the promise
in_doubt         ids that may be delivered again though their batch is committed (pure); `in_doubt_files` keeps them
triggers         when a batch is planned: processingTime, availableNow, once (pure)
planner          how it is read: by the driver stream alone or by tasks too (pure)
start            what the staging area holds, as a new ledger
active_run       a run from its first call to its end; `run` has its open objects
batches          the partitions of a batch, new or replayed
ack_worker       the thread that acknowledges
lease_extender   the thread that extends leases
metrics          what `lastProgress` shows (pure)
subscription     the subscription before the first pull: get, create, seek
"""
