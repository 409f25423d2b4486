"""Formats counts for people."""

from __future__ import annotations


def format_count(count: int, one: str, several: str | None = None) -> str:
    """``1 task``, ``2,000 tasks``; ``several`` is the plural if it is not formed with an s."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"
