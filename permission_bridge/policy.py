"""What may happen without asking: ``evaluate`` judges one case, and the whole of its reasoning is recorded (EXT-1).

Pure. First every source says what it has to say, so that the trail shows all of them; then a fixed order decides,
whatever the order of the rules:

1. integrity: what cannot be read for certain is denied, the case or the policy, and nobody else is heard,
2. a rule that denies, the host's before its owner's; a hook that denies; the deny of a default; mode ``plan``,
3. a hook that asks, a rule that asks; a grant answers for a rule that lets it, and for no other,
4. a grant,
5. a rule that allows,
6. a hook that would allow,
7. mode ``auto``, which allows up to medium risk, and ``bypass``, which allows all but the critical and the destructive,
8. the default of the direction: a caller may do what its credential covers, a configured peer may be called, and what
   a peer asks is for somebody to decide,
9. the classifier: it can turn a yes into a question and raise the risk, and never the other way round,
10. where it comes to asking: mode ``no_ask`` denies, and where nobody could be asked it is denied at once.

Deny beats ask beats allow (PRS-3). A question for words or for a credential is never allowed by policy: nobody but a
person has the words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never

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


@dataclass(frozen=True, slots=True)
class SourceVerdict:
    """What one source says, and why. ``ref`` is the name of the rule, mode, hook or grant."""

    source: EvaluationSource
    verdict: Verdict
    reason: str
    ref: str | None = None
    ms: int | None = None
    risk: Risk | None = None
    """How great a classifier holds the risk to be."""
    grantable: bool = False
    """Whether a grant may answer what a rule asks."""

    def to_step(self) -> TrailStep:
        """Its line in the trail."""
        return TrailStep(self.source, self.verdict, self.ref or self.reason, self.ms)


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """What is known beside the case. ``evaluation_id`` is minted by whoever asks."""

    evaluation_id: str
    may_call: bool = False
    """Whether the caller's credential covers the agent."""
    is_configured: bool = False
    """Whether the peer stands in our configuration."""
    opinions: tuple[SourceVerdict, ...] = ()
    """What hooks and the classifier have said, who were asked before."""
    grants: tuple[Grant, ...] = ()
    """Those of the owner."""
    where: Where = NOWHERE
    bypass: bool = False
    """Whether everything of the owner is auto-approved for a while."""
    can_ask: bool = True
    """Whether there is somebody who could decide."""
    unsound: str | None = None
    """Why the input cannot be read for certain."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What policy says, and why. ``evaluated_ms`` is the time it was given."""

    evaluation_id: str
    decision: Effect
    source: EvaluationSource
    reason: str
    subject: str
    policy_version: str
    risk: Risk
    risk_reasons: tuple[str, ...]
    trail: tuple[TrailStep, ...]
    evaluated_ms: int
    rules: tuple[str, ...] = ()
    grant_id: str | None = None
    """The grant that it relies on; its use is recorded before this is."""
    offers_grant: bool = False
    """Whether a yes may be given for more than this once."""
    case: JsonObject | None = None
    """What was judged, as it is recorded."""

    @property
    def cause(self) -> PolicyCause:
        """What a question is closed by that policy answers; a classifier only ever asks."""
        return "default" if self.source == "classifier" else self.source

    def to_payload(self) -> PermissionEvaluated:
        """The fact of it: recorded for allows as well (CHN-14)."""
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
    """Judges ``case``. The same arguments always give the same evaluation; nothing is written."""
    risk, risk_reasons = _weigh(case, facts)
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
        evaluated_ms=now_ms,
        rules=tuple(one.ref for one in verdicts if one.source == "rule" and one.ref),
        grant_id=winner.ref if winner.source == "grant" else None,
        offers_grant=_offers_grant(winner, verdicts),
    )


def _weigh(case: Case, facts: PolicyFacts) -> tuple[Risk, tuple[str, ...]]:
    risk, reasons = weigh(case)
    for opinion in facts.opinions:
        if opinion.risk is not None and RISKS.index(opinion.risk) > RISKS.index(risk):
            risk, reasons = opinion.risk, (f"{opinion.ref} calls it {opinion.risk}",)
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
            return (
                [_mode_verdict(mode, "deny", "while planning nothing is changed")]
                if changes
                else []
            )
        case "auto":
            allows = RISKS.index(risk) <= RISKS.index(_AUTO_UP_TO)
            return [_mode_verdict(mode, "allow", f"the risk is {risk}")] if allows else []
        case _:
            assert_never(mode)


def _apply_bypass(case: Case, risk: Risk) -> SourceVerdict:
    destroys = isinstance(case, PeerAsks) and case.destructive
    if risk == "critical" or destroys:
        return _mode_verdict("bypass", "silent", "not for what is critical or destroys")
    return _mode_verdict("bypass", "allow", "its owner has it on for a while")


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
            return SourceVerdict("default", "allow", "no rule is about this command")
        case PeerAsks():
            return SourceVerdict(
                "default", "ask", f"what a {case.asker} asks is for somebody to decide"
            )
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
"""Who decides among those that spoke: the lowest. What is not here has no say of its own."""


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
    """A classifier in doubt turns a yes into a question."""
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
    """A question that nobody is there to answer is none."""
    del verdicts
    if winner.verdict != "ask":
        return None
    if mode == "no_ask":
        return _mode_verdict(mode, "deny", "nobody is there to ask")
    if not facts.can_ask:
        return SourceVerdict("unavailable", "deny", "there is nobody who could decide")
    return None


def _offers_grant(winner: SourceVerdict, verdicts: list[SourceVerdict]) -> bool:
    """Whether a standing approval would be heard the next time: not where a rule or a hook wants to ask each time."""
    asks = [one for one in verdicts if one.verdict == "ask" and one.source in {"rule", "hook"}]
    return winner.verdict == "ask" and all(one.grantable for one in asks)


def _read_effect(winner: SourceVerdict) -> Effect:
    if winner.verdict == "silent":
        raise AssertionError("nobody decides by silence")
    return winner.verdict
