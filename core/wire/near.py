"""Suggests the known name nearest to a mistyped one."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

_JUDGED: Final = 80
"""Compared characters of a name: it is untrusted, and may be long."""


def find_near(name: str, known: Collection[str]) -> str | None:
    """The nearest known name, ignoring case; None if none is similar."""
    lowered = {one.lower(): one for one in known}
    near = get_close_matches(name[:_JUDGED].lower(), lowered, n=1)
    return lowered[near[0]] if near else None
