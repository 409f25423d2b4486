"""The web pages that may open sockets: those of the gateway's own host, and the configured origins."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_QUIET_S: Final = 60.0
"""Interval in which a refused origin is logged at most once."""
_REMEMBERED: Final = 50
"""Refused origins remembered for that; with more within a minute, further ones are not logged."""
_SHOWN: Final = 200


class WebOrigins:
    """Checks origins; ``clock`` counts seconds. A browser hides the refusal from its page, so it is logged."""

    def __init__(
        self, listed: Iterable[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._listed = frozenset(listed)
        self._clock = clock
        self._logged: dict[str, float] = {}

    def reload(self, listed: Iterable[str]) -> None:
        """Replaces the configured origins; open sockets stay open."""
        self._listed = frozenset(listed)

    def admits(self, origin: str | None, host: str | None) -> bool:
        """Whether a socket may be opened; programs send no ``origin``. ``host`` is the header of that name."""
        if origin is None or origin in self._listed or _is_same_host(origin, host):
            return True
        self._log_refusal(origin)
        return False

    def _log_refusal(self, origin: str) -> None:
        now = self._clock()
        self._logged = {one: at for one, at in self._logged.items() if now - at < _QUIET_S}
        if origin in self._logged or len(self._logged) >= _REMEMBERED:
            return
        self._logged[origin] = now
        structlog.get_logger("passerelle").warning(
            "channel.origin_refused",
            origin=origin[:_SHOWN],
            hint="list the origin in channels.origins if the page is yours",
        )


def _is_same_host(origin: str, host: str | None) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False
