"""AsyncAPI documents as values with places: references, and documents that cannot be read. Files, without a service."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pubsub_spark.asyncapi.document import load
from pubsub_spark.errors import AsyncApiError


def written(folder: Path, text: str, name: str = "api.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_references_are_followed_inside_and_to_files(tmp_path: Path):
    """A reference leads to a place in the document or another file, or to a whole `.proto`."""
    written(tmp_path, '{"a": {"b": 7}}', "other.json")
    written(tmp_path, 'syntax = "proto3";', "flight.proto")
    document = load(
        written(
            tmp_path,
            "asyncapi: 3.0.0\nx: {$ref: '#/y'}\ny: {z: 1}\nfile: {$ref: './other.json#/a/b'}\n"
            "proto: {$ref: flight.proto}\n",
        )
    )

    assert 1 == document.get("x", "z").value
    assert 7 == document.get("file").value
    assert 'syntax = "proto3";' == document.get("proto").value
    assert [] == document.documents.problems


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("#/nowhere", "line 3, `x`: `$ref` to `#/nowhere` leads nowhere."),
        ("https://example.com/a.yaml", "would need the network. Refer to a file."),
        ("missing.yaml", "cannot be read: No such file or directory."),
        ("#/x", "line 3, `x`: `$ref` to `#/x` leads back to itself."),
        ("#/circle", "line 3, `x`: `$ref` to `#/x` leads back to itself."),
        ("#circle", "line 3, `x`: `$ref` to `#circle` leads nowhere."),
    ],
)
def test_reference_that_leads_nowhere_has_its_place(tmp_path: Path, reference: str, sentence: str):
    """A wrong reference is an error with line and path. A circle of references ends."""
    text = f"asyncapi: 3.0.0\ncircle: {{$ref: '#/x'}}\nx: {{$ref: '{reference}'}}\n"
    document = load(written(tmp_path, text))

    assert not document.get("x")
    [problem] = document.documents.problems[:1]
    assert sentence in problem


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "is neither YAML nor JSON"),
        ("asyncapi: 3.0.0\na: 1\na: 2\n", "`a` stands twice in one mapping, in line 3"),
        ("- 1\n", "this must be a mapping with `asyncapi`"),
        ("asyncapi: 1.2.0\n", "line 1, `asyncapi`: `asyncapi` must be a version 2.x or 3.x, got `1.2.0`"),
        ("info: {}\n", "`asyncapi` must be a version 2.x or 3.x, got ``"),
        ("", "this must be a mapping with `asyncapi`"),
        (
            "asyncapi: 3.0.0\na: &a [*a]\n",
            "is nested too deeply, or an alias (`*name`) is inside the value that it names",
        ),
        ("asyncapi: 3.0.0\na: {<<: 1}\n", "`<<` in line 2 names no mapping"),
    ],
)
def test_document_that_is_none_is_refused(tmp_path: Path, text: str, sentence: str):
    """A text that is not an AsyncAPI document is refused with the reason."""
    with pytest.raises(AsyncApiError) as refused:
        load(written(tmp_path, text))
    assert sentence in str(refused.value)


def test_missing_file_is_a_sentence(tmp_path: Path):
    """The error for a missing document names it."""
    with pytest.raises(AsyncApiError, match="cannot be read: No such file or directory"):
        load(tmp_path / "none.yaml")


def test_few_lines_of_aliases_are_not_millions_of_values(tmp_path: Path):
    """A document whose aliases repeat each other without end is refused instead of unfolded."""
    lines = [f"{name}: &{name} [{', '.join([f'*{before}'] * 20)}]" for before, name in itertools.pairwise("abcdefgh")]
    path = written(tmp_path, "\n".join(["asyncapi: 3.0.0", "a: &a 1", *lines]))

    with pytest.raises(AsyncApiError, match="with the values that its aliases repeat, it has more than 500,000 values"):
        load(path)


def test_yaml_that_is_not_json(tmp_path: Path):
    """A date is the text as written, and a merge key brings the entries of another mapping."""
    text = "asyncapi: 3.0.0\nday: 2026-01-31\nx: &x {a: 1, b: 1}\ny: {<<: *x, a: 2}\nz: {<<: [{b: 3}, *x]}\n"
    document = load(written(tmp_path, text))

    assert "2026-01-31" == document.get("day").value
    assert [{"a": 2, "b": 1}, {"a": 1, "b": 3}] == [document.get(name).value for name in "yz"]


def test_reference_with_an_escaped_name(tmp_path: Path):
    """A name in a `$ref` may be escaped as in a URL, and its `/` as in a JSON pointer."""
    document = load(written(tmp_path, "asyncapi: 3.0.0\n'user/{id}': {a: 1}\nx: {$ref: '#/user~1%7Bid%7D'}\n"))

    assert 1 == document.get("x", "a").value
