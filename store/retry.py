"""Trying a store call again: only what cannot run twice, and not for long."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

from passerelle.core.errors import StoreUnavailable
from passerelle.store.failures import BROKEN, NOT_SENT, REASONS, TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Result = TypeVar("Result")

WITHIN_S: Final = 2.0
_PAUSE_FIRST_S: Final = 0.02
_PAUSE_LAST_S: Final = 0.2
_PASSING: Final = (
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
    deadline = monotonic() + within_s
    pause_s = _PAUSE_FIRST_S
    unknown = False
    tries = 0
    while True:
        try:
            return await call()
        except StoreUnavailable as error:
            tries += 1
            unknown = unknown or error.wrote == "unknown"
            spent = monotonic() + pause_s > deadline and tries > 1
            if spent or not error.reason.startswith(_PASSING):
                raise StoreUnavailable(error.reason, "unknown" if unknown else "no") from error
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _PAUSE_LAST_S)
