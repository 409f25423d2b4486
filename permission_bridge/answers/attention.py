"""Commands about approval requests other than answers. None of them decides, opens or closes a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from passerelle.core.agent_name import find_base
from passerelle.core.approval.audience import may_read
from passerelle.core.approval.commands import RetryReturn, SeeAction
from passerelle.core.approval.record import DELIVERY_STATES
from passerelle.core.approval.requests import (
    MutePeer,
    Mutes,
    NoteSeen,
    PeerMuted,
    ReturnAgain,
    ReturnOwed,
    SeenNoted,
    UnmutePeer,
)
from passerelle.core.errors import Forbidden, NotFound, UnsupportedOperation
from passerelle.core.frozen import frozen
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.times import format_ms, parse_ms
from passerelle.permission_bridge.answers.actions import find_record
from passerelle.runtime.records.writes import Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.approval.commands import ActionCommand
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.approval.requests import AttentionAnswer, AttentionRequest, ListMutes
    from passerelle.core.commands import ActionAnswered, RespondAction
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.answers.actions import Actions
    from passerelle.permission_bridge.governing.run_access import RunAccess
    from passerelle.store.pushes import RedisMutes

_MINUTE_MS: Final = 60_000


@frozen
class Attending:
    """Records who has seen a request, mutes agents for a person, and retries deliveries of decisions."""

    actions: Actions
    dispatch: RunAccess
    mutes: RedisMutes
    time_decision: Callable[[str, float], None]
    """Called with the risk and the open time in seconds of each decided request."""

    async def execute(self, principal: Principal, command: AttentionRequest) -> AttentionAnswer:
        """Carries out one command; every command is idempotent.

        Raises:
            NotFound: no request of the caller.
            Forbidden: the caller is an agent.
            StaleAnswer, ActionClosed, UnsupportedOperation: the state of the request does not allow it.
        """
        if principal.kind == "agent":
            raise Forbidden("a credential of kind agent has no inbox", kind=principal.kind)
        match command:
            case NoteSeen(action_id=action, rev=rev):
                record = await self._apply(principal, action, SeeAction(principal, rev))
                return SeenNoted(action, record.seen)
            case ReturnAgain(action_id=action):
                record = await self._apply(principal, action, RetryReturn())
                self.dispatch.wake(record.scope.task_id or "", action)
                return ReturnOwed(action, record.return_state, DELIVERY_STATES[record.return_state])
            case MutePeer(peer=peer, minutes=minutes):
                return await self.mute(principal, peer, minutes)
            case UnmutePeer(peer=peer):
                await self.mutes.unmute(principal.key, find_base(peer))
                return PeerMuted(find_base(peer), None)
            case _:
                assert_never(command)

    async def respond(self, principal: Principal, command: RespondAction) -> ActionAnswered:
        """Stores an answer, notifies the driver of the task, and mutes the agent if requested.

        Raises:
            NotFound, StaleAnswer, ActionClosed, InvalidInput, Forbidden: the answer is refused.
        """
        answered, written = await self.actions.respond(principal, command)
        record = find_record(written.held, command.action_id)
        if answered.outcome == "won":
            open_ms = parse_ms(record.closed_at) - record.request.created_ms
            self.time_decision(record.request.risk, max(0, open_ms) / 1000)
        self.dispatch.wake(record.scope.task_id or "", command.action_id, written)
        peer = record.request.origin.peer
        if command.mute_minutes is not None and peer is not None:
            # A repeated answer passes here again, so a crash between answer and mute does not lose the mute.
            await self.mute(principal, peer, command.mute_minutes)
        return answered

    async def mute(self, principal: Principal, peer: str, minutes: int) -> PeerMuted:
        """Suppresses pushes to a person about an agent's requests, for all tenants of the agent.

        Raises:
            StoreUnavailable: whether it is muted is unknown.
        """
        base = find_base(peer)
        until_ms = await self.mutes.mute(principal.key, base, minutes * _MINUTE_MS)
        return PeerMuted(base, format_ms(until_ms))

    async def list_mutes(self, principal: Principal, _query: ListMutes) -> JsonObject:
        """The agents that the caller has muted."""
        muted = (await self.mutes.list_muted(principal.key)).items()
        return to_wire(Mutes(tuple(PeerMuted(peer, format_ms(at_ms)) for peer, at_ms in muted)))

    async def _apply(
        self, principal: Principal, action_id: str, command: ActionCommand
    ) -> ActionRecord:
        held = await self.actions.load(action_id)
        if not may_read(find_record(held, action_id), principal):
            raise NotFound("action", action_id)
        outcome = await self.actions.close(action_id, command, held=held)
        if not isinstance(outcome, Written):
            raise UnsupportedOperation("the approval is changing; read it again")
        return find_record(outcome.held, action_id)
