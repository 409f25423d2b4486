"""Definitions of tables for analysis: columns, each with its type, its meaning and the source of its value.

Files, their schema and the reference page are all generated from these definitions.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar

import orjson

from passerelle.core.frozen import frozen
from passerelle.core.wire.times import parse_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.facts import ErrorDetail

R = TypeVar("R")
T = TypeVar("T")

ColumnKind: TypeAlias = Literal["text", "json", "time", "count", "money", "flag"]
CellValue: TypeAlias = str | int | Decimal | None
"""A ``time`` is in milliseconds since 1970, UTC."""
MONEY_DIGITS: Final = 20
"""Digits of an amount, six of them after the point: enough for all 64-bit millionths."""
MONEY_SCALE: Final = 6


@frozen
class Column(Generic[R]):
    """A column. ``read`` returns its value for a row; a column that is not ``optional`` is never null."""

    name: str
    kind: ColumnKind
    meaning: str
    read: Callable[[R], CellValue]
    optional: bool = False


@frozen
class Table(Generic[R]):
    """A table: what one row is, and its columns in order."""

    name: str
    meaning: str
    columns: tuple[Column[R], ...]

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.name}.parquet"


def read_optional(
    read: Callable[[R], T | None], show: Callable[[T], CellValue]
) -> Callable[[R], CellValue]:
    """Applies ``show`` to a member; null if there is none."""

    def read_cell(row: R) -> CellValue:
        member = read(row)
        return None if member is None else show(member)

    return read_cell


def read_time(text: str | None) -> int | None:
    """The cell of a stored time; raises ValueError for invalid text."""
    return None if text is None else parse_ms(text)


def measure(start: str | None, end: str | None) -> int | None:
    """Milliseconds between two stored times; None if one of them is missing."""
    if start is None or end is None:
        return None
    return max(0, parse_ms(end) - parse_ms(start))


def write_json(members: object) -> str | None:
    """The cell of an open member; None if it is empty."""
    return orjson.dumps(members).decode() if members else None


def write_money(micros: int) -> Decimal:
    """Whole millionths as an amount."""
    return Decimal(micros).scaleb(-MONEY_SCALE)


def list_error(read: Callable[[R], ErrorDetail | None]) -> tuple[Column[R], ...]:
    """The columns of an error."""

    def column(name: str, meaning: str, show: Callable[[ErrorDetail], str | None]) -> Column[R]:
        return Column(name, "text", meaning, read_optional(read, show), optional=True)

    return (
        column("error_code", "Code of the last error.", lambda error: error.code),
        column(
            "error_category",
            "Where it came from: `peer`, `transport`, `protocol`, `timeout`, `policy`, `caller`, `store`, `internal`.",
            lambda error: error.category.value,
        ),
        column("error_message", "What it says.", lambda error: error.message),
    )
