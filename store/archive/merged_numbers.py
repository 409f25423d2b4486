"""Numbers of merged segments: archive rows still have them, and they lead to the number that a shard names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from passerelle.store.replies import as_hash

if TYPE_CHECKING:
    from collections.abc import Collection

    from passerelle.store.connection import RespValue


class MergedNumber(NamedTuple):
    """The number that a merged one leads to, and the shift of its frames in that segment, in bytes."""

    number: int
    shift: int

    @classmethod
    def read(cls, stored: bytes) -> Self:
        """Reads the stored form."""
        number, _, shift = stored.partition(b" ")
        return cls(int(number), int(shift))


def follow_numbers(named: Collection[int], merged: RespValue) -> dict[int, MergedNumber]:
    """Where each merged number leads among the ``named`` ones; ``merged`` are all merged numbers of a shard.

    A segment may be merged again, so one number may lead to another that leads on. Dead ends are left out.
    """
    every = {int(number): MergedNumber.read(said) for number, said in as_hash(merged).items()}
    # A later segment has a higher number; anything else is damage.
    steps = {number: step for number, step in every.items() if step.number > number}
    found = dict[int, MergedNumber]()
    for number in steps:
        at, shift = number, 0
        while at not in named and at in steps:
            at, shift = steps[at].number, shift + steps[at].shift
        if at != number and at in named:
            found[number] = MergedNumber(at, shift)
    return found
