"""How long to wait before something is tried again: the one rule, for agents, receivers, the store and the engine."""

from __future__ import annotations

from typing import Final, TypeVar

T = TypeVar("T", int, float)

_MOST_DOUBLINGS: Final = 40
"""Twice as long each time is longer than anything lasts by then, and still a small number."""


def find_pause(first: T, longest: T, failures: int) -> T:
    """The pause after so many failures in a row: ``first``, then twice as long each time, ``longest`` at most.

    The unit is that of the bounds.
    """
    return min(first * 2 ** min(max(failures - 1, 0), _MOST_DOUBLINGS), longest)
