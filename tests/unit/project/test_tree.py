"""The tree of the unit tests: a file for a module, at the module's place."""

from __future__ import annotations

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
