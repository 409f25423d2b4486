"""Calls of the store with holes where one request differs from another.

A stencil is cut from two examples of the same call, made with texts of which each stands for itself. Whatever depends
on such a text in another way than by holding it comes out different in the second example, and then there is no
stencil. So what is filled in is what would have been written, as long as the texts decide nothing.

What is filled in is the whole call as it goes over the wire (``connection.pack``): the lengths of its arguments are
sums, of which all but the lengths of free texts are known beforehand.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.core.generated import make_function
from passerelle.core.record import value
from passerelle.store.connection import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

_LONGEST_REFRAIN: Final = 16
"""Pieces of a run that recurs."""


@value
class Example:
    """Arguments that were written, and the values that stand in them: no two alike, an empty one nowhere."""

    arguments: tuple[bytes, ...]
    values: tuple[bytes, ...]


@value
class Stencil:
    """A call with holes."""

    fill: Callable[[Sequence[bytes]], bytes | None]
    """The call with these values, in the order of the examples.

    None where one that is not free has another length: the call would be cut in the wrong places.
    """


def cut_stencil(
    one: Example, other: Example, free: AbstractSet[int] = frozenset()
) -> Stencil | None:
    """The stencil of two examples; None where a value does more than stand somewhere.

    None also where a value that is written is the same in both: a constant with its digits, such as a port that begins
    like a length, would pass for a hole.

    ``free``: the places of values that may have any length. The others are always as long as in the examples.
    """
    places = {value: place for place, value in enumerate(one.values) if value}
    if not places or len(places) != sum(map(bool, one.values)):
        return None
    # Where several begin at one place, the longest is meant: a title is the beginning of its text.
    longest_first = sorted(places, key=len, reverse=True)
    found = re.compile(b"(" + b"|".join(map(re.escape, longest_first)) + b")")
    arguments = [
        [places[piece] if number % 2 else piece for number, piece in enumerate(pieces)]
        for pieces in map(found.split, one.arguments)
    ]
    holes = {piece for pieces in arguments for piece in pieces if isinstance(piece, int)}
    if not holes or any(one.values[place] == other.values[place] for place in holes):
        return None
    lengths = {place: len(one.values[place]) for place in sorted(holes - free)}
    stencil = Stencil(_make_writer(arguments, len(one.values), lengths))
    return stencil if stencil.fill(other.values) == pack(*other.arguments) else None


def _make_writer(
    arguments: Sequence[Sequence[bytes | int]], count: int, lengths: Mapping[int, int]
) -> Callable[[Sequence[bytes]], bytes | None]:
    """A function that takes so many values and writes the call; ``lengths`` of those that are not free."""
    pieces = _lay_out(arguments, lengths)
    refrain = _find_refrain(pieces)
    written, at = list[str](), 0
    while at < len(pieces):
        recurs = tuple(pieces[at : at + len(refrain)]) == refrain
        written.append("refrain" if recurs else pieces[at])
        at += len(refrain) if recurs else 1
    taken = "".join(f"v{place}, " for place in range(count))
    measured = "".join(f"len(v{place}), " for place in lengths)
    lines = [
        f"{taken}= values",
        f"if ({measured}) != {tuple(lengths.values())}: return None",
        f"refrain = join(({', '.join(refrain)},))",
        f"return join(({', '.join(written)},))",
    ]
    return make_function("write(values)", lines, {"join": b"".join})


def _lay_out(arguments: Sequence[Sequence[bytes | int]], lengths: Mapping[int, int]) -> list[str]:
    """What the call consists of, in Python: texts, values, and lengths that are sums."""
    laid, text = list[str](), b"*%d\r\n" % len(arguments)
    for pieces in arguments:
        known, counted = 0, list[str]()
        for piece in pieces:
            if isinstance(piece, bytes):
                known += len(piece)
            elif piece in lengths:
                known += lengths[piece]
            else:
                counted.append(f"len(v{piece})")
        if counted:
            laid += (repr(text + b"$"), f"b'%d' % ({' + '.join((str(known), *counted))})")
            text = b"\r\n"
        else:
            text += b"$%d\r\n" % known
        for piece in pieces:
            if isinstance(piece, bytes):
                text += piece
            else:
                laid += (repr(text), f"v{piece}")
                text = b""
        text += b"\r\n"
    return [*laid, repr(text)]


def _find_refrain(pieces: Sequence[str]) -> tuple[str, ...]:
    """The run of pieces that recurs most, such as the times and ids at the head of each event: it is joined once."""
    found = Counter(
        tuple(pieces[begin : begin + length])
        for length in range(1, _LONGEST_REFRAIN)
        for begin in range(len(pieces) - length + 1)
    )
    return max(found, key=lambda run: (found[run] - 1) * (len(run) - 1))


def quote(texts: Sequence[str]) -> list[bytes]:
    """Texts, at least one, as they stand in JSON, without their quotes.

    They are written together and cut at the ends of lines, which stand in no text of JSON.
    """
    return orjson.dumps(texts, option=orjson.OPT_INDENT_2)[5:-3].split(b'",\n  "')
