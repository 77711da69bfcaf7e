"""The filter language, rule by rule. The property test compares whole expressions with a naive evaluator."""

from __future__ import annotations

import pytest

from pubsub_spark.emulator.resources.filter import compile as compile_filter

_COM = {"name": "com", "iana.org/language_tag": "en", "my-key": "1"}


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (True, ""),
        (True, "  "),
        (True, "attributes:name"),
        (False, "attributes:Name"),
        (True, 'attributes.name = "com"'),
        (True, 'attributes.name="com"'),
        (False, 'attributes.name = "COM"'),
        (False, 'attributes.name != "com"'),
        (True, 'attributes.name != "org"'),
        (True, 'attributes.missing != "org"'),
        (False, 'attributes.missing = ""'),
        (True, 'attributes:"iana.org/language_tag"'),
        (True, 'attributes."iana.org/language_tag" = "en"'),
        (True, 'attributes.my-key = "1"'),
        (True, 'hasPrefix(attributes.name, "co")'),
        (True, 'hasPrefix( attributes."name" , "" )'),
        (False, 'hasPrefix(attributes.missing, "")'),
        (False, 'hasPrefix(attributes.name, "om")'),
        (False, "NOT attributes:name"),
        (False, "-attributes:name"),
        (True, "- attributes:missing"),
        (True, "NOT (attributes:name AND attributes:missing)"),
        (False, "NOT attributes:name AND attributes:my-key"),
        (True, "attributes:missing OR attributes:name"),
        (False, "attributes:missing OR NOT attributes:name OR attributes:other"),
        (True, "attributes:name AND (attributes:missing OR attributes:my-key)"),
        (True, "((attributes:name))"),
        (True, "attributes:NOT OR attributes:name"),
    ],
)
def test_filter_decides(expected: bool, text: str) -> None:
    """Each construct of the language has the documented result on one message."""
    assert expected is compile_filter(text)(_COM)


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        ('say "hi"', r'"say \"hi\""'),
        ("back\\slash", r'"back\\slash"'),
        ("two\nlines", r'"two\nlines"'),
        ("é", r'"\u00e9"'),
        ("é", r'"\xe9"'),
        ("é", r'"\351"'),
        ("😀", r'"\ud83d\ude00"'),
        ("ünquoted", '"ünquoted"'),
    ],
)
def test_escapes_stand_for_characters(value: str, literal: str) -> None:
    """An escape sequence in a text is the character it names, in a value and in a key."""
    assert compile_filter(f"attributes.k = {literal}")({"k": value})
    assert compile_filter(f"attributes:{literal}")({value: ""})


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (13, "attributes:a or attributes:b"),
        (30, "attributes:a AND attributes:b OR attributes:c"),
        (0, "name = 1"),
        (0, "Attributes:a"),
        (15, "attributes.a = com"),
        (15, "attributes.a = 'com'"),
        (13, 'attributes.a > "b"'),
        (12, "attributes.a"),
        (11, "attributes:"),
        (11, "attributes:$"),
        (13, "attributes:a attributes:b"),
        (13, "(attributes:a"),
        (12, "attributes:a)"),
        (4, "NOT NOT attributes:a"),
        (17, r'attributes.a = "x\q"'),
        (16, r'attributes.a = "\ud83d"'),
        (15, 'attributes.a = "open'),
        (20, 'hasPrefix(attributes:a, "b")'),
        (22, "hasPrefix(attributes.a)"),
        (0, 'hasSuffix(attributes.a, "b")'),
        (16, "attributes:a AND"),
    ],
)
def test_invalid_filter_is_refused_with_its_position(position: int, text: str) -> None:
    """A filter outside the language is refused, with the position in the error message."""
    with pytest.raises(ValueError, match=rf"is not valid at position {position}: "):
        compile_filter(text)


def test_256_bytes_are_the_limit_not_256_characters() -> None:
    """The limit counts bytes of UTF-8, so `é` is two."""
    fits = 'attributes.a = "' + "é" * 119 + 'x"'

    assert 256 == len(fits.encode())
    assert compile_filter(fits)({"a": "é" * 119 + "x"})
    with pytest.raises(ValueError, match="257 bytes long, but the maximum is 256 bytes"):
        compile_filter(fits + " ")


def test_deepest_nesting_is_read() -> None:
    """As many parentheses as 256 bytes hold do not exhaust the stack."""
    text = "(" * 122 + "attributes:a" + ")" * 122

    assert 256 == len(text)
    assert compile_filter(text)({"a": ""})
