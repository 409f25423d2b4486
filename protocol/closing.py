"""Close codes of the channel: the range decides, so a client needs no table.

4000 to 4499: connect again with the same cursors. 4500 to 4999: stop and show the user. Of the standard codes, 1000 and
1001 are a clean end, 1009 means a frame over the limit, and every other one (1006, 1011, 1012, 1013 …) is worth a
retry.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

MAX_REASON_BYTES: Final = 123
"""The limit of RFC 6455 for a close reason, which is for people, never for programs."""

_RETRY: Final = range(4000, 4500)
_STOP: Final = range(4500, 5000)
_CLEAN: Final = frozenset({1000, 1001})
_TOO_LARGE: Final = 1009


class CloseCode(IntEnum):
    """The codes that the gateway sends."""

    NORMAL = 1000
    RESTART = 4000
    DRAIN = 4001
    NO_HELLO = 4002
    TOO_MANY = 4003
    STORE_UNAVAILABLE = 4004
    TOO_SLOW = 4008
    HEARTBEAT_MISSED = 4012
    RATE_LIMIT = 4029
    TOKEN_EXPIRED = 4401
    BAD_CREDENTIALS = 4500
    MALFORMED = 4501
    FORBIDDEN = 4503
    REVOKED = 4504
    SUPERSEDED = 4509
    FRAME_TOO_LARGE = 4513
    REPEATED_REFUSALS = 4514


def is_retryable(code: int) -> bool:
    """Whether a client that got ``code`` should connect again with its cursors."""
    if code in _RETRY:
        return True
    return code not in _STOP and code not in _CLEAN and code != _TOO_LARGE


def fit_reason(reason: str) -> str:
    """``reason`` cut to the limit of a close frame, on a character boundary."""
    return reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
