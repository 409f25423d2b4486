"""Messages that wait for a quota or a budget of their caller: what is known here, and their charges (ST-8, CF-7).

Such a message is accepted and not charged. It waits in the queue of its caller, ``quota:<owner>``, with a due row of
its own at the time when the quota resets. The loop of that queue charges the first message; a message that is not
covered keeps its place. What this instance knows of a queue saves requests, and keeps later messages behind; it decides
nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.principal import Principal
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs.holds import QueueHold

if TYPE_CHECKING:
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.limits.costs import Charge, Shortage, Spending

LINE: Final = "quota:"
MOST_WAITING: Final = 1_000
"""Waiting messages of one caller; a further one is refused."""


def name_line(owner: str) -> str:
    """The queue of a caller, by its key."""
    return f"{LINE}{owner}"


class UncoveredError(Exception):
    """Nothing is stored: a quota does not cover the message, and the message does not wait for it."""

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(shortage.name)
        self.shortage = shortage


@dataclass(slots=True)
class QuotaWaits:
    """The shortages that messages wait for, and their charges."""

    spending: Spending
    _short: dict[str, Shortage] = field(default_factory=dict[str, "Shortage"])
    """By queue, the shortage of its first message at the last try."""

    @property
    def lines(self) -> tuple[str, ...]:
        """Queues with waiting messages, as far as this instance knows."""
        return tuple(self._short)

    def note(self, line: str, shortage: Shortage) -> None:
        """The first message of a queue is not covered."""
        self._short[line] = shortage

    def forget(self, line: str) -> None:
        """A queue is empty."""
        self._short.pop(line, None)

    def find(self, line: str) -> Shortage | None:
        """What the first message of a queue waits for, as far as this instance knows."""
        return self._short.get(line)

    def find_before(self, owner: str) -> Shortage | None:
        """The shortage that a message of a caller waits for behind earlier ones; None: it may be tried.

        A quota of calls holds every message of its caller, a budget only those at agents with a price in it.
        """
        known = self._short.get(name_line(owner)) if self._short else None
        return known if known is not None and known.quota.currency is None else None

    async def take(self, principal: Principal, agent: str) -> Charge | Shortage:
        """Charges a run at an agent.

        Raises:
            StoreUnavailable: the quota cannot be read.
        """
        return await self.spending.take(principal, agent, opens=True)

    async def pay(self, record: TaskRecord) -> Charge | Shortage:
        """Charges a message that was accepted without a charge, as ``take``."""
        owner = Principal(record.scope.principal, record.scope.tenant)
        return await self.take(owner, record.peer or "")


def make_hold(
    agent: str,
    shortage: Shortage,
    position: int | None,
    send_options: JsonObject | None = None,
    *,
    is_behind: bool = False,
    answers_at_once: bool = False,
) -> QueueHold:
    """The hold of a message that waits for a quota."""
    return QueueHold(
        agent,
        "quota",
        position,
        shortage.name,
        send_options,
        answers_at_once=answers_at_once,
        caller=shortage.fact.limited.name,
        until=format_ms(shortage.till_ms),
        is_behind=is_behind,
        unpaid=True,
    )
