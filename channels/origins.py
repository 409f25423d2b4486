"""Which web pages may open sockets: those of the gateway's own host, and of the origins that the settings list."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_QUIET_S: Final = 60.0
"""How long an origin that was refused is not logged again."""
_REMEMBERED: Final = 50
"""Origins that are told apart; with more within a minute, further ones are not logged."""
_SHOWN: Final = 200


class WebOrigins:
    """Judges origins; ``clock`` counts seconds. A browser tells its page nothing of a refusal, so the log has it."""

    def __init__(
        self, listed: Iterable[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._listed = frozenset(listed)
        self._clock = clock
        self._told: dict[str, float] = {}

    def reload(self, listed: Iterable[str]) -> None:
        """Lists others from now on; sockets that are open stay."""
        self._listed = frozenset(listed)

    def admits(self, origin: str | None, host: str | None) -> bool:
        """Whether a socket may be opened; a program sends no ``origin``. ``host`` is the header of that name."""
        if origin is None or origin in self._listed or _is_same_host(origin, host):
            return True
        self._tell(origin)
        return False

    def _tell(self, origin: str) -> None:
        now = self._clock()
        self._told = {one: at for one, at in self._told.items() if now - at < _QUIET_S}
        if origin in self._told or len(self._told) >= _REMEMBERED:
            return
        self._told[origin] = now
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
