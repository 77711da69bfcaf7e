"""The projection of values onto the columns of another revision: by name, at any depth."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.codec.projection import IncompatibleTypeError, project

INT, LONG, TEXT = pa.int32(), pa.int64(), pa.string()
REQUIRED = pa.field("a", INT, nullable=False)


def struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct(list(fields.items()))


@pytest.mark.parametrize(
    ("before", "value", "now", "expected"),
    [
        (struct(a=INT), {"a": 1}, struct(a=INT), {"a": 1}),
        (struct(a=INT), {"a": 1}, struct(a=INT, b=TEXT), {"a": 1, "b": None}),
        (struct(a=INT, b=TEXT), {"a": 1, "b": "x"}, struct(b=TEXT), {"b": "x"}),
        (struct(a=INT, b=TEXT), {"a": 1, "b": "x"}, struct(b=TEXT, a=INT), {"b": "x", "a": 1}),
        (struct(a=INT), {"a": 1}, struct(), {}),
        (struct(s=struct(a=INT)), {"s": None}, struct(s=struct(a=INT, b=TEXT)), {"s": None}),
        (struct(s=struct(a=INT)), {"s": {"a": 1}}, struct(s=struct(b=TEXT)), {"s": {"b": None}}),
        (
            struct(s=pa.list_(struct(a=INT))),
            {"s": [{"a": 1}, None]},
            struct(s=pa.list_(struct(a=INT, b=TEXT))),
            {"s": [{"a": 1, "b": None}, None]},
        ),
        (
            struct(s=pa.map_(TEXT, struct(a=INT, b=TEXT))),
            {"s": [("k", {"a": 1, "b": "x"})]},
            struct(s=pa.map_(TEXT, struct(b=TEXT))),
            {"s": [("k", {"b": "x"})]},
        ),
        (pa.struct([REQUIRED]), {"a": 1}, struct(a=INT), {"a": 1}),
    ],
    ids=["same", "new field", "gone field", "order", "no field", "null", "nested", "list", "map", "now nullable"],
)
def test_fields_are_taken_by_name(before: pa.DataType, value: Any, now: pa.DataType, expected: Any):
    """Kept fields keep their values, new ones are null, others are left out. Null rows stay null, also in slices."""
    projected = project(pa.array([value, None, value, value], before).slice(1, 2), now)

    projected.validate(full=True)
    assert now == projected.type
    assert [None, expected] == projected.to_pylist()


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        (struct(a=INT), struct(a=LONG), "`value.a` was int32 and is int64"),
        (struct(a=INT), pa.struct([REQUIRED]), "`value.a` was nullable and is not"),
        (struct(b=INT), pa.struct([REQUIRED]), "`value.a` is new and cannot be null"),
        (struct(s=pa.list_(INT)), struct(s=pa.list_(LONG)), "`value.s[]` was int32 and is int64"),
        (struct(s=pa.map_(TEXT, INT)), struct(s=pa.map_(TEXT, LONG)), "`value.s{}` was int32 and is int64"),
    ],
)
def test_other_types_are_refused_by_the_types_alone(before: pa.DataType, now: pa.DataType, message: str):
    """An array without rows is enough to check that a projection exists."""
    with pytest.raises(IncompatibleTypeError) as caught:
        project(pa.nulls(0, before), now)
    assert message == str(caught.value)


_TYPES = st.recursive(
    st.sampled_from([INT, TEXT]),
    lambda inner: st.one_of(
        inner.map(lambda type_: pa.list_(pa.field("element", type_))),
        inner.map(lambda type_: pa.map_(TEXT, type_)),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(lambda fields: pa.struct(list(fields.items()))),
    ),
    max_leaves=8,
)


def _values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(type_):
        return st.none() | st.fixed_dictionaries({field.name: _values(field.type) for field in type_})
    if pa.types.is_map(type_):
        return st.none() | st.lists(st.tuples(st.sampled_from("kl"), _values(type_.item_type)), max_size=2)
    if pa.types.is_list(type_):
        return st.none() | st.lists(_values(type_.value_type), max_size=3)
    return st.none() | (st.integers(-5, 5) if type_ == INT else st.sampled_from("xyz"))


def _with_field(type_: pa.DataType) -> pa.DataType:
    """Return the type with one more field in each struct."""
    if pa.types.is_struct(type_):
        return pa.struct([pa.field("new", TEXT), *((field.name, _with_field(field.type)) for field in type_)])
    if pa.types.is_map(type_):
        return pa.map_(type_.key_type, _with_field(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", _with_field(type_.value_type)))
    return type_


@given(st.data())
def test_a_field_more_and_back_changes_nothing(data: st.DataObject):
    """Fields that are added to each struct and left out again do not change the values."""
    type_ = data.draw(_TYPES)
    values = pa.array(data.draw(st.lists(_values(type_), max_size=4)), type_)

    wider = project(values, _with_field(type_))
    wider.validate(full=True)
    assert values.to_pylist() == project(wider, type_).to_pylist()
