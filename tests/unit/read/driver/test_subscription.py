"""A start that creates the subscription while another query does the same."""

from typing import Any

import pytest
from google.pubsub_v1 import types

from pubsub_spark.errors import ForbiddenError, MissingError, ResourceError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver import subscription
from tests.unit.read.service import SUBSCRIPTION

TOPIC = "projects/test-project/topics/topic"
OPTIONS = ReadOptions.parse({"subscriptionId": SUBSCRIPTION, "topicId": TOPIC}, {})


class Admin:
    """The subscription is missing at the first look. Another process creates it first, or creating it is forbidden."""

    def __init__(self, looks: list[Any], error: Exception) -> None:
        self.looks = looks
        self.error = error

    def subscription(self, name: str) -> Any:
        found = self.looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def create(self, *_: Any) -> Any:
        raise self.error

    def check_permission(self, *_: str) -> None:
        pass


def test_subscription_that_another_query_created_is_taken():
    """Two queries start at once, or the answer to our first try was lost."""
    found = types.Subscription(name=SUBSCRIPTION, topic=TOPIC)
    admin: Any = Admin([MissingError("not there"), found], ResourceError("exists"))
    subscription.prepare(admin, OPTIONS, is_first=True)

    assert [] == admin.looks


@pytest.mark.parametrize("look", [MissingError("not there"), ForbiddenError("not for you")])
def test_subscription_that_cannot_be_created_says_why(look: Exception):
    """The sentence is that of the creation, not that of the second look."""
    admin: Any = Admin([MissingError("not there"), look], ResourceError("the topic is gone"))

    with pytest.raises(ResourceError, match="the topic is gone"):
        subscription.prepare(admin, OPTIONS, is_first=True)
