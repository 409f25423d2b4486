"""Counts as text."""

from __future__ import annotations

import pytest

from passerelle.core.wire.display import format_count


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks"), (12_345, "12,345 tasks")]
)
def test_count_of_one_is_singular(count: int, said: str) -> None:
    assert format_count(count, "task") == said


def test_a_word_may_have_a_form_of_its_own() -> None:
    assert format_count(1, "primary", "primaries") == "1 primary"
    assert format_count(3, "primary", "primaries") == "3 primaries"
