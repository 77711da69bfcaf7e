"""The command `python -m tests.simulation`: histories of consecutive seeds, or one seed with its whole timeline."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.simulation import exhaustive, history, runner


def main() -> int:
    """Run histories as the arguments ask. The number of those that broke an invariant is the exit code, 0 or 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--histories", type=int, default=1000, help="how many seeds")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--show", action="store_true", help="run this one seed and print its timeline")
    parser.add_argument("--exhaustive", action="store_true", help="enumerate the histories of two messages instead")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # the timeline says what happened
    began = time.monotonic()
    if arguments.show:
        outcome = history.run(history.Plan(arguments.seed))
        _say("\n".join(outcome.record.lines()))
        _say(f"faults: {outcome.rates}\nbroken: {outcome.violation}")
        return int(outcome.violation is not None)
    if arguments.exhaustive:
        summary = exhaustive.run()
    else:
        summary = runner.run_parallel(arguments.seed, arguments.histories, arguments.jobs)
    for failure in summary.failures:
        _say(failure)
    _say(f"{summary}\n{time.monotonic() - began:.0f} s, {'FAILED' if summary.failures else 'no invariant broken'}")
    return int(bool(summary.failures))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
