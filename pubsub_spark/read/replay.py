"""The replay of a batch that an earlier run staged: its manifest, its repeated messages, its partitions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from .deduplication import Deduplication
from .partitions import Partition, replay_partitions
from .recent_ids import Digests
from .staging import MISSING, Staging, repeated_path

_log = logging.getLogger(__name__)


def plan_replay(staging: Staging, deduplication: Deduplication, batch: int) -> Sequence[Partition]:
    """The partitions of a batch that an earlier run staged, which has a manifest then."""
    staged = staging.write_manifest(batch)
    repeats: dict[int, Digests] = {}
    reader = None
    with suppress(*MISSING):  # the batch has just been acknowledged and deleted
        lengths = staging.parts(batch)
        repeats = deduplication.add_replayed(batch, lengths)
        reader = staging.footer(batch, 0, lengths[0]).reader if 0 in lengths else None
    for part, ids in repeats.items():
        staging.write_ids(repeated_path(batch, part), ids)
    _log.warning("batch %d of `%s` is replayed from %d staged parts", batch, staging.subscription, len(staged))
    return replay_partitions(staging, batch, staged, list(repeats), reader)
