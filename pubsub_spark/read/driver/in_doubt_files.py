"""The files of ids in doubt: written before a task reads them and before their parts are deleted, read by a restart."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from operator import itemgetter

from ...errors import DamagedFile
from ...names import DELETED_TOPIC
from ..staging.area import IN_DOUBT, Staging
from ..staging.ids import Digests, deserialized
from ..staging.part import Buffer
from .in_doubt import DOUBT_SECONDS, KEPT_SECONDS, IdRun, InDoubt
from .run import Run

_log = logging.getLogger(__name__)


def write_in_doubt(run: Run, planned: Iterable[IdRun] = ()) -> None:
    """Write the runs that have no file yet, and delete the files of runs that are no more.

    planned: runs that a batch will read, also if they were merged or compacted meanwhile.
    """
    with run.changed:
        in_doubt = run.ledger.in_doubt
        lost = in_doubt.compact(run.now())
        runs = {id_run.path: id_run for id_run in (*planned, *in_doubt.runs)}
        written = set(in_doubt.files)
        obsolete = in_doubt.obsolete(run.ledger.reads)
    if lost:
        _log.warning(
            "%d ids of messages of `%s` whose acks were not accepted are forgotten after %d days, or because there are "
            "more than %d: a redelivery of their messages is a row again",
            lost,
            run.subscription,
            KEPT_SECONDS // 86400,
            in_doubt.max_ids,
        )
    for id_run in runs.values():
        if id_run.path not in written:
            until = id_run.until - run.now() + run.runtime.wall()  # a standstill in between makes it later
            run.staging.write_ids(id_run.path, id_run.ids.digests, until=until, batch=id_run.batch, topic=run.topic)
    run.staging.delete_files(obsolete)
    with run.changed:
        in_doubt.files = (in_doubt.files | runs.keys()) - set(obsolete)


def read_in_doubt(
    staging: Staging, contents: dict[str, Buffer], start: int, topic: str | None, wall: float, now: float
) -> InDoubt:
    """Return the ids in doubt in the files of earlier runs. Delete those whose ids are not in doubt any more, and leave
    the others until the ids are written again (`write_in_doubt`).

    contents: by path, taken out as they are read: they may be large. start: the batch of the checkpoint. Ids of later
    batches were committed in a checkpoint that was put back. topic: of the subscription, if it is known, because
    message ids are unique within a topic. wall, now: the same moment in seconds since the epoch and on the lease clock.
    """
    found: list[tuple[float, str, Digests, int]] = []
    for path in sorted(contents):
        try:
            ids, metadata = deserialized(contents.pop(path), f"{staging.root}/{path}")
            until, batch = float(metadata["until"]), int(metadata["batch"])
        except (DamagedFile, KeyError, ValueError) as error:
            _log.warning("ids in doubt are lost, so redeliveries of their messages may be rows again: %s", error)
            staging.delete_file(path)
            continue
        is_same_topic = topic in (None, DELETED_TOPIC) or metadata.get("topic", topic) == topic
        if batch <= start and is_same_topic:
            found.append((until, path, ids, batch))
        else:
            staging.delete_file(path)
    in_doubt = InDoubt(f"{IN_DOUBT}/{staging.epoch}-")
    for until, path, ids, batch in sorted(found, key=itemgetter(0), reverse=True):  # of copies the latest time counts
        in_doubt.load(path, ids, batch, now + min(until - wall, DOUBT_SECONDS + 60))
    in_doubt.join(now)
    in_doubt.take_over()
    return in_doubt
