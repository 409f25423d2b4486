"""States of parts of the scope, as the rows of the ledger have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.ledger import LedgerFault, LedgerRow, Mark, collect, load
from tools import capability_data
from tools.capability_data import list_capabilities

if TYPE_CHECKING:
    from collections.abc import Mapping

ROWS = (
    LedgerRow("ID-1", "s", "closed"),
    LedgerRow("ID-2", "s", "begun", "half of it is missing"),
    LedgerRow("ID-3", "s", "open", "it is not built"),
    LedgerRow("CHN-1", "s", "closed"),
    LedgerRow("CHN-2", "s", "closed"),
)
MARKS = tuple(Mark(name, "tests/test_it.py:1") for name in ("ID-1", "ID-2", "CHN-1", "CHN-2"))


def show(monkeypatch: pytest.MonkeyPatch, parts: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """State and reasons of each part."""
    monkeypatch.setattr(capability_data, "SCOPE", {"item": ("Item", parts)})
    [item] = list_capabilities(ROWS, MARKS)
    return {"item": (item.state,)} | {one.name: (one.state, *one.reasons) for one in item.parts}


@pytest.mark.requirement("ID-17")
def test_part_is_supported_where_each_of_its_rows_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = {"all": "ID-1 CHN-*", "half": "ID-2", "some": "ID-1 ID-3", "none": "ID-3"}
    assert show(monkeypatch, parts) == {
        "item": ("adapted",),
        "all": ("supported",),
        "half": ("adapted", "half of it is missing"),
        "some": ("adapted", "it is not built"),
        "none": ("unavailable", "it is not built"),
    }
    assert show(monkeypatch, {"all": "CHN-*"})["item"] == ("supported",)


@pytest.mark.requirement("ID-17")
def test_part_that_rests_on_no_row_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LedgerFault, match="CHN-3"):
        show(monkeypatch, {"gone": "CHN-3"})


@pytest.mark.requirement("ID-17")
def test_scope_has_its_ten_items_and_names_existing_rows() -> None:
    rows = {row.id for row in load()}
    items = list_capabilities(load(), collect())
    assert len(items) == 10
    assert all(rows.issuperset(part.requirements) for item in items for part in item.parts)
