"""Streams that are open: so many of one caller on this instance, and no more, whichever edge they came over."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import Limited

if TYPE_CHECKING:
    from collections.abc import Generator

SEATS: Final = 64
"""Where the configuration says nothing else."""
_RETRY_S: Final = 5


class StreamSeats:
    """Counts streams by the key of their caller; a caller without one is not in it."""

    def __init__(self, most: int = SEATS) -> None:
        self.most = most
        self._taken: dict[str, int] = {}

    @property
    def taken(self) -> int:
        """Of all callers."""
        return sum(self._taken.values())

    def judge(self, caller: str) -> None:
        """Whether there is a seat for one more.

        Raises:
            Limited: the caller has all of its seats.
        """
        if self._taken.get(caller, 0) >= self.most:
            said = f"{self.most} streams of this caller are open here, and no more may be"
            raise Limited("concurrency", said, _RETRY_S)

    @contextmanager
    def take(self, caller: str) -> Generator[None]:
        """A seat for the time of the block. Raises Limited as ``judge`` does."""
        self.judge(caller)
        self._taken[caller] = self._taken.get(caller, 0) + 1
        try:
            yield
        finally:
            left = self._taken[caller] - 1
            if left:
                self._taken[caller] = left
            else:
                del self._taken[caller]
