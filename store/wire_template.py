"""Templates of store calls: placeholders for the parts in which one request differs from another.

A template is made from two sample calls of the same shape, made with unique values. If anything depends on a value in
another way than by containing it, it differs in the second sample, and no template is made. So rendering produces what
would have been written, as long as the values decide nothing.
The whole call is rendered in wire format (``connection.pack``): the lengths of its arguments are sums, of which all but
the lengths of variable-length values are known beforehand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import orjson

from passerelle.core.wire.generated import make_picker
from passerelle.core.wire.record import value
from passerelle.store.connection import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

_Sum: TypeAlias = tuple[int, tuple[int, ...]]
"""The length of an argument: its fixed part, and the placeholders whose lengths are added."""
_Piece: TypeAlias = bytes | int | _Sum
"""A text, a placeholder by its index among the values, or a length."""


@value
class Example:
    """Arguments that were written, and the values in them: no two equal; an empty one occurs nowhere."""

    arguments: tuple[bytes, ...]
    values: tuple[bytes, ...]


@value
class WireTemplate:
    """A call with placeholders."""

    render: Callable[[Sequence[bytes]], bytes | None]
    """The call with these values, in the order of the samples.

    None if a fixed-length value has another length: the call would be cut in the wrong places.
    """


def make_wire_template(one: Example, other: Example, free: AbstractSet[int]) -> WireTemplate | None:
    """The template of two samples; None if a value has an effect beyond its occurrences.

    None also if an occurring value is equal in both: a constant with its digits, such as a port that begins like a
    length, would be mistaken for a placeholder.

    ``free``: the indexes of variable-length values. The others always have the length that they have in the samples.
    """
    places = {value: place for place, value in enumerate(one.values) if value}
    if not places or len(places) != sum(map(bool, one.values)):
        return None
    arguments = [_split(argument, places) for argument in one.arguments]
    used = {piece for pieces in arguments for piece in pieces if isinstance(piece, int)}
    if not used or any(one.values[place] == other.values[place] for place in used):
        return None
    lengths = {place: len(one.values[place]) for place in sorted(used - free)}
    template = WireTemplate(_make_renderer(_lay_out(arguments, lengths), lengths))
    return template if template.render(other.values) == pack(*other.arguments) else None


def _split(argument: bytes, places: Mapping[bytes, int]) -> list[bytes | int]:
    """The texts of an argument and, between them, the places of the values in it.

    If several values begin at one position, the longest is used: a title is the beginning of its text. A search per
    value takes a tenth of the time of a regular expression, which would be compiled for this one use.
    """
    found = sorted(
        (at, -len(value), place)
        for value, place in places.items()
        for at in _list_positions(argument, value)
    )
    pieces, end = list[bytes | int](), 0
    for at, negative, place in found:
        if at >= end:
            pieces += (argument[end:at], place)
            end = at - negative
    return [*pieces, argument[end:]]


def _list_positions(argument: bytes, value: bytes) -> Iterator[int]:
    at = argument.find(value)
    while at >= 0:
        yield at
        at = argument.find(value, at + 1)


def _make_renderer(
    pieces: Sequence[_Piece], lengths: Mapping[int, int]
) -> Callable[[Sequence[bytes]], bytes | None]:
    """A function that renders the call; ``lengths`` are those of the fixed-length values.

    The call is one format. Its arguments are picked from one list: the values, and the lengths after them.
    """
    sums = list(dict.fromkeys(piece for piece in pieces if isinstance(piece, tuple)))
    places = {piece: place - len(sums) for place, piece in enumerate(sums)}
    text, picked = b"", list[int]()
    for piece in pieces:
        match piece:
            case bytes():
                text += piece.replace(b"%", b"%%")
            case int():
                text += b"%b"
                picked.append(piece)
            case _:
                text += b"%d"
                picked.append(places[piece])
    pick = make_picker(picked)
    pick_fixed, fixed = make_picker([*lengths]), tuple(lengths.values())

    def render(values: Sequence[bytes]) -> bytes | None:
        measured = [*map(len, values)]
        if pick_fixed(measured) != fixed:
            return None
        pool: list[bytes | int] = [*values]
        for known, variable in sums:
            length = known
            for place in variable:
                length += measured[place]
            pool.append(length)
        return text % pick(pool)

    return render


def _lay_out(
    arguments: Sequence[Sequence[bytes | int]], lengths: Mapping[int, int]
) -> list[_Piece]:
    """The pieces of the call, in order."""
    laid, text = list[_Piece](), b"*%d\r\n" % len(arguments)
    for pieces in arguments:
        known, variable = 0, list[int]()
        for piece in pieces:
            if isinstance(piece, bytes):
                known += len(piece)
            elif piece in lengths:
                known += lengths[piece]
            else:
                variable.append(piece)
        if variable:
            laid += (text + b"$", (known, tuple(variable)))
            text = b"\r\n"
        else:
            text += b"$%d\r\n" % known
        for piece in pieces:
            if isinstance(piece, bytes):
                text += piece
            else:
                laid += (text, piece)
                text = b""
        text += b"\r\n"
    return [*laid, text]


def quote(texts: Sequence[str]) -> list[bytes]:
    """Encodes texts, at least one, as in JSON, without their quotes.

    They are encoded together and split at line ends, which no JSON string contains.
    """
    return orjson.dumps(texts, option=orjson.OPT_INDENT_2)[5:-3].split(b'",\n  "')
