"""The pull of a part: the messages that become rows, are acknowledged at once, or are acknowledged with the batch."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from pubsub_spark.errors import MissingFile
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.runtime import SYSTEM
from pubsub_spark.read.staging import part as staged_part
from pubsub_spark.read.staging.area import Staging, part_path
from pubsub_spark.read.staging.ids import merged
from pubsub_spark.read.staging.part import Footer
from pubsub_spark.read.staging.store import open_store
from pubsub_spark.read.task.partition_pull import PartitionPull, first_wait
from pubsub_spark.read.task.partitions import PullPartition
from tests.unit.read.service import SUBSCRIPTION, Service, StatusError, ids, part, response
from tests.unit.read.store import WatchedStore

IN_TIME, LATE, FAR = 50.0, -1.0, 7200.0  # the deadline of a plan, in seconds from now
BATCH = 7


@pytest.fixture
def reads() -> list[str]:
    """Return the paths of files that were read."""
    return []


@pytest.fixture
def staging(tmp_path: Path, reads: list[str]) -> Staging:
    def record(call: str, path: str) -> None:
        if call == "read":
            reads.append(path)

    staging = Staging(WatchedStore(str(tmp_path), record), SUBSCRIPTION, uuid.uuid4().hex)
    staging.create(part_path(BATCH, 0), part(["driver"]))
    return staging


def in_doubt(staging: Staging, number: int, *texts: str) -> str:
    """Return a file of ids in doubt."""
    path = f"in-doubt/1-{number}"
    staging.write_ids(path, merged([ids(*texts)]), until=0, batch=1)
    return path


def pulled(
    staging: Staging,
    service: Any,
    *,
    deadline: float = IN_TIME,
    max_messages: int = 100,
    excludes: Sequence[str] = (),
    committed: Sequence[int] = (),
) -> tuple[list[str], list[str], Footer]:
    """Return the rows of a pull of part 1, the staged ack ids, and the footer. committed: parts of the batch before."""
    options = ReadOptions.parse({"subscriptionId": SUBSCRIPTION, "idleTimeout": "50ms"}, {})
    wall = SYSTEM.wall() + deadline
    earlier = [(BATCH - 1, number, staging.parts(BATCH - 1)[number], "first") for number in committed]
    partition = PullPartition(staging, BATCH, 1, max_messages, 10**6, wall, excludes, earlier)
    messages, buffers = PartitionPull(partition, options, service, SYSTEM).run()
    rows = [data.decode() for batch in messages for data in batch.column("data").to_pylist()]
    content = b"".join(buffers)
    staged = [data.decode() for batch in staged_part.messages(content) for data in batch.column("data").to_pylist()]
    assert rows == staged, "every evaluation has the same rows"
    receipts = [ack_id for each in staged_part.receipts(buffers) for ack_id in each.column("ack_id").to_pylist()]
    return rows, receipts, staged_part.footer(content)


def test_messages_are_rows(staging: Staging):
    """The usual case: nothing is acknowledged before the commit, and no file is looked into."""
    service = Service(scripts=[[response("ab")]])
    rows, receipts, footer = pulled(staging, service)

    assert (["a", "b"], ["ack-a", "ack-b"]) == (rows, receipts)
    assert (2, 0, 0, "idle") == (footer.rows, footer.dropped, footer.redelivered, footer.ended)
    assert [] == service.acked


@pytest.mark.parametrize(
    ("texts", "ended", "slots", "wait"),
    [
        ("a", "idle", 2, 0.05),  # the others found the end of the subscription
        ("", "period", 2, 0.05),
        ("a", "full", 2, 9.0),
        ("a", "idle", 3, 9.0),  # the others run next to this task
        ("a", "idle", None, 9.0),  # unknown
    ],
)
def test_surplus_task_does_not_wait_again(staging: Staging, texts: str, ended: str, slots: int | None, wait: float):
    """A task that begins after another has found the subscription empty looks for a moment only."""
    for number in (1, 2):
        staging.create(part_path(BATCH, number), part(texts, ended))
    partition = PullPartition(staging, BATCH, 3, 1, 10**6, SYSTEM.wall() + IN_TIME, first_wait=9.0)

    assert wait == first_wait(partition, slots)


def test_message_in_doubt_is_acknowledged_at_once(staging: Staging):
    """Its batch is committed, so it is no row and waits for no commit."""
    service = Service(scripts=[[response("abc")]])
    paths = [in_doubt(staging, 1, "id-a", "id-x"), in_doubt(staging, 2, "id-c")]
    rows, receipts, footer = pulled(staging, service, excludes=paths)

    assert (["b"], ["ack-b"]) == (rows, receipts)
    assert [["ack-a", "ack-c"]] == service.acked
    assert (1, 0, 2) == (footer.rows, footer.dropped, footer.redelivered)


def test_message_in_doubt_whose_ack_is_refused_is_acknowledged_with_the_batch(staging: Staging):
    """It is no row either way."""
    refused = StatusError(grpc.StatusCode.FAILED_PRECONDITION)
    service = Service(scripts=[[response("ab")]], answers=[refused])
    rows, receipts, footer = pulled(staging, service, excludes=[in_doubt(staging, 1, "id-a")])

    assert (["b"], ["ack-a", "ack-b"]) == (rows, receipts)
    assert (1, 1, 0) == (footer.rows, footer.dropped, footer.redelivered)


def test_message_in_doubt_does_not_count_for_the_limits(staging: Staging):
    """A batch after an outage is not filled with redeliveries."""
    service = Service(scripts=[[response("ab"), response("c")]])
    rows, _, footer = pulled(staging, service, max_messages=2, excludes=[in_doubt(staging, 1, "id-a")])

    assert (["b", "c"], "full") == (rows, footer.ended)


def test_message_of_the_driver_is_a_row_once(staging: Staging):
    """Its lease ended and it is delivered again to a task of the same batch: its new ack is sent with the batch."""
    service = Service(scripts=[[response(["driver", "a"])]])
    rows, receipts, footer = pulled(staging, service, deadline=LATE)

    assert (["a"], ["ack-driver", "ack-a"]) == (rows, receipts)
    assert (1, 1, 0) == (footer.rows, footer.dropped, footer.redelivered)
    assert [] == service.acked


@pytest.mark.parametrize(("deadline", "expected"), [(IN_TIME, ["1", "2", "3", "4"]), (LATE, ["4"]), (FAR, ["4"])])
def test_pull_that_ends_late_looks_at_what_is_staged(staging: Staging, deadline: float, expected: list[str]):
    """Until its deadline a plan excludes all redeliveries that there can be. Later the task has to look itself.

    So it has if its clock is far behind the driver's.
    """
    staging.create(part_path(BATCH - 1, 1), part(["1"], part_id="first"))
    staging.create(part_path(BATCH, 2), part(["2"]))
    in_doubt(staging, 1, "id-3")
    service = Service(scripts=[[response("1234")]])
    rows, receipts, footer = pulled(staging, service, deadline=deadline, committed=[1])

    assert expected == rows
    if deadline != IN_TIME:
        assert [["ack-1", "ack-3"]] == service.acked
        assert ["ack-2", "ack-4"] == receipts
        assert (1, 1, 2) == (footer.rows, footer.dropped, footer.redelivered)


def test_redelivery_of_a_part_that_no_task_has_yielded_is_left_to_pubsub(staging: Staging):
    """The part may never count, so the receipt is not acknowledged with this one. One that was yielded is named."""
    staging.create(part_path(BATCH, 2), part(["2"], part_id="second"))
    yielded = part(["3"], part_id="third")
    staging.create(part_path(BATCH, 3), yielded)
    staging.record_yielded(BATCH, 3, staged_part.footer(b"".join(yielded)))
    rows, receipts, footer = pulled(staging, Service(scripts=[[response("1234")]]), deadline=LATE)

    assert (["1", "4"], ["ack-1", "ack-3", "ack-4"]) == (rows, receipts)
    assert [[0, ""], [3, "third"]] == [list(each) for each in footer.siblings]


def test_part_that_was_staged_after_its_commit_has_no_rows(staging: Staging):
    """An attempt outlived its batch: its messages are delivered again and must not be acknowledged without a row."""
    staging.create(part_path(BATCH - 1, 1), part(["committed"], part_id="first"))
    staging.create(part_path(BATCH - 1, 2), part(["zombie"]))
    service = Service(scripts=[[response(["committed", "zombie"])]])

    assert ["zombie"] == pulled(staging, service, deadline=LATE, committed=[1])[0]
    assert [["ack-committed"]] == service.acked


def test_part_that_was_staged_again_after_its_deletion_has_no_rows(staging: Staging):
    """A late attempt stages other messages in the place of a part that was committed, acknowledged and deleted."""
    staging.create(part_path(BATCH - 1, 1), part(["late"], part_id="second"))
    staging.delete_acknowledged([], BATCH - 1)
    service = Service(scripts=[[response(["late"])]])

    assert ["late"] == pulled(staging, service, deadline=LATE, committed=[1])[0]
    assert [] == service.acked


def test_ids_in_doubt_that_are_merged_while_they_are_listed_are_known(tmp_path: Path):
    """A listing of local files takes time, and may have neither the merged file nor the one that it is merged into."""
    listings = 0

    def merge(call: str, path: str) -> None:
        nonlocal listings
        if call == "list" and path.endswith("/in-doubt/"):
            listings += 1
            if listings == 1:
                other.delete_file("in-doubt/1-1")
            elif listings == 2:
                in_doubt(other, 2, "id-a")

    staging = Staging(WatchedStore(str(tmp_path), merge), SUBSCRIPTION, uuid.uuid4().hex)
    other = replace(staging, store=open_store(str(tmp_path)))
    in_doubt(other, 1, "id-a")
    service = Service(scripts=[[response("ab")]])

    assert ["b"] == pulled(staging, service, deadline=LATE)[0]


@pytest.mark.parametrize("damage", [None, b""])
def test_committed_part_that_cannot_be_read_stops_no_pull(staging: Staging, tmp_path: Path, damage: bytes | None):
    """The part is settled and deleted, or lost: then its messages are rows again, as the ack worker reports."""
    partition_1 = part_path(BATCH - 1, 1)
    staging.create(partition_1, part(["a"]))
    service = Service(scripts=[[response("a")]])
    file = tmp_path / staging.root / partition_1
    length = file.stat().st_size
    file.unlink()
    if damage is not None:
        file.write_bytes(damage + bytes(length))

    earlier = [(BATCH - 1, 1, length, "")]
    options = ReadOptions.parse({"subscriptionId": SUBSCRIPTION, "idleTimeout": "50ms"}, {})
    partition = PullPartition(staging, BATCH, 1, 100, 10**6, SYSTEM.wall() + LATE, committed=earlier)
    connection: Any = service
    messages, _ = PartitionPull(partition, options, connection, SYSTEM).run()
    assert [1] == [batch.num_rows for batch in messages]


def test_late_pull_finds_ids_that_are_merged_meanwhile(tmp_path: Path):
    """The driver writes the merged file first, and deletes the one that was listed before it is read."""
    plain = Staging(open_store(str(tmp_path)), SUBSCRIPTION, "stream")
    plain.create(part_path(BATCH, 0), part([]))
    listed = in_doubt(plain, 1, "id-a")

    def merge(call: str, path: str) -> None:
        if call == "read" and path.endswith(listed):
            in_doubt(plain, 2, "id-a", "id-b")
            plain.delete_file(listed)

    watched = Staging(WatchedStore(str(tmp_path), merge), SUBSCRIPTION, "stream")
    service = Service(scripts=[[response("abc")]])

    assert ["c"] == pulled(watched, service, deadline=LATE)[0]
    assert [["ack-a", "ack-b"]] == service.acked


def test_late_pull_keeps_what_its_own_part_has(staging: Staging):
    """Another attempt of this task may have staged the same messages. It is the one that counts then."""
    staging.create(part_path(BATCH, 1), part(["a", "b"]))
    service = Service(scripts=[[response("ab")]])

    assert ["a", "b"] == pulled(staging, service, deadline=LATE)[0]
    assert [] == service.acked


def test_late_pull_without_messages_looks_at_nothing(staging: Staging, reads: list[str]):
    """An idle backlog costs no reads."""
    in_doubt(staging, 1, "id-a")
    assert [] == pulled(staging, Service(), deadline=LATE)[0]
    assert [] == reads


def test_process_reads_a_file_of_ids_once(staging: Staging, reads: list[str]):
    """The next batch excludes most of the same files, and a reused worker has read them."""
    first, second, third = (in_doubt(staging, number, f"id-{number}") for number in (1, 2, 3))
    pulled(staging, Service(), excludes=[first, second])
    rows, *_ = pulled(staging, Service(scripts=[[response("123")]]), excludes=[second, third])

    assert ["1"] == rows
    assert [f"{staging.root}/{path}" for path in (first, second, third)] == reads


def test_file_of_ids_that_is_gone_is_an_error(staging: Staging):
    """Without it the task could repeat rows."""
    with pytest.raises(MissingFile, match="in-doubt/1-1"):
        pulled(staging, Service(), excludes=["in-doubt/1-1"])
