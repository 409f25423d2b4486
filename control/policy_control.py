"""Every command and query about policy, each to the part that carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from passerelle.core.approval.requests import (
    ListMutes,
    MutePeer,
    NoteSeen,
    ReturnAgain,
    UnmutePeer,
)
from passerelle.core.errors import Forbidden
from passerelle.core.policy.requests import (
    AskPermission,
    EvaluatePermission,
    ExplainAction,
    GetActionContent,
    GetPermissions,
    GetPolicy,
    ListGrants,
    ResolvePermission,
    RevokeGrant,
    SetBypass,
    SetPolicy,
    TryPolicy,
    UsePermission,
    WithdrawPermission,
)
from passerelle.core.wire.codec import to_wire

if TYPE_CHECKING:
    from passerelle.control.read_models import PermissionSummaries
    from passerelle.core.policy.requests import PolicyAnswer, PolicyQuery, PolicyRequest
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.answers.attention import Attending
    from passerelle.permission_bridge.answers.audit import Explaining
    from passerelle.permission_bridge.answers.grants import Granting
    from passerelle.permission_bridge.answers.subjects import Subjects
    from passerelle.permission_bridge.answers.workers import WorkerAsking
    from passerelle.permission_bridge.governing.command_gate import Governing
    from passerelle.permission_bridge.governing.judgement import Judging
    from passerelle.permission_bridge.governing.rule_edits import PolicyEditing


@dataclass(frozen=True, slots=True)
class PolicyControl:
    """The control plane over policy."""

    granting: Granting
    judging: Judging
    workers: WorkerAsking
    explaining: Explaining
    governing: Governing
    summaries: PermissionSummaries
    attending: Attending
    subjects: Subjects
    editing: PolicyEditing

    async def execute(
        self, principal: Principal, command: PolicyRequest, idem: str | None = None
    ) -> PolicyAnswer:
        """Carries out one command; each is the same when it comes twice, where it has no name of its own by its key.

        Raises:
            Forbidden: an agent wants to loosen what it is held by.
        """
        match command:
            case AskPermission():
                return await self.workers.ask(principal, command)
            case UsePermission():
                return await self.workers.use(principal, command)
            case WithdrawPermission():
                return await self.workers.withdraw(principal, command)
            case NoteSeen() | ReturnAgain() | MutePeer() | UnmutePeer():
                return await self.attending.execute(principal, command)
            case RevokeGrant() | SetBypass() | ResolvePermission() | SetPolicy():
                return await self._loosen(principal, command, idem)
            case _:
                assert_never(command)

    async def _loosen(
        self,
        principal: Principal,
        command: RevokeGrant | SetBypass | ResolvePermission | SetPolicy,
        idem: str | None,
    ) -> PolicyAnswer:
        if principal.kind == "agent":
            raise Forbidden("a credential of kind agent changes no policy", kind=principal.kind)
        match command:
            case RevokeGrant():
                return await self.granting.revoke(principal, command, idem)
            case SetBypass():
                return await self.granting.set_bypass(principal, command, idem)
            case ResolvePermission():
                return await self.workers.resolve(principal, command)
            case SetPolicy():
                return await self.editing.edit(principal, command, idem)
            case _:
                assert_never(command)

    async def read(self, principal: Principal, query: PolicyQuery) -> JsonObject:
        """Answers one query."""
        match query:
            case ListGrants():
                return await self.granting.show(principal)
            case ListMutes():
                return to_wire(await self.attending.list_mutes(principal))
            case EvaluatePermission():
                return await self.judging.evaluate(principal, query)
            case GetActionContent():
                return await self.subjects.read(principal, query)
            case ExplainAction():
                return await self.explaining.explain(principal, query)
            case GetPermissions():
                return await self.summaries.read(principal, query)
            case GetPolicy():
                return await self.editing.show(principal)
            case TryPolicy():
                return await self.editing.rehearsing.try_policy(principal, query)
            case _:
                assert_never(query)
