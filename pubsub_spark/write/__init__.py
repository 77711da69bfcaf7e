"""DataFrames into Pub/Sub, in the order of the data:

plan      what the driver decides: the layout of the columns, the schema that encodes them
rows      which column is which part of a message; an Arrow batch's messages as columns
payload   the bytes of a row: by the topic's schema, or as JSON (json, zones)
limits    what Pub/Sub takes: sizes to the byte, and the rows that it would refuse (deadletter)
requests  messages cut into publish requests, and their bytes
window    what may be sent now, what must wait: one request per ordering key, room by bytes (pure)
publish   the calls: sent, retried, counted
metrics   the counts of a write
task      one task, from Arrow batches to confirmed messages
writer    Spark's writer classes: what runs on the driver, what in a task
sink      the writing half of the data source
summary   the counts for a program: `WriteSummary`
"""

from .metrics import WriteMetrics
from .summary import WriteSummary

__all__ = ["WriteMetrics", "WriteSummary"]
