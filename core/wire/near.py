"""The known name that a mistyped one looks most like."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

_JUDGED: Final = 80
"""Characters of a name that are compared: it comes from outside, and may be long."""


def find_near(name: str, known: Collection[str]) -> str | None:
    """The name to ask about, whichever way letters are written; None where nothing is like it."""
    lowered = {one.lower(): one for one in known}
    near = get_close_matches(name[:_JUDGED].lower(), lowered, n=1)
    return lowered[near[0]] if near else None
