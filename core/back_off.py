"""How long to wait before something is tried again: the one rule, for agents, receivers, links and the store."""

from __future__ import annotations

from typing import Final, TypeVar

T = TypeVar("T", int, float)

_MOST_DOUBLINGS: Final = 40
"""Twice as long each time is longer than anything lasts by then, and still a small number."""


def find_pause(first: T, longest: T, failures: int) -> T:
    """The pause after so many failures in a row: ``first``, then twice as long each time, ``longest`` at most.

    The unit is that of the bounds.
    """
    doublings = min(max(failures - 1, 0), _MOST_DOUBLINGS)
    return min(first * (1 << doublings), longest)
