"""Cuts sequences into chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self


class Sliceable(Protocol):
    """A sequence whose slices are of its own type: a list, a tuple, a text, bytes."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Self: ...


T = TypeVar("T", bound=Sliceable)


def in_chunks(whole: T, size: int) -> Iterator[T]:
    """Slices of ``size`` members each, in order; the last one may be shorter."""
    for first in range(0, len(whole), size):
        yield whole[first : first + size]
