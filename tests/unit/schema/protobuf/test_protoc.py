"""The compiler of `.proto` texts: the place of an error, the time, and the effect of a failure."""

from __future__ import annotations

import sys
import time

import pytest

from pubsub_spark.schema.definition import InvalidSchema
from pubsub_spark.schema.protobuf import parse, protoc


@pytest.fixture(autouse=True)
def nothing_compiled():
    """Clear the compiled texts, so that each test compiles again."""
    protoc.run_compiler.cache_clear()


def compiled_within(seconds: float, text: str) -> str | None:
    """Return the complaint about a text, or None. Its compilation must take less than `seconds`."""
    started = time.monotonic()
    try:
        parse(text)
    except InvalidSchema as error:
        return str(error)
    finally:
        assert time.monotonic() - started < seconds
    return None


@pytest.mark.parametrize("count", [30, 1_000, 10_000])
def test_leading_block_comments_take_no_time(count):
    """The search for `syntax` behind many block comments takes time linear in the text."""
    comments = "/* licence */\n" * count

    assert None is compiled_within(20, f"{comments}message M {{}}")
    assert (
        compiled_within(20, f"{comments}message M {{ Foo a = 1; }}")
        == f'The definition is wrong at line {count + 1}, column 13: Expected "required", "optional", or "repeated"'
    )
    assert str(compiled_within(20, f'{comments}edition = "2023"; message M {{}}')).startswith(
        "The definition is of an edition"
    )


@pytest.mark.parametrize("unit", ["/*", "*/ /*", '"\\', "'", "//", "/", "{}", "\\\n", " ", "/* x */ edition"])
def test_any_text_of_the_greatest_length_is_looked_through_in_seconds(unit):
    """The check of a text and its compilation take time in proportion to it."""
    compiled_within(protoc.TIMEOUT_SECONDS + 30, unit * (protoc.MAX_BYTES // len(unit)))


def test_line_and_column_are_those_of_the_text():
    """An error has the text's line and column, also with a byte order mark, without `syntax`, and after comments."""
    assert (
        compiled_within(20, "\ufeff/* a\n   b */ // c\nmessage M {\n  optional Foo a = 1;\n}\n")
        == 'The definition is wrong at line 4, column 12: "Foo" is not defined'
    )


def test_a_definition_that_imports_itself_is_refused():
    """A definition that imports itself is refused, although the compiler reports no line for it."""
    assert (
        compiled_within(20, 'syntax = "proto3"; import "schema.proto"; message M {}')
        == "The definition is wrong: File recursively imports itself: schema.proto -> schema.proto"
    )


@pytest.mark.parametrize("name", ["/dev/zero", "/etc/passwd", "schema.proto/x", "pyproject.toml", "any.proto"])
def test_no_file_of_the_machine_can_be_imported(name):
    """A schema can import the well-known types, but no file of the machine."""
    assert str(compiled_within(20, f'import "{name}"; message M {{}}')).startswith(f"The definition imports `{name}`")


def test_a_text_is_compiled_once():
    """The first compilation of a text costs a process, the next ones nothing. Another text has a process of its own."""
    text = 'syntax = "proto3"; message M { int32 a = 1; }'
    first, second = parse(text), parse(text)

    assert first.file == second.file
    assert (1, 1) == protoc.run_compiler.cache_info()[:2]


def test_a_crash_of_the_compiler_is_an_invalid_definition(monkeypatch):
    """A crash of the compiler ends only its own process, and the definition is invalid."""
    monkeypatch.setattr(protoc, "COMMAND", "import os; os.abort()")

    assert compiled_within(20, "message M {}") == "The definition cannot be compiled: protoc was ended by signal 6"


def test_a_compiler_that_does_not_end_is_stopped(monkeypatch):
    """A compilation that does not end is stopped, and the definition is invalid."""
    monkeypatch.setattr(protoc, "COMMAND", "import time; time.sleep(60)")
    monkeypatch.setattr(protoc, "TIMEOUT_SECONDS", 0.5)

    assert compiled_within(20, "message M {}") == "The definition cannot be compiled: protoc did not end in 0.5 seconds"


def test_a_compiler_that_cannot_start_says_why(monkeypatch):
    """The error of a compiler that cannot start has the last line of its standard error."""
    monkeypatch.setattr(protoc, "COMMAND", "import sys; sys.exit('no compiler here')")

    assert compiled_within(20, "message M {}") == "The definition cannot be compiled: no compiler here"


def test_the_compiler_is_found_where_this_process_finds_modules(monkeypatch, tmp_path):
    """Folders that a cluster adds to `sys.path` are searched. Python's environment variables do not matter."""
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])

    assert None is compiled_within(20, "message M {}")
