"""The WARNINGs of a query that ends: the messages that it leaves, and to whom.

Pure but for the log: numbers in, one WARNING out, or none.
"""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)
_CLOCK_SECONDS = 1.0  # clocks that are set by NTP differ by less


def warn_of_acks(subscription: str, batches: int, acks: int) -> None:
    """Say that committed batches have acks that were not accepted."""
    if batches:
        _log.warning(
            "stopped with up to %d acks of %d committed batches of `%s` not accepted; they are sent when the query "
            "starts again",
            acks,
            batches,
            subscription,
        )


def warn_of_leases(subscription: str, seconds: float) -> None:
    """Say that a run which has not ended well may hold messages for so many seconds."""
    if seconds > 0:
        _log.warning(
            "an earlier run of the query was killed or ended within a batch: messages of `%s` that it had received and "
            "not staged may be delivered in up to %.0f s only, and this run does not wait for them; start the query "
            "again then",
            subscription,
            seconds,
        )


def warn_of_clock(subscription: str, seconds: float) -> None:
    """Say that a message was published so many seconds from now, by the service's clock, and was left for that."""
    if seconds > _CLOCK_SECONDS:
        _log.warning(
            "this machine's clock is %.0f s or more behind Pub/Sub's, and messages of `%s` were not read for that: "
            "`availableNow` and `once` read what was published before their start by this clock; set it",
            seconds,
            subscription,
        )


def warn_of_one_batch(subscription: str) -> None:
    """Say that a query which Spark has run for one batch alone has read that, and that there may be more."""
    _log.warning(
        "the query has read one batch of `%s`, and there may be more: with `once` Spark runs one batch of up to "
        "maxMessagesPerTrigger, as with `availableNow` on 4.0 and 4.1 and where another source of the query does not "
        "support it; start the query again",
        subscription,
    )


def warn_of_kept_subscription(subscription: str, why: str) -> None:
    """Say that a subscription which the query was to delete is left."""
    _log.warning(
        "`%s` is not deleted (deleteSubscriptionOnStreamStop): %s; delete it yourself when you do not need its "
        "messages",
        subscription,
        why,
    )
