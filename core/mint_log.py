"""Records the ids and random numbers of a decision, so that a template can mint the same kinds again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.ids import ORDINALS, REMOTE_CONTEXT, compose_stem
from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ids import Shard
    from passerelle.core.ports.chance import Ids

_MIN_TRACKED_BITS: Final = 32
"""A smaller number could occur in the bytes by chance."""


@value
class MintRecord:
    """The ids and numbers that the written bytes contain.

    ``prefixes`` of the ids minted together, in order; ``numbers``: the bits and the text format of each.
    """

    prefixes: tuple[str, ...]
    numbers: tuple[tuple[int, str], ...]

    def find(self, prefix: str) -> str:
        """The ordinal of the first id with this prefix."""
        return ORDINALS[self.prefixes.index(prefix)]


class RecordedIds:
    """Mints the ids of a shard together and records them; implements ``core.ports.chance.Ids``.

    Context ids for agents (``contexts``), ids of other shards and ids beyond the last ordinal are minted alone and not
    recorded.
    """

    __slots__ = ("_drawn", "_ids", "_prefixes", "_shard", "_stem", "contexts")

    def __init__(self, ids: Ids, shard: Shard, now_ms: int) -> None:
        self.contexts: list[str] = []
        self._ids = ids
        self._shard = shard
        (self._stem,) = mint_together(ids, shard, now_ms, ())
        self._prefixes: list[str] = []
        self._drawn: list[tuple[int, int]] = []

    def mint(self, prefix: str, shard: Shard) -> str:
        if prefix == REMOTE_CONTEXT:
            self.contexts.append(self._ids.mint(prefix, shard))
            return self.contexts[-1]
        place = len(self._prefixes)
        if shard != self._shard or place == len(ORDINALS):
            return self._ids.mint(prefix, shard)
        self._prefixes.append(prefix)
        return f"{prefix}{self._stem}{ORDINALS[place]}"

    def draw_letters(self) -> str:
        return self._ids.draw_letters()

    def draw(self, bits: int) -> int:
        drawn = self._ids.draw(bits)
        if bits >= _MIN_TRACKED_BITS:
            self._drawn.append((bits, drawn))
        return drawn

    def find_in(self, written: bytes) -> tuple[MintRecord, list[str]]:
        """The record for these bytes, and the minted texts: the same list that ``mint_together`` returns."""
        numbers, texts = list[tuple[int, str]](), [self._stem]
        for bits, drawn in self._drawn:
            form = form_number(bits)
            if (form % drawn).encode() in written:
                numbers.append((bits, form))
                texts.append(form % drawn)
        return MintRecord(tuple(self._prefixes), tuple(numbers)), texts


def mint_together(
    ids: Ids, shard: Shard, now_ms: int, numbers: Sequence[tuple[int, str]]
) -> list[str]:
    """The stem of new ids, then a new number for each entry of ``numbers``, formatted."""
    minted = [compose_stem(shard, now_ms, ids.draw_letters())]
    for bits, form in numbers:
        minted.append(form % ids.draw(bits))
    return minted


def form_number(bits: int) -> str:
    """The text format of a random number: hex, with all its digits."""
    return f"%0{-(-bits // 4)}x"
