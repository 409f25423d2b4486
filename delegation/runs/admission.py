"""Whether an attempt may begin now, and why it waits otherwise.

An attempt waits while its agent is paused or has as many sends in progress as its limits allow, while others are
queued before it, and while a quota of its caller does not cover it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, Self

from passerelle.a2a_mapping.members import object_at
from passerelle.core.agent_name import find_base
from passerelle.core.errors import PeerUnavailable
from passerelle.core.peer import Peer, SendSlot
from passerelle.core.wire.record import change
from passerelle.delegation.runs.delivery import read_options
from passerelle.delegation.runs.holds import QueueHold
from passerelle.delegation.runs.quota_waits import (
    MOST_WAITING,
    UncoveredError,
    make_hold,
    name_line,
)
from passerelle.runtime.limits.costs import FREE, Charge, Shortage

if TYPE_CHECKING:
    from passerelle.core.commands import SubmitTurn
    from passerelle.core.payloads.task import QueueCause
    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.queues import QueueStore
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.plan import Delegation
    from passerelle.delegation.runs.quota_waits import QuotaWaits
    from passerelle.runtime.limits.pauses import AgentPauses

DRAIN_RETRY_S: Final = 60


class LimitedPeer(Peer, Protocol):
    """A peer whose sends are limited."""

    @property
    def has_slots(self) -> bool:
        """Whether the number of concurrent sends is limited."""
        ...

    def reserve_now(self) -> SendSlot | None:
        """``reserve`` without a call to the store; None does not mean that all slots are taken."""
        ...

    async def reserve(self) -> SendSlot | None:
        """Reserves a send slot; None: all are taken now."""
        ...


@dataclass(slots=True)
class AttemptReservation:
    """Send slot and charge until the attempt is stored; a ``with`` block that fails gives both back."""

    slot: SendSlot | None = None
    charge: Charge = FREE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.give_back()

    def give_back(self) -> None:
        """Refunds the charge and releases the slot: the message is not sent."""
        self.charge.refund()
        self.release_slot()

    def release_slot(self) -> None:
        """Releases the slot: no send follows now."""
        if self.slot is not None:
            self.slot.give_back()


@dataclass(slots=True)
class AttemptAdmission:
    """Admits attempts, or returns what they wait for."""

    store: QueueStore
    pauses: AgentPauses
    quotas: QuotaWaits
    clock: Clock
    waiting: set[str] = field(default_factory=set[str])
    """Agents, and other queues, in which attempts wait, as far as this instance knows."""

    def find_pause(self, agent: str) -> QueueCause | None:
        """Why an attempt at an agent may not begin now, apart from its limits; no call to the store."""
        pause = self.pauses.find(agent)
        if pause is None:
            return None
        return "draining" if pause.state == "draining" else "paused"

    async def admit(self, agent: str, peer: LimitedPeer) -> QueueCause | SendSlot | None:
        """Whether an attempt may begin now: why not, or its reserved send slot, if it needs one.

        Only an agent with limited slots costs more than a look at memory, and only when this instance's block of slots
        is empty, as its send would.

        Raises:
            StoreUnavailable: the number of other sends in progress is unknown.
        """
        cause = self.find_pause(agent)
        if cause is not None:
            return cause
        if self.waiting and find_base(agent) in self.waiting:
            return "capacity"
        if not peer.has_slots:
            return None
        return peer.reserve_now() or await peer.reserve() or "capacity"

    async def explain(
        self,
        agent: str,
        cause: QueueCause,
        command: SubmitTurn | None = None,
    ) -> QueueHold:
        """The cause as a ``QueueHold``, for people and for the record, with the queue position it would get.

        ``command`` is the request, if it has options for a later send.

        Raises:
            StoreUnavailable: the number of waiting attempts is unknown.
        """
        if cause == "capacity":
            self.waiting.add(find_base(agent))
        [count] = await self.store.count([find_base(agent)])
        pause = self.pauses.find(agent)
        reason = None if pause is None else pause.reason
        send_options, answers_at_once = _read_options(command)
        return QueueHold(
            agent, cause, count + 1, reason, send_options, answers_at_once=answers_at_once
        )

    async def charge(self, principal: Principal, agent: str) -> Charge | Shortage:
        """Charges a message that is about to begin; it goes behind its caller's messages that wait for a quota.

        Asks the store for more than the quota only where such messages are known here.

        Raises:
            StoreUnavailable: the quota cannot be read.
        """
        line, known = name_line(principal.key), self.quotas.find_before(principal.key)
        if known is not None:
            if await self.store.count([line]) != [0]:
                return known
            self.quotas.forget(line)
        return await self.quotas.take(principal, agent)

    async def cover(
        self,
        principal: Principal,
        agent: str,
        command: SubmitTurn,
        plan: Delegation,
        *,
        may_wait: bool,
    ) -> tuple[Delegation, Charge]:
        """The plan with the facts about the caller's quotas, and the charge.

        If the quotas do not cover it, nothing is charged and it waits for them, in addition to any other reason to
        wait.

        Raises:
            UncoveredError: it does not wait.
            StoreUnavailable: the quota, or the number of waiting messages, is unknown.
        """
        charged = await self.charge(principal, agent)
        if not isinstance(charged, Shortage):
            return change(plan, facts=(*plan.facts, *charged.facts)), charged
        hold = (
            await self._explain_shortage(principal, agent, charged, command) if may_wait else None
        )
        if hold is None:
            raise UncoveredError(charged)
        return change(plan, hold=hold, facts=(*plan.facts, charged.fact)), FREE

    async def _explain_shortage(
        self, principal: Principal, agent: str, shortage: Shortage, command: SubmitTurn
    ) -> QueueHold | None:
        """Why a message waits that a quota does not cover, with its queue position; None: it does not wait."""
        if not shortage.is_waited_for:
            return None
        line = name_line(principal.key)
        [count] = await self.store.count([line])
        if count >= MOST_WAITING:
            return None
        now_ms = self.clock.now_ms()
        is_behind = self.quotas.find(line) is shortage and shortage.till_ms <= now_ms
        self.quotas.note(line, shortage)
        send_options, answers_at_once = _read_options(command)
        return make_hold(
            agent,
            shortage,
            count + 1,
            send_options,
            is_behind=is_behind,
            answers_at_once=answers_at_once,
        )

    def refuse_drained(self, agent: str) -> None:
        """Raises PeerUnavailable where an agent takes no new work."""
        if self.find_pause(agent) == "draining":
            raise PeerUnavailable(
                f"agent {find_base(agent)!r} takes no new work: it is being drained",
                retry_after_s=DRAIN_RETRY_S,
                agent=agent,
                state="draining",
            )


def _read_options(command: SubmitTurn | None) -> tuple[JsonObject | None, bool]:
    """The options of a request for a later send, and whether its caller does not wait for the answer."""
    params = command.params or {} if command is not None else {}
    configuration = object_at(params, "configuration")
    return read_options(params), configuration.get("returnImmediately") is True
