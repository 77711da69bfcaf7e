"""One script, two emulators: every answer is the same, or the difference is in the table with its reason."""

from __future__ import annotations

import pytest

from tests.conformance.differences import DIFFERENCES, FILLED_IN, Codes
from tests.conformance.script import STEPS

# Steps that no URL can express, because the name in its path is missing or is no name.
INEXPRESSIBLE = frozenset({"a topic has no name", "topics of no project are listed"})


def without_filled_in(answer):
    """Return a Subscription without the fields that only the service, and we, fill in."""
    if isinstance(answer, dict) and "ackDeadlineSeconds" in answer:
        return {name: value for name, value in answer.items() if name not in FILLED_IN}
    return answer


@pytest.mark.parametrize("step", [step.name for step in STEPS])
def test_step_is_answered_alike(answers, step):
    """Code and content of the answer are those of Google's emulator, except for the differences of the table."""
    ours, google = answers.ours[step], answers.google[step]
    difference = DIFFERENCES.get(step)

    if isinstance(difference, Codes):
        assert (difference.ours, difference.google) == (ours.code, google.code), (ours, google)
        return
    assert google.code == ours.code, (ours, google)
    mine, theirs = without_filled_in(ours.answer), without_filled_in(google.answer)
    if difference is None:
        assert theirs == mine
    else:
        assert difference.fields == {name for name in mine | theirs if mine.get(name) != theirs.get(name)}


@pytest.mark.parametrize("step", [step.name for step in STEPS])
def test_http_says_what_grpc_says(ours, step):
    """Each step's answer by HTTP is the one by gRPC."""
    by_grpc, by_http = ours

    if step in INEXPRESSIBLE:
        assert step not in by_http
        return
    assert by_grpc[step] == by_http[step]


def test_table_names_steps_of_the_script():
    """Every difference belongs to a step, and no step's name is used twice."""
    names = [step.name for step in STEPS]

    assert len(names) == len(set(names))
    assert set() == DIFFERENCES.keys() - set(names)


def test_defaults_are_filled_in(answers):
    """The fields that the table leaves out of the comparison are in our answer and not in Google's."""
    ours, google = (each["a subscription is created"].answer for each in (answers.ours, answers.google))

    assert {"state": "ACTIVE", "expirationPolicy": {"ttl": "2678400s"}} == {name: ours[name] for name in FILLED_IN}
    assert set() == FILLED_IN.keys() & google.keys()
