"""Policy evaluation: ``evaluate`` decides one case without asking, and returns its reasoning for the record (EXT-1).

Pure. First every source gives its verdict, so that the trail shows all of them. Then a fixed precedence decides,
independent of the order of the rules:

1. integrity: a case or policy that cannot be parsed is denied, and no other source is evaluated,
2. a rule that denies, the host's before its owner's; a hook that denies; the deny of a default; mode ``plan``,
3. a hook that asks, a rule that asks; a grant answers only for a rule that is ``grantable``,
4. a grant,
5. a rule that allows,
6. a hook that would allow,
7. mode ``auto``, which allows up to medium risk, and ``bypass``, which allows all but critical and destructive actions,
8. the default of the direction: a caller may do what its credential covers, a configured agent may be called, and the
   request of an agent needs an approver,
9. the classifier: it can turn an allow into an approval request and raise the risk, never the reverse,
10. if the result is to ask: mode ``no_ask`` denies, and without a possible approver the case is denied at once.

Deny beats ask beats allow (PRS-3). A request for input or for a credential is never allowed by policy: only a person
can supply the content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never

from passerelle.core.frozen import frozen
from passerelle.core.payloads.approval import PermissionEvaluated, Risk, TrailStep
from passerelle.permission_bridge.approvers import RISKS
from passerelle.permission_bridge.cases import (
    Case,
    ControlCommand,
    InboundCall,
    OutboundDelegation,
    PeerAsks,
    list_values,
    name_case,
    name_type,
    weigh,
)
from passerelle.permission_bridge.grants import NOWHERE, Where, find_grant
from passerelle.permission_bridge.rules import CHANGING, DEFAULT_POLICY, Effect, Policy, PolicyMode

if TYPE_CHECKING:
    from passerelle.core.approval.commands import PolicyCause
    from passerelle.core.payloads.governance import Grant
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.rules import Rule

EvaluationSource: TypeAlias = Literal[
    "integrity", "rule", "hook", "grant", "mode", "default", "classifier", "unavailable"
]
Verdict: TypeAlias = Effect | Literal["silent"]

_AUTO_UP_TO: Final[Risk] = "medium"


@frozen
class SourceVerdict:
    """The verdict of one source, with its reason. ``ref`` is the name of the rule, mode, hook or grant."""

    source: EvaluationSource
    verdict: Verdict
    reason: str
    ref: str | None = None
    ms: int | None = None
    risk: Risk | None = None
    """The risk rating of a classifier."""
    grantable: bool = False
    """Whether a grant may answer for a rule that asks."""

    def to_step(self) -> TrailStep:
        """The verdict as a step of the trail."""
        return TrailStep(self.source, self.verdict, self.ref or self.reason, self.ms)


@frozen
class PolicyFacts:
    """The input besides the case. The caller mints ``evaluation_id``."""

    evaluation_id: str
    may_call: bool = False
    """Whether the caller's credential covers the agent."""
    is_configured: bool = False
    """Whether the agent is configured."""
    opinions: tuple[SourceVerdict, ...] = ()
    """Verdicts of hooks and the classifier, consulted before the evaluation."""
    grants: tuple[Grant, ...] = ()
    """The grants of the owner."""
    where: Where = NOWHERE
    bypass: bool = False
    """Whether everything of the owner is auto-approved for a limited time."""
    can_ask: bool = True
    """Whether there is a possible approver."""
    unsound: str | None = None
    """Why the input cannot be parsed with certainty."""


@frozen
class Evaluation:
    """The decision of policy and its reasons."""

    evaluation_id: str
    decision: Effect
    source: EvaluationSource
    reason: str
    subject: str
    policy_version: str
    risk: Risk
    risk_reasons: tuple[str, ...]
    trail: tuple[TrailStep, ...]
    rules: tuple[str, ...]
    grant_id: str | None
    """The grant that the decision relies on; its use is recorded before the evaluation."""
    offers_grant: bool
    """Whether an approver may create a grant instead of a single approval."""
    case: JsonObject | None = None
    """The case as it is recorded."""

    @property
    def cause(self) -> PolicyCause:
        """The cause with which a request that policy answers is closed; a classifier only ever asks."""
        return "default" if self.source == "classifier" else self.source

    def to_payload(self) -> PermissionEvaluated:
        """The fact that records the evaluation, also for an allow (CHN-14)."""
        return PermissionEvaluated(
            evaluation_id=self.evaluation_id,
            decision=self.decision,
            source=self.source,
            reason=self.reason,
            subject=self.subject,
            policy_version=self.policy_version,
            risk=self.risk,
            trail=self.trail,
            rules=self.rules,
            case=self.case,
        )


def evaluate(
    case: Case, facts: PolicyFacts, now_ms: int, policy: Policy = DEFAULT_POLICY
) -> Evaluation:
    """Decides ``case``. The same arguments always give the same evaluation; nothing is written."""
    risk, risk_reasons = _rate_risk(case, facts)
    verdicts = _collect(case, facts, policy, risk, now_ms)
    winner = _choose(verdicts)
    for more in (_escalate, _refuse_to_ask):
        changed = more(winner, verdicts, facts, policy.mode)
        if changed is not None:
            verdicts.append(changed)
            winner = changed
    return Evaluation(
        evaluation_id=facts.evaluation_id,
        decision=_read_effect(winner),
        source=winner.source,
        reason=winner.reason,
        subject=name_case(case),
        policy_version=policy.version,
        risk=risk,
        risk_reasons=risk_reasons,
        trail=tuple(one.to_step() for one in verdicts),
        rules=tuple(one.ref for one in verdicts if one.source == "rule" and one.ref),
        grant_id=winner.ref if winner.source == "grant" else None,
        offers_grant=_offers_grant(winner, verdicts),
    )


def _rate_risk(case: Case, facts: PolicyFacts) -> tuple[Risk, tuple[str, ...]]:
    risk, reasons = weigh(case)
    for opinion in facts.opinions:
        if opinion.risk is not None and RISKS.index(opinion.risk) > RISKS.index(risk):
            risk, reasons = opinion.risk, (f"{opinion.ref} rates it {opinion.risk}",)
    return risk, reasons


def _collect(
    case: Case, facts: PolicyFacts, policy: Policy, risk: Risk, now_ms: int
) -> list[SourceVerdict]:
    unsound = policy.unsound or facts.unsound
    if unsound is not None:
        return [SourceVerdict("integrity", "deny", unsound)]
    allowable = not isinstance(case, PeerAsks) or case.is_allowable
    verdicts = _apply_rules(case, policy, risk, now_ms) if policy.rules else []
    verdicts += facts.opinions
    if isinstance(case, PeerAsks) and facts.grants:
        grant = find_grant(facts.grants, case, facts.where, now_ms)
        if grant is not None:
            verdicts.append(
                SourceVerdict("grant", "allow", f"{grant.minted_by} allowed it", grant.grant_id)
            )
    verdicts += _apply_mode(case, policy.mode, risk)
    if facts.bypass:
        verdicts.append(_apply_bypass(case, risk))
    verdicts.append(_apply_default(case, facts))
    return [
        one for one in verdicts if one.verdict != "allow" or allowable or one.source == "classifier"
    ]


def _apply_rules(case: Case, policy: Policy, risk: Risk, now_ms: int) -> list[SourceVerdict]:
    values = list_values(case, risk, policy.mode, now_ms)
    return [_rule_verdict(rule) for rule in policy.rules if rule.matches(case, values)]


def _rule_verdict(rule: Rule) -> SourceVerdict:
    reason = rule.reason or f"the rule {rule.ref}"
    return SourceVerdict("rule", rule.effect, reason, rule.ref, grantable=rule.grantable)


def _apply_mode(case: Case, mode: PolicyMode, risk: Risk) -> list[SourceVerdict]:
    match mode:
        case "normal" | "no_ask":
            return []
        case "plan":
            changes = name_type(case) in CHANGING
            return [_mode_verdict(mode, "deny", "mode plan allows no changes")] if changes else []
        case "auto":
            allows = RISKS.index(risk) <= RISKS.index(_AUTO_UP_TO)
            return [_mode_verdict(mode, "allow", f"the risk is {risk}")] if allows else []
        case _:
            assert_never(mode)


def _apply_bypass(case: Case, risk: Risk) -> SourceVerdict:
    destroys = isinstance(case, PeerAsks) and case.destructive
    if risk == "critical" or destroys:
        return _mode_verdict("bypass", "silent", "not for critical or destructive actions")
    return _mode_verdict("bypass", "allow", "the owner has turned it on")


def _mode_verdict(mode: str, verdict: Verdict, reason: str) -> SourceVerdict:
    return SourceVerdict("mode", verdict, reason, mode)


def _apply_default(case: Case, facts: PolicyFacts) -> SourceVerdict:
    match case:
        case InboundCall():
            covered = facts.may_call
            reason = f"the credential {'covers' if covered else 'does not cover'} the agent"
        case OutboundDelegation():
            covered = facts.is_configured
            reason = f"the peer is {'configured' if covered else 'not configured'}"
        case ControlCommand():
            return SourceVerdict("default", "allow", "no rule matches this command")
        case PeerAsks():
            return SourceVerdict("default", "ask", f"requests of a {case.asker} need an approval")
        case _:
            assert_never(case)
    return SourceVerdict("default", "allow" if covered else "deny", reason)


_RANKS: Final[dict[tuple[EvaluationSource, Verdict], int]] = {
    ("integrity", "deny"): 0,
    ("rule", "deny"): 1,
    ("hook", "deny"): 2,
    ("default", "deny"): 3,
    ("mode", "deny"): 4,
    ("hook", "ask"): 5,
    ("rule", "ask"): 6,
    ("grant", "allow"): 7,
    ("rule", "allow"): 8,
    ("hook", "allow"): 9,
    ("mode", "allow"): 10,
    ("default", "allow"): 11,
    ("default", "ask"): 11,
}
"""Precedence of verdicts: the lowest rank wins. A verdict without a rank has no effect of its own."""


def _choose(verdicts: list[SourceVerdict]) -> SourceVerdict:
    has_grant = any(one.source == "grant" for one in verdicts)
    counted = [
        one
        for one in verdicts
        if (one.source, one.verdict) in _RANKS
        and not (has_grant and one.verdict == "ask" and one.grantable)
    ]
    return min(counted, key=lambda one: _RANKS[one.source, one.verdict])


def _escalate(
    winner: SourceVerdict, verdicts: list[SourceVerdict], facts: PolicyFacts, mode: PolicyMode
) -> SourceVerdict | None:
    """A classifier that doubts an allow turns it into an approval request."""
    del facts, mode
    doubts = (one for one in verdicts if one.source == "classifier" and one.verdict == "ask")
    doubt = next(doubts, None)
    if winner.verdict != "allow" or doubt is None:
        return None
    verdicts.remove(doubt)
    return doubt


def _refuse_to_ask(
    winner: SourceVerdict, verdicts: list[SourceVerdict], facts: PolicyFacts, mode: PolicyMode
) -> SourceVerdict | None:
    """Denies if the result is to ask and there is no approver."""
    del verdicts
    if winner.verdict != "ask":
        return None
    if mode == "no_ask":
        return _mode_verdict(mode, "deny", "the mode allows no approval requests")
    if not facts.can_ask:
        return SourceVerdict("unavailable", "deny", "there is no possible approver")
    return None


def _offers_grant(winner: SourceVerdict, verdicts: list[SourceVerdict]) -> bool:
    """Whether a grant would have an effect the next time: not if a rule or a hook asks each time."""
    asks = [one for one in verdicts if one.verdict == "ask" and one.source in {"rule", "hook"}]
    return winner.verdict == "ask" and all(one.grantable for one in asks)


def _read_effect(winner: SourceVerdict) -> Effect:
    if winner.verdict == "silent":
        raise AssertionError("a silent verdict cannot decide")
    return winner.verdict
