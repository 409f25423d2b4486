"""Evaluates a hypothetical case: nothing is written, no hook is called, no grant is used (CMD-18, CMD-21)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard
from passerelle.core.policy.requests import Judgement
from passerelle.core.wire.codec import to_wire
from passerelle.permission_bridge.cases import ControlCommand, InboundCall, OutboundDelegation
from passerelle.permission_bridge.grants import NOWHERE, Where
from passerelle.permission_bridge.policy import PolicyFacts, evaluate
from passerelle.permission_bridge.worker_asks import find_fault, make_prompt, read_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.policy.requests import EvaluatePermission
    from passerelle.core.ports.chance import Ids
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.answers.grants import GrantService
    from passerelle.permission_bridge.cases import Case
    from passerelle.permission_bridge.governing.run_access import Tagged
    from passerelle.permission_bridge.policy import Evaluation
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.records.ownership import Ownership


@frozen
class PolicyPreview:
    """Evaluates hypothetical cases."""

    granting: GrantService
    ownership: Ownership
    find_rules: Callable[[], Policy]
    find_terms: Callable[[str], Tagged]
    is_configured: Callable[[str], bool]
    ids: Ids

    async def evaluate(self, principal: Principal, query: EvaluatePermission) -> JsonObject:
        """The decision of policy on a case of the caller.

        Raises:
            NotFound: a task that is not the caller's.
        """
        policy = await self.prepare(principal, query.task_id)
        return render_judgement(policy.evaluate(query))

    async def prepare(self, principal: Principal, task_id: str | None = None) -> CallerPolicy:
        """Prepares the evaluation of several cases of the caller, as of now and within a task if one is given.

        Raises:
            NotFound: a task that is not the caller's.
        """
        now_ms = self.granting.writes.clock.now_ms()
        grants = await self.granting.read(principal)
        facts = PolicyFacts(
            self.ids.mint("eval", Shard(0)),
            grants=grants.grants if grants else (),
            where=await self._place(principal, task_id),
            bypass=grants.bypasses(now_ms) if grants else False,
        )
        return CallerPolicy(self, principal, facts, self.find_rules(), now_ms)

    def prepare_by_rules(self, principal: Principal) -> CallerPolicy:
        """The same by rules alone: grants and auto-approval are ignored."""
        rules, now_ms = self.find_rules(), self.granting.writes.clock.now_ms()
        return CallerPolicy(self, principal, PolicyFacts(""), rules, now_ms)

    async def _place(self, principal: Principal, task: str | None) -> Where:
        if task is None:
            return NOWHERE
        record = (await self.ownership.find(principal, task, None, hidden=True)).record
        return Where(record.task_id, record.thread_id or "", record.session_id)


@frozen
class CallerPolicy:
    """Evaluates cases of one caller with the facts of one moment."""

    judging: PolicyPreview
    principal: Principal
    facts: PolicyFacts
    rules: Policy
    now_ms: int

    def evaluate(self, query: EvaluatePermission) -> Evaluation:
        """The decision of policy on a case; its task was given to ``prepare``."""
        facts = replace(
            self.facts,
            may_call=self.principal.may_call(query.agent),
            is_configured=self.judging.is_configured(query.agent),
            unsound=find_fault(query.subject),
        )
        return evaluate(self._make(query), facts, self.now_ms, self.rules)

    def _make(self, query: EvaluatePermission) -> Case:
        principal, tags = self.principal, self.judging.find_terms(query.agent).tags
        match query.about:
            case "calls":
                return InboundCall(principal.id, query.agent, tags)
            case "delegations":
                args: JsonObject = {"text": query.text}
                return OutboundDelegation(query.agent, principal.id, tags, args=args)
            case "commands":
                content = query.subject
                return ControlCommand(
                    principal.id, content.tool, query.action_type, content.arguments, query.agent
                )
            case "asks":
                prompt = make_prompt(
                    query.action_type,
                    query.subject,
                    destructive=query.destructive,
                    risk=query.risk,
                )
                asked = read_worker(prompt, principal.id, query.agent)
                return replace(asked, asker="peer", tags=tags)
            case _:
                assert_never(query.about)


def render_judgement(found: Evaluation) -> JsonObject:
    """An evaluation in wire form."""
    return to_wire(
        Judgement(
            decision=found.decision,
            source=found.source,
            reason=found.reason,
            policy_version=found.policy_version,
            risk=found.risk,
            risk_reasons=found.risk_reasons,
            rules=found.rules,
            trail=found.trail,
            grant_id=found.grant_id,
        )
    )
