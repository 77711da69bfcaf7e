"""Claims: one part of a batch has the row of an id, the same one however often it is asked for."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pubsub_spark.errors import StagingError
from pubsub_spark.read import claims
from pubsub_spark.read.recent_ids import is_in, merged
from pubsub_spark.read.staging import Staging
from tests.unit.read.service import SUBSCRIPTION, ids


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(str(tmp_path), SUBSCRIPTION, uuid.uuid4().hex)


def given(staging: Staging, part: int, texts: str) -> str:
    """The ids that a part gives, after it has claimed them."""
    earlier = claims.claim(staging, 1, part, merged([ids(*texts)]))
    return "".join(text for text, found in zip(texts, is_in(ids(*texts), earlier), strict=True) if not found)


def test_the_first_claim_of_an_id_has_its_row(staging: Staging):
    """In the order of the claims; a part that is read again gives the same."""
    assert ["abc", "d", "e"] == [given(staging, 3, "abc"), given(staging, 1, "bcd"), given(staging, 2, "ade")]
    assert ["d", "e", "abc"] == [given(staging, 1, "bcd"), given(staging, 2, "ade"), given(staging, 3, "abc")]
    assert [3, 1, 2] == list(claims.of_batch(staging, 1, range(1, 4)))


def test_each_id_is_given_once_by_parts_at_once(staging: Staging):
    """Eight tasks that claim the same ids at the same time, each twice as retries do."""
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda n: (n % 8, given(staging, n % 8, "abcdefgh"[n % 8 :] + "xyz")), range(16)))

    assert sorted("abcdefghxyz") == sorted("".join(dict(results).values()))
    assert len(set(results)) == 8


def test_claims_of_a_deleted_batch_are_a_sentence(staging: Staging, monkeypatch: pytest.MonkeyPatch):
    """A straggler finds that its claim exists, and then that it does not."""
    monkeypatch.setattr(Staging, "create", lambda *_: False)

    with pytest.raises(StagingError, match=r"were deleted .* while part 1 was read; Spark tries the task again"):
        given(staging, 1, "a")
