"""Functions generated per class, from the names and types of its members.

``dataclasses`` generates its methods the same way: a loop over members known in advance, unrolled once. It pays off
where a request makes, copies or writes hundreds of objects. The source contains only names of our own classes, and
texts as ``repr`` writes them.
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
    """The function ``def <head>:`` with a body of ``lines``, which may use the names in ``known``."""
    names: dict[str, Any] = dict(known)
    body = "\n    ".join(lines)
    exec(f"def {head}:\n    {body}\n", names)  # noqa: S102  see above
    made: Callable[..., Any] = names[head.partition("(")[0]]
    return made


def make_picker(places: Sequence[int]) -> Callable[[Sequence[T]], tuple[T, ...]]:
    """A function that returns the items at these indexes."""
    if len(places) > 1:
        return itemgetter(*places)
    # With a single index, itemgetter returns no tuple.
    return lambda values: tuple(values[place] for place in places)
