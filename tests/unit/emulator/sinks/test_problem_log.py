"""Log messages of problems that last."""

from __future__ import annotations

from pubsub_spark.emulator.sinks.problem_log import ProblemLog


def test_a_problem_is_said_once(caplog):
    """Another problem is logged again, but the same one in other words is not. Its end is also logged."""
    problem = ProblemLog("x", "exporting")
    for sentence in (
        "Cannot write: in 1 ms",
        "Cannot write: in 2 ms",
        "No table `a.b:c`; make it.",
        "Cannot write (3).",
    ):
        problem.occurred(sentence)
    problem.ended()
    problem.ended()
    problem.occurred("Cannot write (4).")

    assert [
        "x is not exporting now: Cannot write: in 1 ms",
        "x is not exporting now: No table `a.b:c`; make it.",
        "x is not exporting now: Cannot write (3).",
        "x is exporting again.",
        "x is not exporting now: Cannot write (4).",
    ] == caplog.messages
