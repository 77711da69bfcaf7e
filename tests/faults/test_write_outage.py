"""Writing through an outage: the small version of the benchmark, over gRPC, against a server with an outage."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "write_outage.py"
_KEYS = 3000
_THREADS_WITHOUT_KEYS = 4  # the task's, gRPC's, the scheduler's, and the benchmark's own that counts


@pytest.mark.timeout(180)
def test_ordering_keys_survive_an_outage():
    """However many keys await their retry, the task ends with a fixed number of threads and each key in its order."""
    command = [sys.executable, str(_BENCHMARK), "--keys", str(_KEYS), "--seconds", "2"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert 0 == run.returncode, run.stderr  # it counts keys, messages and their order itself

    found = re.search(r"(\d+) threads, .*?(\d+) retries", run.stdout)
    assert found is not None, run.stdout
    threads, retries = map(int, found.groups())
    assert threads <= _THREADS_WITHOUT_KEYS + 1
    assert retries >= _KEYS / 2
