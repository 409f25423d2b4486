"""Grants of an owner: written by an "always" answer, used before what relies on them, listed, revoked.

All of them are one record beside the owner's home session. Each change is an append that compares that record, so of
two who use the last use of a grant one loses and asks again, and a revocation holds from the next use on. A crash
between a use and the evaluation that relies on it burns the use and never doubles it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import UnsupportedOperation
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.payloads.governance import PolicyChanged
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.policy.grant import Grants, record_grant, record_revocation, record_use
from passerelle.core.policy.requests import BypassSet, GrantRevoked
from passerelle.core.principal import Principal
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.times import format_ms
from passerelle.permission_bridge.grants import mint_grant
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.places import name_home, open_home
from passerelle.runtime.records.writes import AppendOptions, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.batch import IdempotencyRow
    from passerelle.core.decision import Decision
    from passerelle.core.policy.requests import RevokeGrant, SetBypass
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.records.writes import Writes


@dataclass(frozen=True, slots=True)
class Granting:
    """Reads and changes the grants of owners."""

    writes: Writes
    find_rules: Callable[[], Policy]

    async def read(self, owner: Principal) -> Grants | None:
        """The grants of an owner, in one read; None where there never was one."""
        ref = _name(owner)
        record = (await self.writes.load([ref]))[ref].record
        return record if isinstance(record, Grants) else None

    async def show(self, owner: Principal) -> JsonObject:
        """The grants of an owner, those that ended lately too, each with what it is now."""
        grants, now_ms = await self.read(owner), self.writes.clock.now_ms()
        shown: list[Json] = [
            {**to_wire(one), "state": one.judge(now_ms), "expiresAt": format_ms(one.expires_ms)}
            for one in (grants.grants if grants else ())
        ]
        until = grants.bypass_until if grants and grants.bypasses(now_ms) else None
        return {"grants": shown, **({"bypassUntil": until} if until else {})}

    async def mint(self, action: ActionRecord) -> bool:
        """Writes the grant of an "always" answer, once, however often it is tried; whether there was one to write."""
        grant = mint_grant(action)
        if grant is None:
            return False
        owner = find_owner(action)

        def tell(known: Grants | None, scope: Scope, now_ms: int) -> list[Fact]:
            try:
                return record_grant(known, scope, grant, now_ms)
            except UnsupportedOperation as full:
                return [Fact(scope, WarningRaised("grant_limit", str(full)))]

        await self._change(owner, tell)
        return True

    async def use(self, owner: Principal, grant_id: str, evaluation_id: str) -> None:
        """Counts one use.

        Raises:
            NotFound, UnsupportedOperation: it does not hold (any more); nothing is written.
        """
        await self._change(
            owner,
            lambda known, scope, now_ms: record_use(known, scope, grant_id, evaluation_id, now_ms),
        )

    async def revoke(
        self, owner: Principal, command: RevokeGrant, idem: str | None = None
    ) -> GrantRevoked:
        """Ends a grant, once per idempotency key; a question that it has answered already stays answered.

        Raises:
            NotFound: the owner has no such grant.
            IdempotencyConflict: the key came with another request.
        """
        once = make_once(owner, command, idem)
        first = await once.find(self.writes.log, owner.home)
        if first is not None:
            return GrantRevoked(command.grant_id, "revoked", repeated=True)
        is_ended = False

        def tell(known: Grants | None, scope: Scope, _now_ms: int) -> list[Fact]:
            nonlocal is_ended
            facts = record_revocation(known, scope, command.grant_id, owner.id)
            is_ended = bool(facts)
            return facts

        first = await self._change(owner, tell, once.remember(command.grant_id))
        state: Literal["revoked", "gone"] = "revoked" if is_ended or first is not None else "gone"
        return GrantRevoked(command.grant_id, state, repeated=first is not None)

    async def set_bypass(
        self, owner: Principal, command: SetBypass, idem: str | None = None
    ) -> BypassSet:
        """Has everything of an owner allowed for a while, but for the critical and the destructive; or no longer.

        Raises:
            IdempotencyConflict: the key came with another request.
        """
        once = make_once(owner, command, idem)
        first = await once.find(self.writes.log, owner.home)
        if first is not None:
            return BypassSet(first.decode() or None, repeated=True)
        until_ms = self.writes.clock.now_ms() + command.seconds * 1000
        until = format_ms(until_ms)
        changed = PolicyChanged(
            "mode", owner.id, self.find_rules().version, mode="bypass", until=until
        )
        said = until if command.seconds else ""
        first = await self._change(
            owner, lambda _known, scope, _now_ms: [Fact(scope, changed)], once.remember(said)
        )
        told = first.decode() if first is not None else said
        return BypassSet(told or None, repeated=first is not None)

    async def _change(
        self,
        owner: Principal,
        tell: Callable[[Grants | None, Scope, int], list[Fact]],
        idem: IdempotencyRow | None = None,
    ) -> bytes | None:
        """Appends what ``tell`` says; what came of it where the key had been used meanwhile."""
        session, ref = EntityRef(EntityKind.SESSION, name_home(owner)), _name(owner)

        def body(decision: Decision) -> AppendOptions:
            open_home(decision, session, owner)
            known = decision.state(ref)
            scope = Scope(session.id)
            decision.add(tell(known if isinstance(known, Grants) else None, scope, decision.now_ms))
            return AppendOptions(idem=idem)

        outcome = await self.writes.decide(session.id, [session, ref], body)
        return outcome.repeated if isinstance(outcome, Written) else None


def find_owner(action: ActionRecord) -> Principal:
    """Whose question it is: enough of them to find their home."""
    return Principal(action.request.principal, action.request.tenant)


def _name(owner: Principal) -> EntityRef:
    return EntityRef(EntityKind.GRANTS, name_home(owner))
