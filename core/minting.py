"""What a decision asks of chance, so that the same can be asked again without deciding."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from passerelle.core.generated import make_picker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.core.ids import Shard
    from passerelle.core.ports.chance import Ids

_TELLING_BITS: Final = 32
"""A smaller number stands everywhere by chance."""


@dataclass(slots=True)
class RecordedIds:
    """Chance that remembers what was asked of it for a shard; implements ``core.ports.chance.Ids``.

    ``asked``: prefixes of ids and bits of numbers, in their order; ``values`` are what came, numbers in hex.
    """

    ids: Ids
    shard: Shard
    asked: list[str | int] = field(default_factory=list["str | int"])
    values: list[str] = field(default_factory=list[str])

    def mint(self, prefix: str, shard: Shard) -> str:
        made = self.ids.mint(prefix, shard)
        if shard == self.shard:
            self.asked.append(prefix)
            self.values.append(made)
        return made

    def mint_all(self, prefixes: Sequence[str], shard: Shard) -> list[str]:
        return [self.mint(prefix, shard) for prefix in prefixes]

    def draw(self, bits: int) -> int:
        drawn = self.ids.draw(bits)
        if bits >= _TELLING_BITS:
            self.asked.append(bits)
            self.values.append(form_number(bits) % drawn)
        return drawn


def form_number(bits: int) -> str:
    """How a drawn number stands in what is written: in hex, with all its digits."""
    return f"%0{-(-bits // 4)}x"


class Wanted:
    """What has to be minted and drawn, again and again; None stands for what is written nowhere."""

    __slots__ = ("_numbers", "_prefixes", "_sort", "asked")

    def __init__(self, asked: Sequence[str | int | None]) -> None:
        self.asked = tuple(asked)
        self._prefixes = tuple(one for one in asked if isinstance(one, str))
        self._numbers = tuple((one, form_number(one)) for one in asked if isinstance(one, int))
        prefixes, bits = count(), count(len(self._prefixes))
        nothing = len(self._prefixes) + len(self._numbers)
        places = [
            next(prefixes) if isinstance(one, str) else nothing if one is None else next(bits)
            for one in asked
        ]
        self._sort: Callable[[Sequence[str]], tuple[str, ...]] = make_picker(places)

    def ask(self, ids: Ids, shard: Shard) -> tuple[str, ...]:
        """New values, in the order in which they were asked for."""
        minted = ids.mint_all(self._prefixes, shard)
        for bits, form in self._numbers:
            minted.append(form % ids.draw(bits))
        minted.append("")
        return self._sort(minted)
