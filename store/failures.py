"""The meaning of a failed store call, and which failures are retried.

An error that the server *answered* with a known code means that nothing was written. When the connection breaks, or no
reply arrives in time, after the call was sent, the outcome is unknown.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

from redis.exceptions import AuthenticationError, RedisError

from passerelle.core.back_off import find_pause
from passerelle.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

READ_ONLY: Final = "read-only replica"
REASONS: Final[dict[str, str]] = {
    "LOADING": "loading",
    "MISCONF": "cannot write to disk",
    "NOREPLICAS": "not enough replicas",
    "CLUSTERDOWN": "cluster is down",
    "MASTERDOWN": "primary is down",
    "OOM": "out of memory",
    "READONLY": READ_ONLY,
    "BUSY": "busy with a script",
    "NOAUTH": "authentication required",
    "WRONGPASS": "wrong password",
    "NOPERM": "not permitted",
}
"""Error codes after which nothing was written."""

REDIRECTIONS: Final = frozenset({"MOVED", "ASK", "TRYAGAIN"})
"""Error codes after which the same call is sent again, once the table of nodes is current."""

NO_PRIMARY: Final = "no primary"
NOT_SENT: Final = "connection failed"
BROKEN: Final = "connection lost"
TIMED_OUT: Final = "no answer in time"


class Redirected(Exception):
    """Another node serves the shard, or the shard is just moving; nothing was written."""


def read_code(error: RedisError) -> str:
    """The code of an error reply."""
    status: object = getattr(error, "status_code", None)
    return status if isinstance(status, str) else str(error).partition(" ")[0]


def explain_reply(error: RedisError) -> StoreUnavailable | Redirected:
    """The meaning of an error reply. An unknown code comes from a script that may have written."""
    code = read_code(error)
    if code in REDIRECTIONS:
        return Redirected(code)
    if code == "NOPERM":
        # Only the server knows which right is missing.
        return StoreUnavailable(f"{REASONS[code]}: {str(error).removeprefix('NOPERM ')}", "no")
    if code in REASONS:
        return StoreUnavailable(REASONS[code], "no")
    return StoreUnavailable(f"the server refused: {error}", "unknown")


def explain_break(error: BaseException, *, sent: bool) -> StoreUnavailable:
    """The meaning of a broken exchange for a call without a reply."""
    if isinstance(error.__cause__ or error, AuthenticationError):
        # redis-py wraps the server's error while a connection is opened.
        return StoreUnavailable(f"{REASONS['WRONGPASS']} or user", "no")
    if not sent:
        return StoreUnavailable(f"{NOT_SENT}: {str(error) or type(error).__name__}", "no")
    if isinstance(error, TimeoutError):
        return StoreUnavailable(TIMED_OUT, "unknown")
    return StoreUnavailable(f"{BROKEN}: {str(error) or type(error).__name__}", "unknown")


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
"""Transient reasons; a full disk or memory is not one."""


async def retry(call: Callable[[], Awaitable[Result]], within_s: float = WITHIN_S) -> Result:
    """Repeats an idempotent call, at least once after a broken exchange.

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
    """``retry`` for a caller that has tried once, at ``began_s`` of the monotonic clock.

    Raises:
        StoreUnavailable: as ``retry``.
    """
    deadline = began_s + within_s
    unknown = failed.wrote == "unknown"
    tries = 1
    error = failed
    while error.reason.startswith(_PASSING):
        pause_s = find_pause(_PAUSE_FIRST_S, _PAUSE_LAST_S, tries)
        if tries > 1 and monotonic() + pause_s > deadline:
            break
        await asyncio.sleep(pause_s)
        try:
            return await call()
        except StoreUnavailable as again:
            error = again
            tries += 1
            unknown = unknown or again.wrote == "unknown"
    raise StoreUnavailable(error.reason, "unknown" if unknown else "no") from error
