"""What a decision writes, with holes where one request differs from another.

A stencil is cut from two examples of the same thing, made with texts of which each stands for itself. Whatever depends
on such a text in another way than by holding it comes out different in the second example, and then there is no
stencil. So what is filled in is what would have been written, as long as the texts decide nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.core.ids import Shard
    from passerelle.core.ports.chance import Ids

_BETWEEN: Final = b"\0"
"""Between two arguments: stands in no JSON and in no key."""
_TELLING_BITS: Final = 32
"""A smaller number stands everywhere by chance."""


@dataclass(frozen=True, slots=True)
class Example:
    """Arguments that were written, and the values that stand in them: no two alike, an empty one nowhere."""

    arguments: tuple[bytes, ...]
    values: tuple[bytes, ...]


class Stencil:
    """Arguments with holes; ``fill`` takes the values in the order of the examples."""

    __slots__ = ("_count", "_form", "_pick", "holes")

    def __init__(self, pieces: Sequence[bytes], holes: Sequence[int]) -> None:
        self._form = b"%b".join(piece.replace(b"%", b"%%") for piece in pieces)
        self._count = self._form.count(_BETWEEN) + 1
        self.holes = frozenset(holes)
        """Which of the values stand somewhere."""
        # Twice the last one: of a single place, itemgetter makes no tuple.
        self._pick: Callable[[Sequence[bytes]], tuple[bytes, ...]] = itemgetter(*holes, holes[-1])

    def fill(self, values: Sequence[bytes]) -> tuple[bytes, ...]:
        """The arguments with these values.

        Raises:
            ValueError: a value has a zero byte in it.
        """
        arguments = tuple((self._form % self._pick(values)[:-1]).split(_BETWEEN))
        if len(arguments) != self._count:
            message = "a value has a zero byte in it"
            raise ValueError(message)
        return arguments


def cut_stencil(one: Example, other: Example) -> Stencil | None:
    """The stencil of two examples; None where a value does more than stand somewhere."""
    whole = _BETWEEN.join(one.arguments)
    given = [value for value in one.values if value]
    places = {value: place for place, value in enumerate(one.values) if value}
    if whole.count(_BETWEEN) != len(one.arguments) - 1 or len(places) != len(given):
        return None
    # Where several begin at one place, the longest is meant: a title is the beginning of its text.
    longest_first = sorted(places, key=len, reverse=True)
    found = re.compile(b"(" + b"|".join(map(re.escape, longest_first)) + b")")
    pieces = found.split(whole)
    holes = [places[value] for value in pieces[1::2]]
    if not holes:
        return None
    stencil = Stencil(pieces[::2], holes)
    return stencil if stencil.fill(other.values) == other.arguments else None


@dataclass(slots=True)
class RecordedIds:
    """Chance that remembers what was asked of it for a shard; implements ``core.ports.chance.Ids``.

    ``asked``: prefixes of ids and bits of numbers, in their order; ``values`` are what came, numbers in hex.
    """

    ids: Ids
    shard: Shard
    asked: list[str | int] = field(default_factory=list["str | int"])
    values: list[bytes] = field(default_factory=list[bytes])

    def mint(self, prefix: str, shard: Shard) -> str:
        made = self.ids.mint(prefix, shard)
        if shard == self.shard:
            self.asked.append(prefix)
            self.values.append(made.encode())
        return made

    def mint_all(self, prefixes: Sequence[str], shard: Shard) -> list[str]:
        return [self.mint(prefix, shard) for prefix in prefixes]

    def draw(self, bits: int) -> int:
        drawn = self.ids.draw(bits)
        if bits >= _TELLING_BITS:
            self.asked.append(bits)
            self.values.append(write_number(drawn, bits))
        return drawn


def quote(text: str) -> bytes:
    """A text as it stands in JSON, without its quotes."""
    return orjson.dumps(text)[1:-1]


def write_number(drawn: int, bits: int) -> bytes:
    """A drawn number as it stands in what is written: in hex, with all its digits."""
    return b"%0*x" % (-(-bits // 4), drawn)


class Wanted:
    """What has to be minted and drawn, again and again; None stands for what is written nowhere."""

    __slots__ = ("_bits", "_prefixes", "_sort", "asked")

    def __init__(self, asked: Sequence[str | int | None]) -> None:
        self.asked = tuple(asked)
        self._prefixes = tuple(one for one in asked if isinstance(one, str))
        self._bits = tuple(one for one in asked if isinstance(one, int))
        prefixes, bits = count(), count(len(self._prefixes))
        nothing = len(self._prefixes) + len(self._bits)
        places = [
            next(prefixes) if isinstance(one, str) else nothing if one is None else next(bits)
            for one in asked
        ]
        # Twice, as in a stencil: of a single place, itemgetter makes no tuple.
        self._sort: Callable[[Sequence[bytes]], tuple[bytes, ...]] = itemgetter(
            *places, nothing, nothing
        )

    def ask(self, ids: Ids, shard: Shard) -> tuple[bytes, ...]:
        """New values, in the order in which they were asked for."""
        minted = [made.encode() for made in ids.mint_all(self._prefixes, shard)]
        drawn = [write_number(ids.draw(bits), bits) for bits in self._bits]
        return self._sort((*minted, *drawn, b""))[:-2]
