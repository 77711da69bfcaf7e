"""DataFrames to Pub/Sub messages, in the order of the data. The driver plans, tasks publish.

sink            the data source class that Spark asks for writers
writer          Spark's writer classes, on the driver and in a task, and the commit message
plan            on the driver: the write plan, that is the column mapping and the schema that encodes rows
column_mapping  the message field of each column of the DataFrame
data_writer     in a task: Arrow batches to confirmed messages
messages        an Arrow batch of rows as an Arrow batch of messages
row_encoder     the payloads of rows: by the topic's schema, or as JSON (json, time_zones)
request_queue   the requests that may be sent: flow control, and a queue for each ordering key (pure)
publisher       the publish calls: sent, retried, counted
metrics         the counts of a write
summary         the counts for a program: `WriteSummary`

Size limits, dead letters and the encoding of requests are in `publish/`, which `read/` also uses.
"""

from .metrics import WriteMetrics
from .summary import WriteSummary

__all__ = ["WriteMetrics", "WriteSummary"]
