"""How long ended sessions are kept at all: ``retention.forget``, by outcome and agent. Pure."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from passerelle.core.frozen import frozen
from passerelle.core.task.status import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from passerelle.store.archive.ended_tasks import EndedTask


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
