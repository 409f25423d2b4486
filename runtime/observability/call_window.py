"""Call statistics of the last hour, from periodic samples of the counters: the call path writes nothing extra."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from passerelle.core.frozen import frozen
from passerelle.protocol.concurrency import cancel_all
from passerelle.runtime.common.beat import sleep_until_beat

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

    from passerelle.core.ports.chance import Clock
    from passerelle.runtime.observability.metrics import Metrics

HOUR_MS: Final = 3_600_000
LOOK_S: Final = 10.0
_STEP_MS: Final = 60_000
_SENT: Final = "SendMessage"
_ANSWERS: Final = frozenset({"answered", "refused"})
_FAILURES: Final = frozenset({"unreached", "unknown", "malformed"})
"""Outcomes of calls that failed in transport; calls held back by the gateway were never sent."""


@frozen
class _Sample:
    """The counters at a time, in ms."""

    at_ms: int
    calls: Mapping[tuple[str, ...], int]
    times: Mapping[str, tuple[int, ...]]


@frozen
class CallReport:
    """Calls of one agent since a time."""

    since_ms: int
    outcomes: Mapping[str, int]
    answered_ms: int | None
    failed_ms: int | None
    times: tuple[int, ...]
    """Number of answers in each bucket of the request histogram."""


@dataclass(slots=True)
class CallWindow:
    """Samples the counters of calls to agents; ``list_cards`` returns the hash of each agent's card."""

    metrics: Metrics
    clock: Clock
    list_cards: Callable[[], Mapping[str, str]]
    _samples: deque[_Sample] = field(default_factory=deque["_Sample"])
    _seen: dict[tuple[str, ...], int] = field(default_factory=dict["tuple[str, ...]", int])
    _answered: dict[str, int] = field(default_factory=dict[str, int])
    _failed: dict[str, int] = field(default_factory=dict[str, int])
    _cards: dict[str, tuple[str, int]] = field(default_factory=dict[str, "tuple[str, int]"])

    @asynccontextmanager
    async def follow(self) -> AsyncGenerator[None]:
        """Samples for the duration of the block."""
        self.look()
        task = asyncio.create_task(self._run(), name="calls.window")
        try:
            yield
        finally:
            await cancel_all([task])

    async def _run(self) -> None:
        while True:
            await sleep_until_beat(LOOK_S)
            self.look()

    def look(self) -> None:
        """Records which agents have answered or failed since the last sample."""
        now_ms, calls = self.clock.now_ms(), self.metrics.peers.calls.counts
        for (agent, outcome), count in calls.items():
            if count != self._seen.get((agent, outcome), 0):
                self._seen[agent, outcome] = count
                if outcome in _ANSWERS:
                    self._answered[agent] = now_ms
                elif outcome in _FAILURES:
                    self._failed[agent] = now_ms
        for agent, sha256 in self.list_cards().items():
            if self._cards.get(agent, ("", 0))[0] != sha256:
                self._cards[agent] = (sha256, now_ms)
        if not self._samples or now_ms - self._samples[-1].at_ms >= _STEP_MS:
            times = {
                labels[0]: counts
                for labels, counts in self.metrics.calls.request_seconds.read()
                if labels[1] == _SENT
            }
            self._samples.append(_Sample(now_ms, dict(calls), times))
        while len(self._samples) > 1 and now_ms - self._samples[1].at_ms >= HOUR_MS:
            self._samples.popleft()

    def find_card_since(self, agent: str) -> int | None:
        """Since when an agent's card is unchanged, in ms, as seen by this instance; None if unknown."""
        return self._cards[agent][1] if agent in self._cards else None

    def report(self, agent: str) -> CallReport:
        """The call statistics of an agent."""
        found = self.report_all().get(agent)
        return self._compose(agent, {}, ()) if found is None else found

    def report_all(self) -> dict[str, CallReport]:
        """The same for every agent called since this instance started."""
        self.look()
        first = self._samples[0]
        outcomes: dict[str, dict[str, int]] = {}
        for (agent, outcome), count in self.metrics.peers.calls.counts.items():
            since = count - first.calls.get((agent, outcome), 0)
            outcomes.setdefault(agent, {})[outcome] = since
        times = {
            labels[0]: counts
            for labels, counts in self.metrics.calls.request_seconds.read()
            if labels[1] == _SENT
        }
        return {
            agent: self._compose(agent, outcomes.get(agent, {}), times.get(agent, ()))
            for agent in outcomes.keys() | times.keys()
        }

    def _compose(self, agent: str, outcomes: Mapping[str, int], now: tuple[int, ...]) -> CallReport:
        first = self._samples[0]
        before = first.times.get(agent, (0,) * len(now))
        return CallReport(
            since_ms=first.at_ms,
            outcomes={name: count for name, count in sorted(outcomes.items()) if count},
            answered_ms=self._answered.get(agent),
            failed_ms=self._failed.get(agent),
            times=tuple(late - early for late, early in zip(now, before, strict=True)),
        )

    def find_quantile(self, times: Sequence[int], percent: int) -> float | None:
        """The quantile over answers of several instances, in s."""
        return find_quantile(times, self.metrics.calls.request_seconds.bounds, percent)


def find_quantile(counts: Iterable[int], bounds: Sequence[float], percent: int) -> float | None:
    """The lowest bound with ``percent`` of the values at or below it; None: no values, or above the last bound."""
    sums = [*accumulate(counts)]
    if not sums or not sums[-1]:
        return None
    place = next(place for place, sum_ in enumerate(sums) if sum_ * 100 >= sums[-1] * percent)
    return bounds[place] if place < len(bounds) else None
