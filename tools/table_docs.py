"""Draws the reference of the tables that an export has from the definitions of their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from passerelle.store.exports.tables.column import MONEY_DIGITS, MONEY_SCALE
from passerelle.store.exports.tables.session_rows import FORM, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.store.exports.tables.column import ColumnKind, Table

KINDS: Final[dict[ColumnKind, str]] = {
    "text": "text",
    "json": "text, JSON",
    "time": "timestamp (ms, UTC)",
    "count": "integer (64 bits)",
    "money": f"decimal ({MONEY_DIGITS}, {MONEY_SCALE})",
    "flag": "boolean",
}
_INTRODUCTION: Final = f"""# Tables of an export

Drawn from the definitions in `store/exports/tables/`; `make generate` writes it.
[Ask what was done](../operate/tables.md) says how the files are made, and has queries.

This is form {FORM}: the number stands in `export.json`, and in the metadata of each file as `passerelle.form`, beside
`passerelle.table`, `passerelle.version`, `passerelle.runtimeId` and `passerelle.at`. A column may be added within a
form; none is removed or changes its meaning. Columns with a question mark may be null.
"""


def render_tables() -> str:
    """The whole text of ``docs/reference/table-columns.md``."""
    return "\n".join([_INTRODUCTION, *(line for table in TABLES for line in _render(table))])


def _render(table: Table[Any]) -> Iterator[str]:
    yield from (f"## {table.name}", "", f"{table.meaning} `{table.file}`.", "")
    yield from ("| column | type | |", "|---|---|---|")
    for one in table.columns:
        mark = "?" if one.optional else ""
        yield f"| `{one.name}{mark}` | {KINDS[one.kind]} | {one.meaning} |"
    yield ""
