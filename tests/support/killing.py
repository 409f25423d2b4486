"""Ends a process at one of its changes, as SIGKILL does, without a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    import pytest


class Killed(BaseException):
    """Stands in for SIGKILL: no code after it runs."""


def kill_change(
    patch: pytest.MonkeyPatch,
    places: Iterable[tuple[object, Iterable[str]]],
    step: int,
    *,
    is_done: bool = False,
) -> list[int]:
    """Makes the ``step``-th call of these methods the last one, or the first one that is not made.

    Returns the number of calls left until then, in a list of one.
    """
    left = [step]

    def guard(change: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def change_or_die(*arguments: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                if is_done:
                    await change(*arguments)
                raise Killed
            return await change(*arguments)

        return change_or_die

    for owner, names in places:
        for name in names:
            patch.setattr(owner, name, guard(getattr(owner, name)))
    return left
