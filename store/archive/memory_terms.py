"""For how long what is over stays in the engine: ``retention.memory``, by agent. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class MemoryTerms:
    """Milliseconds from the last event of a session on; None: for good.

    ``agents`` has those agents that have a time of their own, which counts in place of ``keep_ms``.
    """

    keep_ms: int | None = None
    agents: Mapping[str, int | None] = field(default_factory=dict[str, "int | None"])

    @property
    def shortest_ms(self) -> int | None:
        """No session leaves sooner; None: none ever leaves."""
        every = (self.keep_ms, *self.agents.values())
        return min((keep_ms for keep_ms in every if keep_ms is not None), default=None)

    @property
    def longest_ms(self) -> int | None:
        """Each session may leave then, whichever agents it has; None: some never."""
        return _find_longest((self.keep_ms, *self.agents.values()))

    def find_keep_ms(self, agents: Iterable[str]) -> int | None:
        """For how long a session with tasks of these agents stays: as long as any of them has it stay; None: for good.

        One that has none stays for ``keep_ms``.
        """
        kept = [self.agents.get(agent, self.keep_ms) for agent in agents]
        return _find_longest(kept or [self.keep_ms])

    def shorten(self, share: float, least_ms: int) -> MemoryTerms:
        """A share of each time, and ``least_ms`` of it in any case where it is not shorter itself."""

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
