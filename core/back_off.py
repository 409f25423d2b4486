"""How long to wait before something is tried again: the one rule, for agents, receivers, links and the store."""

from __future__ import annotations

from typing import Final, TypeVar

T = TypeVar("T", int, float)

_MOST_DOUBLINGS: Final = 40
"""After so many doublings every pause is at its bound; the shift stays a small number."""


def find_pause(first: T, longest: T, failures: int) -> T:
    """The pause before the next try after ``failures`` in a row.

    It is ``first`` after one failure, doubles with each further one, and never exceeds ``longest``. The unit is that of
    ``first`` and ``longest``.
    """
    doublings = min(max(failures - 1, 0), _MOST_DOUBLINGS)
    return min(first * (1 << doublings), longest)
