"""The loss of batches that were acknowledged and deleted, when Spark asks for them: an error, or a WARNING.

`failOnDataLoss=false` makes it the WARNING. Runs on the driver. It happens if a checkpoint is older than the last
acknowledged batch: a backup, a copy, a lost commit, asynchronous progress tracking.
"""

from __future__ import annotations

import logging

from ..errors import StagingError
from ..options import ReadOptions
from .staging.area import Staging

_log = logging.getLogger(__name__)


def check_not_behind(options: ReadOptions, batch: int, staging: Staging) -> int:
    """The last acknowledged batch; the loss is reported when it is later than `batch`, where the checkpoint is."""
    last_acknowledged = staging.last_acknowledged()
    if batch < last_acknowledged:
        _report(
            options,
            f"The checkpoint of `{options.subscription}` is at batch {batch}, but batches up to {last_acknowledged} "
            "were acknowledged and deleted",
        )
    return last_acknowledged


def is_deleted(options: ReadOptions, batch: int, staging: Staging) -> bool:
    """Whether a batch that Spark asks for was acknowledged and deleted, which is reported."""
    deleted = batch <= staging.last_acknowledged()
    if deleted:
        _report(
            options,
            f"Spark asks again for batch {batch} of `{options.subscription}`, which was acknowledged and deleted",
        )
    return deleted


def _report(options: ReadOptions, what: str) -> None:
    if options.fail_on_data_loss:
        raise StagingError(
            f"{what}, so their rows cannot be delivered again. The checkpoint is a backup or a copy, it lost a commit, "
            "or the query ran with `asyncProgressTrackingEnabled`, which this source does not support. Start a new "
            "checkpoint location, or set failOnDataLoss=false to continue without these rows."
        )
    _log.warning("%s; going on without them (failOnDataLoss=false)", what)
