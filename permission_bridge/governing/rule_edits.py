"""Edits rules at runtime, next to those of the configuration, for every instance (EXT-3).

An edit names the revision that was read, so of two concurrent edits one is refused. Everything is checked before
anything is written, and the answer contains the effect on recent cases. Each instance caches the rules: it reads them
at startup, on notification of a change, and periodically.
"""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TYPE_CHECKING, Final

import structlog

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import (
    Forbidden,
    RecordDamaged,
    StoreUnavailable,
    UnsupportedOperation,
    VersionMismatch,
)
from passerelle.core.facts import Scope
from passerelle.core.frozen import frozen
from passerelle.core.payloads.governance import PolicyChanged
from passerelle.core.policy.edited_rules import EditedRules, record_edit
from passerelle.core.policy.requests import PolicySet, PolicyTried
from passerelle.core.ports.signals import RuleUpdates
from passerelle.core.principal import OWNER, AccessScope
from passerelle.core.wire.codec import to_wire
from passerelle.permission_bridge.policy_view import show_policy
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.places import name_home, open_home
from passerelle.runtime.records.writes import AppendOptions, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.decision import Decision
    from passerelle.core.policy.requests import SetPolicy
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.governing.dry_run import PolicyDryRun
    from passerelle.permission_bridge.governing.rulebook import Rulebook
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.records.idempotency import Once
    from passerelle.runtime.records.writes import Writes

HOME: Final = name_home(OWNER)
_SESSION: Final = EntityRef(EntityKind.SESSION, HOME)
_RULES: Final = EntityRef(EntityKind.RULES, HOME)


@frozen
class PolicyEditing:
    """Reads and replaces the edited rules; ``find_rules`` returns the policy in force."""

    writes: Writes
    rulebook: Rulebook
    find_rules: Callable[[], Policy]
    news: RuleUpdates
    dry_run: PolicyDryRun
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Serializes reads and writes: an older read must not overwrite a newer write."""

    async def refresh(self) -> EditedRules | None:
        """Applies the stored rules here. If they cannot be parsed, everything is denied.

        Raises:
            StoreUnavailable: the previous rules stay in force.
        """
        async with self.turn:
            try:
                return await self._read()
            except RecordDamaged as wrong:
                self.rulebook.distrust(wrong.reason)
                return None

    async def show(self, principal: Principal) -> JsonObject:
        """The policy for the work of a caller; all edited rules for a caller that may edit them."""
        edited = await self.refresh()
        may_edit = AccessScope.WRITE_POLICY in principal.scopes and principal.tenant == OWNER.tenant
        view = show_policy(self.find_rules(), principal.id, edited, may_edit=may_edit)
        return to_wire(view)

    async def edit(self, principal: Principal, command: SetPolicy, idem: str | None) -> PolicySet:
        """Replaces the edited rules, or returns what that would change.

        Raises:
            InvalidInput: an invalid rule; the field is named, and nothing is written.
            VersionMismatch: they were edited since they were read; nothing is written.
            Forbidden: a caller of another tenant: the rules apply to the whole gateway.
            UnsupportedOperation: this version cannot parse the stored rules.
            IdempotencyConflict: the key was used for another request.
        """
        if principal.tenant != OWNER.tenant:
            raise Forbidden("the rules are those of the whole gateway", tenant=principal.tenant)
        once = make_once(principal, command, idem)
        first = await once.find(self.writes.log, OWNER.home)
        if first is not None:
            return PolicySet(int(first), self.find_rules().version, repeated=True)
        wanted = self.rulebook.preview(command.rules)
        await self.refresh()
        in_force = self.find_rules()
        tried = await self.dry_run.compare(principal, wanted, in_force, command.tries)
        async with self.turn:
            await self._read_or_refuse()
            if command.dry_run:
                return self._preview(command, wanted, tried)
            answer = await self._write(principal, command, wanted, tried, once)
        await self._notify_instances()
        return answer

    async def _read(self) -> EditedRules | None:
        found = (await self.writes.load_one(_RULES)).record
        edited = found if isinstance(found, EditedRules) else None
        self.rulebook.take(edited)
        return edited

    async def _read_or_refuse(self) -> None:
        try:
            await self._read()
        except RecordDamaged as wrong:
            self.rulebook.distrust(wrong.reason)
            raise UnsupportedOperation(f"the edited rules cannot be read: {wrong.reason}") from None

    def _preview(self, command: SetPolicy, wanted: Policy, tried: PolicyTried) -> PolicySet:
        current = self.rulebook.revision
        if command.version != current:
            raise VersionMismatch(command.version, current)
        return PolicySet(current, wanted.version, dry_run=True, tried=tried)

    async def _write(
        self,
        principal: Principal,
        command: SetPolicy,
        wanted: Policy,
        tried: PolicyTried,
        once: Once,
    ) -> PolicySet:
        edited = PolicyChanged(
            "rules",
            principal.id,
            wanted.version,
            previous=self.rulebook.find_rules().version,
            mode=wanted.mode,
            rules=command.rules,
        )

        def body(decision: Decision) -> AppendOptions:
            open_home(decision, _SESSION, OWNER)
            known = decision.state(_RULES)
            state = known if isinstance(known, EditedRules) else None
            decision.add(record_edit(state, Scope(HOME), command.version, edited))
            return AppendOptions(idem=once.remember(str(command.version + 1)))

        outcome = await self.writes.decide(HOME, [_SESSION, _RULES], body)
        if not isinstance(outcome, Written) or outcome.repeated is not None:
            return PolicySet(command.version + 1, self.find_rules().version, repeated=True)
        record = outcome.held[_RULES].record
        self.rulebook.take(record if isinstance(record, EditedRules) else None)
        return PolicySet(self.rulebook.revision, self.rulebook.find_rules().version, tried=tried)

    async def _notify_instances(self) -> None:
        try:
            await self.news.publish(HOME)
        except StoreUnavailable as error:
            # Every instance reads the rules periodically anyway.
            structlog.get_logger().info("rules.not_announced", reason=error.reason)
