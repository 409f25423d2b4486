"""Trying a store call again: only what cannot run twice, and not for long."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

from passerelle.core.errors import StoreUnavailable
from passerelle.store.failures import BROKEN, NO_PRIMARY, NOT_SENT, REASONS, TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Result = TypeVar("Result")

WITHIN_S: Final = 2.0
_PAUSE_FIRST_S: Final = 0.02
_PAUSE_LAST_S: Final = 0.2
_PASSING: Final = (
    NO_PRIMARY,
    NOT_SENT,
    BROKEN,
    TIMED_OUT,
    REASONS["LOADING"],
    REASONS["CLUSTERDOWN"],
    REASONS["MASTERDOWN"],
)
"""Reasons that may be gone in a moment; a full disk or memory is not."""


async def retry(call: Callable[[], Awaitable[Result]], within_s: float = WITHIN_S) -> Result:
    """Repeats a call that is safe to repeat, at least once after a broken exchange.

    Raises:
        StoreUnavailable: the last failure; ``wrote`` is ``unknown`` when any try may have run.
    """
    began_s = monotonic()
    try:
        return await call()
    except StoreUnavailable as error:
        return await try_again(call, error, began_s, within_s)


async def try_again(
    call: Callable[[], Awaitable[Result]],
    failed: StoreUnavailable,
    began_s: float,
    within_s: float = WITHIN_S,
) -> Result:
    """``retry`` for whoever has tried once, at ``began_s`` of the monotonic clock.

    Raises:
        StoreUnavailable: as ``retry``.
    """
    deadline = began_s + within_s
    pause_s = _PAUSE_FIRST_S
    unknown = failed.wrote == "unknown"
    tries = 1
    error = failed
    while error.reason.startswith(_PASSING) and (tries == 1 or monotonic() + pause_s <= deadline):
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _PAUSE_LAST_S)
        try:
            return await call()
        except StoreUnavailable as again:
            error = again
            tries += 1
            unknown = unknown or again.wrote == "unknown"
    raise StoreUnavailable(error.reason, "unknown" if unknown else "no") from error
