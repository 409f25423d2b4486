"""Grants of an owner: created by an "always" decision, used before the evaluation that relies on them, listed, revoked.

All grants of an owner are one record, next to the owner's home session. Each change is an append that compares the
version of that record: of two requests that take the last use of a grant one loses and is asked again, and a revocation
applies from the next use on. A crash between a use and its evaluation loses the use and never doubles it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import UnsupportedOperation
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.frozen import frozen
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


@frozen
class GrantService:
    """Reads and changes the grants of owners."""

    writes: Writes
    find_rules: Callable[[], Policy]

    async def read(self, owner: Principal) -> Grants | None:
        """The grants of an owner, in one read; None if there was never one."""
        ref = _name(owner)
        record = (await self.writes.load_one(ref)).record
        return record if isinstance(record, Grants) else None

    async def show(self, owner: Principal) -> JsonObject:
        """The grants of an owner, recently ended ones included, each with its state."""
        grants, now_ms = await self.read(owner), self.writes.clock.now_ms()
        shown: list[Json] = [
            {**to_wire(one), "state": one.judge(now_ms), "expiresAt": format_ms(one.expires_ms)}
            for one in (grants.grants if grants else ())
        ]
        until = grants.bypass_until if grants and grants.bypasses(now_ms) else None
        return {"grants": shown, **({"bypassUntil": until} if until else {})}

    async def mint(self, action: ActionRecord) -> bool:
        """Creates the grant of an "always" decision, once, however often it is tried; False if there is none."""
        grant = mint_grant(action)
        if grant is None:
            return False
        owner = find_owner(action)

        def decide(known: Grants | None, scope: Scope, now_ms: int) -> list[Fact]:
            try:
                return record_grant(known, scope, grant, now_ms)
            except UnsupportedOperation as full:
                return [Fact(scope, WarningRaised("grant_limit", str(full)))]

        await self._change(owner, decide)
        return True

    async def use(self, owner: Principal, grant_id: str, evaluation_id: str) -> None:
        """Counts one use.

        Raises:
            NotFound, UnsupportedOperation: the grant does not apply (any more); nothing is written.
        """
        await self._change(
            owner,
            lambda known, scope, now_ms: record_use(known, scope, grant_id, evaluation_id, now_ms),
        )

    async def revoke(
        self, owner: Principal, command: RevokeGrant, idem: str | None = None
    ) -> GrantRevoked:
        """Revokes a grant, once per idempotency key; requests that it has answered stay answered.

        Raises:
            NotFound: the owner has no such grant.
            IdempotencyConflict: the key was used for another request.
        """
        once = make_once(owner, command, idem)
        first = await once.find(self.writes.log, owner.home)
        if first is not None:
            return GrantRevoked(command.grant_id, "revoked", repeated=True)
        is_ended = False

        def decide(known: Grants | None, scope: Scope, _now_ms: int) -> list[Fact]:
            nonlocal is_ended
            facts = record_revocation(known, scope, command.grant_id, owner.id)
            is_ended = bool(facts)
            return facts

        first = await self._change(owner, decide, once.remember(command.grant_id))
        state: Literal["revoked", "gone"] = "revoked" if is_ended or first is not None else "gone"
        return GrantRevoked(command.grant_id, state, repeated=first is not None)

    async def set_bypass(
        self, owner: Principal, command: SetBypass, idem: str | None = None
    ) -> BypassSet:
        """Turns auto-approval of an owner's requests on for a time, or off; critical and destructive ones still ask.

        Raises:
            IdempotencyConflict: the key was used for another request.
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
        ends_at = first.decode() if first is not None else said
        return BypassSet(ends_at or None, repeated=first is not None)

    async def _change(
        self,
        owner: Principal,
        decide: Callable[[Grants | None, Scope, int], list[Fact]],
        idem: IdempotencyRow | None = None,
    ) -> bytes | None:
        """Appends the facts that ``decide`` returns; returns the earlier result if the key was used meanwhile."""
        session, ref = EntityRef(EntityKind.SESSION, name_home(owner)), _name(owner)

        def body(decision: Decision) -> AppendOptions:
            open_home(decision, session, owner)
            known = decision.state(ref)
            scope = Scope(session.id)
            decision.add(
                decide(known if isinstance(known, Grants) else None, scope, decision.now_ms)
            )
            return AppendOptions(idem=idem)

        outcome = await self.writes.decide(session.id, [session, ref], body)
        return outcome.repeated if isinstance(outcome, Written) else None


def find_owner(action: ActionRecord) -> Principal:
    """The owner of a request, with the members that their home is derived from."""
    return Principal(action.request.principal, action.request.tenant)


def _name(owner: Principal) -> EntityRef:
    return EntityRef(EntityKind.GRANTS, name_home(owner))
