"""A filter's verdict equals that of a naive evaluator of the same expression."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.emulator.resources.filter import MAX_BYTES
from pubsub_spark.emulator.resources.filter import compile as compile_filter

_KEYS = st.sampled_from(["a", "b-c", "d e", 'q"'])
_VALUES = st.sampled_from(["", "x", "xy", 'x"\\', "é\n"])
_LEAVES = st.tuples(st.sampled_from([":", "=", "!=", "hasPrefix"]), _KEYS, _VALUES)
_TREES: st.SearchStrategy[Any] = st.recursive(
    _LEAVES,
    lambda trees: st.one_of(
        st.tuples(st.sampled_from(["NOT ", "-"]), trees),
        st.tuples(st.sampled_from(["AND", "OR"]), st.lists(trees, min_size=2, max_size=3)),
    ),
    max_leaves=5,
)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _written(tree: Any) -> str:
    match tree:
        case (":", key, _):
            return f"attributes:{_quoted(key)}"
        case ("hasPrefix", key, value):
            return f"hasPrefix(attributes.{_quoted(key)}, {_quoted(value)})"
        case (("=" | "!=") as comparator, key, value):
            return f"attributes.{_quoted(key)} {comparator} {_quoted(value)}"
        case (("AND" | "OR") as joint, terms):
            return "(" + f" {joint} ".join(map(_written, terms)) + ")"
        case (negation, term):
            return f"({negation}{_written(term)})"
    raise AssertionError(tree)


def _evaluated(tree: Any, attributes: dict[str, str]) -> bool:
    match tree:
        case (":", key, _):
            return key in attributes
        case ("hasPrefix", key, value):
            return key in attributes and attributes[key][: len(value)] == value
        case ("=", key, value):
            return key in attributes and attributes[key] == value
        case ("!=", key, value):
            return not (key in attributes and attributes[key] == value)
        case ("AND", terms):
            return False not in [_evaluated(term, attributes) for term in terms]
        case ("OR", terms):
            return True in [_evaluated(term, attributes) for term in terms]
        case (_, term):
            return not _evaluated(term, attributes)
    raise AssertionError(tree)


@given(
    _TREES.filter(lambda tree: len(_written(tree).encode()) <= MAX_BYTES),
    st.dictionaries(_KEYS, _VALUES),
)
def test_filter_agrees_with_a_naive_evaluator(tree: Any, attributes: dict[str, str]) -> None:
    """Whatever the expression and the attributes, the compiled predicate and the naive evaluator agree."""
    assert _evaluated(tree, attributes) is compile_filter(_written(tree))(attributes)


@given(st.text(alphabet='atribues:.()"=!NOTANDOR -hPfx,\\é\n', max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text breaks the reader in any way but ValueError, and a filter that it reads returns a verdict."""
    try:
        predicate = compile_filter(text)
    except ValueError:
        return
    assert predicate({"a": "b"}) in (True, False)
