"""Caches what was learned about shapes: immediately while there are few, later only for shapes that recur often.

Learning a shape costs as much as deciding a dozen turns, so with many shapes a shape must recur that often first: then
no mix of shapes costs more than twice what deciding them all costs.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

T = TypeVar("T")
USES: Final = 16
"""Uses of a shape before it is learned, when there are many shapes."""


class ShapeMemory(Generic[T]):
    """Keeps the ``most`` recently used shapes; the first ``few`` are learned on first use."""

    __slots__ = ("_few", "_learnt", "_most", "_seen")

    def __init__(self, most: int, few: int) -> None:
        self._most = most
        self._few = few
        self._learnt: OrderedDict[Hashable, T] = OrderedDict()
        self._seen: OrderedDict[Hashable, int] = OrderedDict()
        """Uses of shapes that are not learned yet; bounded by ``USES`` times the capacity."""

    def recall(self, shape: Hashable) -> T:
        """Returns what was learned about a shape.

        Raises:
            KeyError: the shape is not learned.
        """
        learnt = self._learnt[shape]
        self._learnt.move_to_end(shape)
        return learnt

    def is_worth(self, shape: Hashable) -> bool:
        """Counts one more use of a shape; returns whether to learn it now."""
        if len(self._learnt) < self._few:
            return True
        uses = self._seen.pop(shape, 0) + 1
        if uses >= USES:
            return True
        self._seen[shape] = uses
        if len(self._seen) > USES * self._most:
            self._seen.popitem(last=False)
        return False

    def keep(self, shape: Hashable, learnt: T) -> None:
        """Stores what was learned; the least recently used shape is evicted."""
        if len(self._learnt) >= self._most:
            self._learnt.popitem(last=False)
        self._learnt[shape] = learnt
