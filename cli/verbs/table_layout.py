"""Fits tables to a terminal: times become ages; if space is short, ids are abbreviated to unique suffixes.

Output to a pipe is not abbreviated. A short id is the end of the id; commands accept it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Final

from passerelle.core.wire.times import parse_ms

SHORTEST: Final = 8
GAP: Final = 2
_ID: Final = re.compile(r"[a-z]+_[0-9a-z]{20,40}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
_NARROWEST: Final = 8
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))

Row = Sequence[str]


def fit_table(titles: Row, rows: Sequence[Row], width: int, now_ms: int) -> list[list[str]]:
    """Returns the rows cut to a screen of ``width`` characters; the first row is the titles."""
    columns = [[title, *cells] for title, *cells in zip(titles, *rows, strict=True)]
    columns = [[_format_time(cell, now_ms) for cell in column] for column in columns]
    if _measure(columns) > width:
        columns = [_shorten_column(column) for column in columns]
    return fit_columns(columns, width)


def fit_columns(columns: Sequence[Row], width: int) -> list[list[str]]:
    """Returns the rows of columns, cut to fit; the widest column shrinks first."""
    widths = [max(map(len, column)) for column in columns]
    while sum(widths) + GAP * (len(widths) - 1) > width:
        widest = max(range(len(widths)), key=lambda place: widths[place])
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    return [
        [cut(cell, most) for cell, most in zip(row, widths, strict=True)]
        for row in zip(*columns, strict=True)
    ]


def cut(text: str, most: int) -> str:
    """Cuts a text to at most ``most`` characters, ending in an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shorten_ids(ids: Sequence[str]) -> dict[str, str]:
    """Returns for each id the shortest unique suffix of at least eight characters."""
    different = set(ids)
    for length in range(SHORTEST, 40):
        short = {one: one[-length:] for one in different}
        if len(set(short.values())) == len(different):
            return short
    return {one: one for one in different}


def format_age(at: str, now_ms: int) -> str:
    """Formats an age in one unit: ``2m`` for a past time, ``in 2m`` for a future one. Other texts stay."""
    try:
        passed_s = (now_ms - parse_ms(at)) // 1000
    except ValueError:
        return at
    size = abs(passed_s)
    worth, unit = next(((worth, unit) for worth, unit in _UNITS if size >= worth), (1, "s"))
    age = f"{size // worth}{unit}"
    return age if passed_s >= 0 else f"in {age}"


def read_now_ms() -> int:
    """Returns the time of this machine's clock."""
    return time.time_ns() // 1_000_000  # noqa: TID251  ages are shown to the user of this machine


def _measure(columns: Sequence[Row]) -> int:
    return sum(max(map(len, column)) for column in columns) + GAP * (len(columns) - 1)


def _format_time(cell: str, now_ms: int) -> str:
    return format_age(cell, now_ms) if _TIME.fullmatch(cell) else cell


def _shorten_column(cells: Row) -> list[str]:
    ids = [cell for cell in cells if _ID.fullmatch(cell)]
    short = shorten_ids(ids) if ids else {}
    return [short.get(cell, cell) for cell in cells]
