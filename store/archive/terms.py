"""How long ended sessions stay in the engine, and are kept at all: ``retention.memory`` and ``.forget``. Pure."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from passerelle.core.frozen import frozen
from passerelle.core.task.status import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from passerelle.store.archive.ended_tasks import EndedTask


@frozen
class MemoryTerms:
    """Milliseconds after the last event of a session; None: for good.

    ``agents`` has agents with a time of their own, which replaces ``keep_ms``.
    """

    keep_ms: int | None = None
    agents: Mapping[str, int | None] = field(default_factory=dict[str, "int | None"])

    @property
    def shortest_ms(self) -> int | None:
        """No session is archived sooner; None: none ever is."""
        every = (self.keep_ms, *self.agents.values())
        return min((keep_ms for keep_ms in every if keep_ms is not None), default=None)

    @property
    def longest_ms(self) -> int | None:
        """After this time any session may be archived, whatever its agents; None: some never."""
        return _find_longest((self.keep_ms, *self.agents.values()))

    def find_keep_ms(self, agents: Iterable[str]) -> int | None:
        """How long a session with tasks of these agents stays: the longest of their times; None: for good.

        A session without agents stays for ``keep_ms``.
        """
        kept = [self.agents.get(agent, self.keep_ms) for agent in agents]
        return _find_longest(kept or [self.keep_ms])

    def shorten(self, share: float, least_ms: int) -> MemoryTerms:
        """A share of each time, but at least ``least_ms`` unless the time itself is shorter."""

        def shorten(keep_ms: int | None) -> int | None:
            if keep_ms is None:
                return None
            return min(keep_ms, max(round(keep_ms * share), least_ms))

        own = {agent: shorten(keep_ms) for agent, keep_ms in self.agents.items()}
        return MemoryTerms(shorten(self.keep_ms), own)


def _find_longest(kept: Iterable[int | None]) -> int | None:
    longest = 0
    for keep_ms in kept:
        if keep_ms is None:
            return None
        longest = max(longest, keep_ms)
    return longest


@frozen
class ForgetTerms:
    """Milliseconds after the last event of a session, by outcome of its tasks; other outcomes are kept for good.

    ``agents`` has agents with terms of their own, which replace the general ones.
    """

    outcomes: Mapping[str, int] = field(default_factory=dict[str, int])
    agents: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, "Mapping[str, int]"])

    @property
    def shortest_ms(self) -> int | None:
        """No session is forgotten sooner; None: none ever is."""
        every = (self.outcomes, *self.agents.values())
        return min((keep_ms for terms in every for keep_ms in terms.values()), default=None)

    def find_keep_ms(self, tasks: Iterable[EndedTask]) -> int | None:
        """How long a session with these tasks is kept: as long as its longest-kept task; None: for good.

        A session without tasks is kept as long as any task could be.
        """
        kept = list[int | None]()
        for task in tasks:
            for agent in task.agents or ("",):
                kept.append(self.agents.get(agent, self.outcomes).get(task.status))
        longest = kept or [self.outcomes.get(outcome) for outcome in TERMINAL]
        known = [one for one in longest if one is not None]
        return max(known) if len(known) == len(longest) else None
