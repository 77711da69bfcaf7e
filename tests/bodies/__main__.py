"""Count all cases of all bodies, and keep the counts in docs/bodies.json: python -m tests.bodies [BODY ...]"""

from __future__ import annotations

import json
import sys
import time

from tests.bodies.test_bodies import BODIES
from tests.conftest import ROOT


def main(names: list[str]) -> int:
    """Print the counts as they are known and return 1 if a case is unexplained."""
    counts = []
    for name, body in BODIES.items():
        if names and name not in names:
            continue
        began = time.monotonic()
        for counted in body.count(whole=True):
            differ = counted.differences.total()
            print(f"{counted.body}: {counted.agree:,} agree, {differ:,} differ as documented, ", end="")  # noqa: T201
            print(f"{len(counted.unexplained)} unexplained, {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
            print("".join(f"  {case}\n" for case in counted.unexplained), end="")  # noqa: T201
            counts.append(counted)
    if not names:
        rows = [{name: value for name, value in vars(each).items() if name != "unexplained"} for each in counts]
        (ROOT / "docs" / "bodies.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    return int(any(each.unexplained for each in counts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
