"""How many there are of something, in words for people."""

from __future__ import annotations


def format_count(count: int, one: str, several: str | None = None) -> str:
    """``1 task``, ``2,000 tasks``; ``several`` where it is not the word with an s."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"
