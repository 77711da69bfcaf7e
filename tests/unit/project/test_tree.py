"""The tree of the unit tests: a file for a module, at the module's place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "pubsub_spark"
UNIT = ROOT / "tests" / "unit"

# These tests are of no module but of the files of the repository.
OF_THE_PROJECT = "project"
# Aspects of a package that go through several of its modules.
ASPECTS = {
    "codec/avro/test_hostile.py",
    "codec/avro/test_legal_schemas.py",
    "codec/avro/test_revisions.py",
    "codec/avro/test_roots.py",
    "codec/protobuf/test_legal_schemas.py",
    "codec/protobuf/test_names.py",
    "codec/protobuf/test_well_known_names.py",
}

# Reads of the product's private names in tests: the memory of leases, and the parts and verbs of an emulator.
MAX_PRIVATE_READS = 10
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


def module_test_files():
    """Yield the test files that should have a module, as paths below tests/unit."""
    for path in sorted(UNIT.rglob("test_*.py")):
        place = path.relative_to(UNIT)
        if place.parts[0] != OF_THE_PROJECT:
            yield place


def has_module(place: Path) -> bool:
    """Return whether a test file is named for a module or a package at its place."""
    module = PACKAGE / place.parent / place.stem.removeprefix("test_")
    return module.with_suffix(".py").exists() or module.is_dir()


def test_unit_tests_mirror_the_package():
    """Each file of unit tests is at its module's place, under the module's name."""
    strangers = [place.as_posix() for place in module_test_files() if not has_module(place)]

    assert ASPECTS == set(strangers)


def test_no_folder_of_unit_tests_is_without_its_package():
    """Each folder of unit tests is a package of the product."""
    folders = {place.parent for place in module_test_files()}

    assert [] == [folder.as_posix() for folder in sorted(folders) if not (PACKAGE / folder).is_dir()]


def private_reads(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a test reads from other objects or modules, or sets there."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("self" | "cls") | ast.Call(ast.Name("super"))):
                pass
            case ast.Attribute(attr=name):
                yield name
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("pubsub_spark"):
                yield from (alias.name for alias in names)
            case ast.Call(ast.Name("getattr" | "setattr"), [ast.Name("self"), *_]):
                pass
            case ast.Call(
                ast.Name("getattr" | "setattr") | ast.Attribute(attr="setattr"), [_, ast.Constant(str(name)), *_]
            ):
                yield name


def test_few_private_names_are_read():
    """Tests read the product by its public names. The number of exceptions may only fall."""
    package = " ".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    known = {*re.findall(r"\b_[A-Za-z]\w*", package)} - OF_NAMED_TUPLES
    reads = [
        (path.relative_to(ROOT).as_posix(), name)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in private_reads(ast.parse(path.read_text()))
        if name in known
    ]

    assert len(reads) == MAX_PRIVATE_READS, reads
