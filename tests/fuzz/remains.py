"""Resources that a gateway has to return: compared before and after."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import httpx

_SETTLE_S: Final = 20.0
_SLACK: Final = {
    "process_open_fds": 6,
    "passerelle_asyncio_tasks": 6,
    "passerelle_connections": 2,
}
_HELD: Final = "passerelle_memory_held_bytes"
_ERRORS: Final = "passerelle_runtime_errors_total"


@dataclass(frozen=True, slots=True)
class Remains:
    """``owner`` may read metrics."""

    owner: httpx.Client

    def measure(self) -> dict[str, float]:
        """Open resources, budget in use, and counted errors."""
        found: dict[str, float] = {_HELD: 0.0, _ERRORS: 0.0}
        for line in self.owner.get("/metrics").text.splitlines():
            name, _, value = line.rpartition(" ")
            kind = name.partition("{")[0]
            if name in _SLACK:
                found[name] = float(value)
            elif kind in {_HELD, _ERRORS}:
                found[kind] += float(value)
        return found

    def find_left_behind(
        self, before: dict[str, float], find_more: Callable[[], Iterable[str]] = tuple
    ) -> Iterator[str]:
        """Resources that were not returned in time; ``find_more`` names further ones at each call."""
        deadline = time.monotonic() + _SETTLE_S
        while more := [*self._compare(before), *find_more()]:
            if time.monotonic() > deadline:
                yield from more
                return
            time.sleep(0.2)

    def _compare(self, before: dict[str, float]) -> Iterator[str]:
        now = self.measure()
        for name, slack in _SLACK.items():
            if now[name] > before[name] + slack:
                yield f"{name}: {before[name]:.0f} before, {now[name]:.0f} after"
        if now[_HELD]:
            yield f"{now[_HELD]:.0f} bytes of the budget are not returned"
        if now[_ERRORS]:
            yield f"the gateway counted {now[_ERRORS]:.0f} errors of its own"
        if not self.owner.get("/readyz").is_success:
            yield "the gateway is not ready any more"
