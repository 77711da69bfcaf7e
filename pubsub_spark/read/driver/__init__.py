"""On the driver, in Spark's long-lived Python worker: planning, committing and acknowledging batches.

query_driver     Spark's calls: start here
ledger           every unsettled part and its state (pure): the promise
in_doubt         ids that may be delivered again (pure). `in_doubt_files` keeps them in the staging area.
triggers         when a batch is planned (pure)
planner          the readers of a batch: the driver stream alone, or also tasks (pure)
start            a new ledger from the staging area
active_run       a run from its first call to its end. `run` has its open objects
batches          the partitions of a batch, new or replayed
ack_worker       the thread that acknowledges
lease_extender   the threads that extend leases. `times` has the limits of all threads
metrics          the metrics of `lastProgress` (pure). `report` writes them to `metricsLocation`
subscription     the subscription before the first pull: get, create, seek
"""
