"""The replay of a batch that an earlier run staged: its manifest and its partitions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from ..errors import MissingFile
from .deduplication import Deduplication
from .partitions import Partition, replay_partitions
from .staging.area import Staging

_log = logging.getLogger(__name__)


def plan_replay(staging: Staging, deduplication: Deduplication, batch: int) -> Sequence[Partition]:
    """The partitions of a batch that an earlier run staged, which has a manifest then."""
    staged = staging.write_manifest(batch)
    with suppress(MissingFile):  # the batch has just been acknowledged and deleted
        deduplication.add_all(batch, staging.parts(batch))
    _log.warning("batch %d of `%s` is replayed from %d staged parts", batch, staging.subscription, len(staged))
    return replay_partitions(staging, batch, staged)
