"""Messages that wait for a quota or a budget of their caller: what is known here of it, and what they pay (ST-8, CF-7).

Such a message is taken and not charged. It waits in the line of its caller, ``quota:<owner>``, beside a due row of its
own that comes when the quota resets; whoever goes on with the line charges the first one, and what is not covered
stays in its place. What is known here of a line saves asking, and lets nobody who comes later go first; it decides
nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.principal import Principal
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs.holds import QueueHold
from passerelle.runtime.limits.costs import FREE

if TYPE_CHECKING:
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.limits.costs import Charge, Shortage, Spending

LINE: Final = "quota:"
MOST_WAITING: Final = 1_000
"""Messages of one caller that wait; a further one is refused."""


def name_line(owner: str) -> str:
    """The line of a caller, by its key."""
    return f"{LINE}{owner}"


class UncoveredError(Exception):
    """Nothing is stored: a quota of its caller does not cover a message, and it does not wait for that."""

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(shortage.name)
        self.shortage = shortage


@dataclass(slots=True)
class QuotaWaits:
    """What messages wait for, and pay. ``spending`` None: nobody has a quota."""

    spending: Spending | None
    _short: dict[str, Shortage] = field(default_factory=dict[str, "Shortage"])
    """By line, what did not cover the first one when that was tried last."""

    @property
    def lines(self) -> tuple[str, ...]:
        """Those in which somebody waits, as far as is known here."""
        return tuple(self._short)

    def note(self, line: str, shortage: Shortage) -> None:
        """The first one of a line is not covered."""
        self._short[line] = shortage

    def forget(self, line: str) -> None:
        """Nobody waits in a line."""
        self._short.pop(line, None)

    def find(self, line: str) -> Shortage | None:
        """What the first one of a line waits for, as far as is known here."""
        return self._short.get(line)

    def find_before(self, owner: str) -> Shortage | None:
        """What a message of a caller has to wait for since others do that came before; None: it may be tried.

        A quota of calls holds every message of its caller, a budget only those at agents with a price in it.
        """
        known = self._short.get(name_line(owner)) if self._short else None
        return known if known is not None and known.quota.currency is None else None

    async def take(self, principal: Principal, agent: str) -> Charge | Shortage:
        """Charges a run at an agent.

        Raises:
            StoreUnavailable: nobody can tell.
        """
        if self.spending is None:
            return FREE
        return await self.spending.take(principal, agent, opens=True)

    async def pay(self, record: TaskRecord) -> Charge | Shortage:
        """Charges a message that was taken without that, as ``take``."""
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
    """Why a message to an agent waits, in words."""
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
