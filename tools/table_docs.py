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

Generated from the definitions in `store/exports/tables/` by `make generate`.
[Tables for analysis](../operate/tables.md) describes how to create the files, with queries.

This is form {FORM}: the number is in `export.json`, and in the metadata of each file as `passerelle.form`, with
`passerelle.table`, `passerelle.version`, `passerelle.runtimeId` and `passerelle.at`. Within a form columns may be
added; none is removed or changes its meaning. Columns with a question mark may be null.
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
