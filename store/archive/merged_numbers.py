"""Numbers of segments that were merged: rows have them still, and they lead on to the number that a shard names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from passerelle.store.replies import as_hash

if TYPE_CHECKING:
    from collections.abc import Collection

    from passerelle.store.connection import RespValue


class MergedNumber(NamedTuple):
    """The number that one leads to, and how much further on each frame stands in that segment, in bytes."""

    number: int
    shift: int

    @classmethod
    def read(cls, stored: bytes) -> Self:
        """Reads what the store has."""
        number, _, shift = stored.partition(b" ")
        return cls(int(number), int(shift))


def follow_numbers(named: Collection[int], merged: RespValue) -> dict[int, MergedNumber]:
    """Where each merged number leads to among those that are ``named``; ``merged`` is all that a shard has of them.

    A segment may be merged again, so one number may lead to another that leads on. What leads to nothing is left out.
    """
    every = {int(number): MergedNumber.read(said) for number, said in as_hash(merged).items()}
    # What comes later has a higher number; anything else is damage.
    steps = {number: step for number, step in every.items() if step.number > number}
    found = dict[int, MergedNumber]()
    for number in steps:
        at, shift = number, 0
        while at not in named and at in steps:
            at, shift = steps[at].number, shift + steps[at].shift
        if at != number and at in named:
            found[number] = MergedNumber(at, shift)
    return found
