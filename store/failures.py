"""What a failed call to the server means: one table from error to StoreUnavailable.

An error that the server *answered* with a known code means that nothing was written. A connection that
broke, or a reply that did not come in time, after the call had been sent, leaves the outcome unknown.
"""

from __future__ import annotations

from typing import Final

from redis.exceptions import AuthenticationError, RedisError

from passerelle.core.errors import StoreUnavailable

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
"""Answers after which nothing was written."""

REDIRECTIONS: Final = frozenset({"MOVED", "ASK", "TRYAGAIN"})
"""Answers after which the same call goes out again, once the table of nodes is fresh."""

NO_PRIMARY: Final = "no primary"
NOT_SENT: Final = "connection failed"
BROKEN: Final = "connection lost"
TIMED_OUT: Final = "no answer in time"


class Redirected(Exception):
    """The shard is served by another node, or is just moving there; nothing was written."""


def read_code(error: RedisError) -> str:
    """The code that an error reply begins with."""
    status: object = getattr(error, "status_code", None)
    return status if isinstance(status, str) else str(error).partition(" ")[0]


def explain_reply(error: RedisError) -> StoreUnavailable | Redirected:
    """What an error reply means. One that is not in the table came out of a script that may have written."""
    code = read_code(error)
    if code in REDIRECTIONS:
        return Redirected(code)
    if code in REASONS:
        return StoreUnavailable(REASONS[code], "no")
    return StoreUnavailable(f"the server refused: {error}", "unknown")


def explain_break(error: BaseException, *, sent: bool) -> StoreUnavailable:
    """What a broken exchange means for a call without a reply."""
    if isinstance(error.__cause__ or error, AuthenticationError):
        # redis-py wraps what the server answers while a connection is made.
        return StoreUnavailable(f"{REASONS['WRONGPASS']} or user", "no")
    if not sent:
        return StoreUnavailable(f"{NOT_SENT}: {str(error) or type(error).__name__}", "no")
    if isinstance(error, TimeoutError):
        return StoreUnavailable(TIMED_OUT, "unknown")
    return StoreUnavailable(f"{BROKEN}: {str(error) or type(error).__name__}", "unknown")
