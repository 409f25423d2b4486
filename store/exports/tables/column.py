"""What a table for analysis consists of: columns, each with its type, its meaning and where its value comes from.

Files, their schema and the reference page are drawn from these definitions and from nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar

import orjson

from passerelle.core.wire.times import parse_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.facts import ErrorDetail

R = TypeVar("R")
T = TypeVar("T")

ColumnKind: TypeAlias = Literal["text", "json", "time", "count", "money", "flag"]
CellValue: TypeAlias = str | int | Decimal | None
"""Of a ``time`` milliseconds since 1970, UTC."""
MONEY_DIGITS: Final = 20
"""Of an amount, six of them behind the point: all that whole millionths of 64 bits can say."""
MONEY_SCALE: Final = 6


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """A column. ``read`` gives its value of a row; one that is not ``optional`` is never null."""

    name: str
    kind: ColumnKind
    meaning: str
    read: Callable[[R], CellValue]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """A table: what one row is, and its columns in their order."""

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
    """What ``show`` makes of a member, or null where there is none."""

    def read_cell(row: R) -> CellValue:
        member = read(row)
        return None if member is None else show(member)

    return read_cell


def read_time(text: str | None) -> int | None:
    """The cell of a stored time; raises ValueError: the text is none."""
    return None if text is None else parse_ms(text)


def measure(start: str | None, end: str | None) -> int | None:
    """Milliseconds between two stored times; None where one of them is missing."""
    if start is None or end is None:
        return None
    return max(0, parse_ms(end) - parse_ms(start))


def write_json(members: object) -> str | None:
    """The cell of an open member; None where it is empty."""
    return orjson.dumps(members).decode() if members else None


def write_money(micros: int) -> Decimal:
    """Whole millionths as an amount."""
    return Decimal(micros).scaleb(-MONEY_SCALE)


def list_error(read: Callable[[R], ErrorDetail | None]) -> tuple[Column[R], ...]:
    """The columns of what went wrong."""

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
