"""What was learnt of shapes: at once while there are few, later only of those that come again and again.

Learning costs as much as a dozen turns that are decided, so a shape has to come that often where there are many: then
no mix of shapes costs more than twice what it costs to decide them all.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

T = TypeVar("T")
USES: Final = 16
"""How often a shape has to come before it is learnt, where there are many."""


class ShapeMemory(Generic[T]):
    """Remembers ``most`` shapes, those that came last; the first ``few`` are learnt when they come first."""

    __slots__ = ("_few", "_learnt", "_most", "_seen")

    def __init__(self, most: int, few: int) -> None:
        self._most = most
        self._few = few
        self._learnt: OrderedDict[Hashable, T] = OrderedDict()
        self._seen: OrderedDict[Hashable, int] = OrderedDict()
        """How often shapes came that are not learnt; as many times more as there can be learnt ones."""

    def recall(self, shape: Hashable) -> T:
        """What was learnt of a shape.

        Raises:
            KeyError: nothing was.
        """
        learnt = self._learnt[shape]
        self._learnt.move_to_end(shape)
        return learnt

    def is_worth(self, shape: Hashable) -> bool:
        """Whether a shape that has come once more is to be learnt now."""
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
        """Remembers it; what has not come for the longest time makes room."""
        if len(self._learnt) >= self._most:
            self._learnt.popitem(last=False)
        self._learnt[shape] = learnt
