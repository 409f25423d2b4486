"""Tables and fields for people: columns as wide as they need, in the order that they are given in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def format_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The rows below their titles; nothing where there is no row."""
    lines = [titles, *rows]
    if len(lines) == 1:
        return
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()


def format_fields(fields: Sequence[tuple[str, str]]) -> Iterator[str]:
    """One line for each field that says something."""
    said = [(name, text) for name, text in fields if text]
    width = max((len(name) for name, _ in said), default=0)
    for name, text in said:
        yield f"{name.ljust(width)}  {text}"


def flatten(text: str, most: int = 60) -> str:
    """A text in one line, cut where it is longer than ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
