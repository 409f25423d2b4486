"""Port for limits that all instances share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence


@frozen
class Bucket:
    """A draw from a token bucket: ``limit`` units per ``per_ms``. A negative ``want`` gives units back."""

    meter: str
    want: int
    limit: int
    per_ms: int


@frozen
class Period:
    """A draw from the quota of one period. ``mark`` asks whether this call is the first with it in the period."""

    meter: str
    want: int
    limit: int
    from_ms: int
    till_ms: int
    mark: bool = False


LimitDraw: TypeAlias = Bucket | Period


@frozen
class Drawn:
    """Granted units (negative: returned) and the units left over all instances.

    ``note`` of a bucket is the ms until its next unit; of a period 1 if this call was the first with ``mark``.
    """

    given: int
    left: int
    note: int


@frozen
class Granted:
    """The total ``slots`` of an instance, the store's time, and the draws in order."""

    slots: int
    now_ms: int
    drawn: tuple[Drawn, ...] = ()


class LimitStore(Protocol):
    """Shared limits by the name of their subject."""

    async def take(
        self,
        name: str,
        instance: str,
        *,
        slots: int,
        limit: int,
        hold_ms: int,
        draws: Sequence[LimitDraw] = (),
    ) -> Granted:
        """Sets how many of ``limit`` slots the instance holds (0 releases all) for ``hold_ms``, and draws.

        Raises:
            StoreUnavailable: the outcome is unknown.
        """
        ...
