"""Functions that are put together for a class, from the names and types of its members.

``dataclasses`` makes its methods like this as well: a loop over members that are known beforehand, written out once. It
is worth it where a request makes, copies or writes hundreds of them. The source consists of names of our own classes,
and of texts as ``repr`` writes them.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")


def make_function(
    head: str, lines: Sequence[str], known: Mapping[str, object]
) -> Callable[..., Any]:
    """The function ``def <head>:`` with a body of ``lines``, in which ``known`` can be named."""
    names: dict[str, Any] = dict(known)
    body = "\n    ".join(lines)
    exec(f"def {head}:\n    {body}\n", names)  # noqa: S102  see above
    made: Callable[..., Any] = names[head.partition("(")[0]]
    return made


def make_picker(places: Sequence[int]) -> Callable[[Sequence[T]], tuple[T, ...]]:
    """A function that takes what stands at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    # Of a single place, itemgetter makes no tuple.
    return lambda values: tuple(values[place] for place in places)
