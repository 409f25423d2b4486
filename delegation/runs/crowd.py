"""How many runs are followed by asking, on this instance: the more, the longer each of them rests between two looks.

Thousands of runs that are asked for every second would take the time that others need: those that are taken up now, and
callers. A hundred looks a second are made without a thought; beyond that, looks become rarer instead of more.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator

LOOKS_PER_S: Final = 100


@dataclass(slots=True)
class Crowd:
    """Shared by all drivers of an instance. ``resting`` are between two looks."""

    resting: int = 0

    @property
    def pause_s(self) -> float:
        """The shortest rest that leaves each of them its turn, in seconds."""
        return self.resting / LOOKS_PER_S

    @contextmanager
    def rest(self) -> Generator[None]:
        """One more, for the time of the block."""
        self.resting += 1
        try:
            yield
        finally:
            self.resting -= 1
