"""In a task: the messages of a partition, the same at each evaluation.

partition_reader   staged already, or pull, stage and yield the messages: start here
partition_pull     the pull of one part: its rows, and the messages to acknowledge at once
partitions         the input partitions of a batch (values)
spark_context      the batch and the task slots, from Spark's task context
"""
