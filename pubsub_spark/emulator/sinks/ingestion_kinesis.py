"""Kinesis as a source: the records of a stream's shards, from the oldest in the stream, once each.

Uses GetRecords, which servers that emulate Kinesis (moto) support. The consumer must exist, as for the service. The
credentials are those of the environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from pubsub_spark.emulator.sinks.ingestion_source import IngestedMessage, Marks, Portion, SourceError

_TIMEOUT_SECONDS = 5
_RECORDS = 1000  # of a shard, at a time
_MISSING = "ResourceNotFoundException"
_EXPIRED = "ExpiredIteratorException"
_DENIED = ("AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException")


class KinesisSource:
    def __init__(self, endpoint: str, settings: Any, marks: Marks) -> None:
        self._stream, self._consumer = settings.stream_arn, settings.consumer_arn
        self._endpoint = endpoint
        self._made: Any = None
        self._iterators: dict[str, str | None] = {}  # by shard, None for one that has ended
        self._marks = marks  # by shard, the sequence number of the last record that was read

    def new(self) -> Iterator[Portion]:
        errors: Any = import_module("botocore.exceptions")
        try:
            client = self._client()
            self._check_consumer(client, errors)
            for shard in self._shards(client):
                yield from self._records(client, shard)
        except errors.ClientError as problem:
            code = problem.response["Error"]["Code"]
            if code == _EXPIRED:
                self._iterators.clear()  # they begin again after the last record
                return
            state = "STREAM_NOT_FOUND" if code == _MISSING else None
            state = state or ("KINESIS_PERMISSION_DENIED" if code in _DENIED else "ACTIVE")
            raise SourceError(state, f"The stream `{self._stream}` cannot be read: {problem}") from None
        except (errors.BotoCoreError, ValueError) as problem:  # away, no credentials, an invalid address
            raise SourceError("ACTIVE", f"The stream `{self._stream}` cannot be read now: {problem}") from None

    def _client(self) -> Any:
        if self._made is None:
            config = import_module("botocore.config").Config(
                connect_timeout=_TIMEOUT_SECONDS, read_timeout=_TIMEOUT_SECONDS, retries={"total_max_attempts": 1}
            )
            region = (self._stream.split(":") + [""] * 4)[3] or "us-east-1"
            self._made = import_module("boto3").client(
                "kinesis", region_name=region, endpoint_url=self._endpoint, config=config
            )
        return self._made

    def _check_consumer(self, client: Any, errors: Any) -> None:
        try:
            client.describe_stream_consumer(ConsumerARN=self._consumer)
        except errors.ClientError as problem:
            if problem.response["Error"]["Code"] != _MISSING:
                raise
            client.describe_stream_summary(StreamARN=self._stream)  # a missing stream is reported as such
            sentence = f"The consumer `{self._consumer}` does not exist. Register it with the stream."
            raise SourceError("CONSUMER_NOT_FOUND", sentence) from None

    def _shards(self, client: Any) -> Iterator[str]:
        answer = client.list_shards(StreamARN=self._stream)
        yield from (shard["ShardId"] for shard in answer["Shards"])
        while token := answer.get("NextToken"):
            answer = client.list_shards(NextToken=token)
            yield from (shard["ShardId"] for shard in answer["Shards"])

    def _records(self, client: Any, shard: str) -> Iterator[Portion]:
        part = f"{self._stream}/{shard}"
        if shard not in self._iterators:
            last = self._marks.get(part)
            begin = {"ShardIteratorType": "TRIM_HORIZON"}
            if last is not None:
                begin = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": last}
            answer = client.get_shard_iterator(StreamARN=self._stream, ShardId=shard, **begin)
            self._iterators[shard] = answer["ShardIterator"]
        iterator = self._iterators[shard]
        if iterator is None:
            return
        answer = client.get_records(StreamARN=self._stream, ShardIterator=iterator, Limit=_RECORDS)
        if records := answer["Records"]:
            mark = records[-1]["SequenceNumber"]
            yield Portion(f"`{shard}`", [IngestedMessage(record["Data"], {}) for record in records], part, mark)
        self._iterators[shard] = answer.get("NextShardIterator")
