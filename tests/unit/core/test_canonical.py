"""The canonical form: one value has one text, whichever writer produced it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.errors import InvalidInput
from passerelle.core.wire.canonical import canonicalize, digest
from passerelle.core.wire.json import Json

_json: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below, max_size=3)
    ),
    max_leaves=10,
)


def test_whole_floats_and_integers_agree() -> None:
    assert canonicalize({"n": 42}) == canonicalize({"n": 42.0}) == b'{"n":42}'
    assert digest([-0.0]) == digest([0])


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=3), st.integers(0, 9)
    )
)
def test_the_order_of_keys_does_not_count(value: dict[str, Json]) -> None:
    assert digest(dict(reversed(value.items()))) == digest(value)


@given(_json)
def test_every_ordinary_value_has_a_digest(value: Json) -> None:
    assert digest(value).removeprefix("sha256:").isalnum()


@pytest.mark.parametrize(
    "value", [2**53, -(2**53), 2**70, float("nan"), float("inf"), "\ud800", {"\ud800": 1}]
)
def test_value_outside_of_portable_json_is_refused(value: Json) -> None:
    with pytest.raises(InvalidInput):
        canonicalize([value])


def test_a_large_number_travels_as_text() -> None:
    assert canonicalize(str(2**70)) == b'"1180591620717411303424"'
