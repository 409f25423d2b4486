"""The back-off between retries: the one rule for agents, receivers, links and the store."""

from __future__ import annotations

from typing import Final, TypeVar

T = TypeVar("T", int, float)

_MOST_DOUBLINGS: Final = 40
"""After this many doublings every pause has reached its bound; it keeps the shift small."""


def find_pause(first: T, longest: T, failures: int) -> T:
    """The pause before the next try after ``failures`` in a row.

    ``first`` after one failure, doubled with each further one, at most ``longest``. All in one unit.
    """
    doublings = min(max(failures - 1, 0), _MOST_DOUBLINGS)
    return min(first * (1 << doublings), longest)
