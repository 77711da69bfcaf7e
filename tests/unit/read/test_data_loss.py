"""The loss of acknowledged batches: an error that says what to do, or a WARNING."""

import logging
from pathlib import Path

import pytest

from pubsub_spark.errors import StagingError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read import data_loss
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import open_store
from tests.unit.read.service import SUBSCRIPTION


def test_loss_is_an_error_or_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """`failOnDataLoss=false` goes on; a checkpoint that is not behind is no loss."""
    staging = Staging(open_store(str(tmp_path)), SUBSCRIPTION, "stream")
    staging.begin_after(3)
    strict = ReadOptions.parse({"subscriptionId": SUBSCRIPTION}, {})
    lenient = ReadOptions.parse({"subscriptionId": SUBSCRIPTION, "failOnDataLoss": "false"}, {})

    assert 3 == data_loss.check_not_behind(strict, 3, staging)
    assert not data_loss.is_deleted(strict, 4, staging)
    with pytest.raises(StagingError, match=r"is at batch 2, but batches up to 3 were .* set failOnDataLoss=false") as e:
        data_loss.check_not_behind(strict, 2, staging)
    assert "`asyncProgressTrackingEnabled`" in str(e.value)
    with pytest.raises(StagingError, match="asks again for batch 3"):
        data_loss.is_deleted(strict, 3, staging)
    with caplog.at_level(logging.WARNING):
        assert data_loss.is_deleted(lenient, 3, staging)
    assert "going on without them (failOnDataLoss=false)" in caplog.text
