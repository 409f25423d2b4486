"""Limits that all instances share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Bucket:
    """A draw of units that flow back: ``limit`` of them in ``per_ms``. ``want`` below 0 gives back."""

    meter: str
    want: int
    limit: int
    per_ms: int


@dataclass(frozen=True, slots=True)
class Period:
    """A draw of units of one period, in which nothing flows back. ``mark`` asks to be the first to say so in it."""

    meter: str
    want: int
    limit: int
    from_ms: int
    till_ms: int
    mark: bool = False


LimitDraw: TypeAlias = Bucket | Period


@dataclass(frozen=True, slots=True)
class Drawn:
    """Units that were given (below 0: taken back) and units that are left for everybody.

    ``note`` of a bucket are the ms until it has a unit again; of a period 1 when this call was the first with ``mark``.
    """

    given: int
    left: int
    note: int


@dataclass(frozen=True, slots=True)
class Granted:
    """What an instance holds in all (``slots``), the store's time, and what it drew just now, in order."""

    slots: int
    now_ms: int
    drawn: tuple[Drawn, ...] = ()


class LimitStore(Protocol):
    """Blocks of shared limits by the name of whom they bind."""

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
        """Sets how many of ``limit`` slots the instance holds (0 gives all back) for ``hold_ms``, and draws.

        Raises:
            StoreUnavailable: whether it was carried out is not known.
        """
        ...
