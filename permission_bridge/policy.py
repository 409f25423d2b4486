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
class Said:
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
    heard: tuple[Said, ...] = ()
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
    said = _hear(case, facts, policy, risk, now_ms)
    winner = _choose(said)
    for more in (_raise, _refuse_to_ask):
        changed = more(winner, said, facts, policy.mode)
        if changed is not None:
            said.append(changed)
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
        trail=tuple(one.to_step() for one in said),
        evaluated_ms=now_ms,
        rules=tuple(one.ref for one in said if one.source == "rule" and one.ref),
        grant_id=winner.ref if winner.source == "grant" else None,
        offers_grant=_offers_grant(winner, said),
    )


def _weigh(case: Case, facts: PolicyFacts) -> tuple[Risk, tuple[str, ...]]:
    risk, reasons = weigh(case)
    for said in facts.heard:
        if said.risk is not None and RISKS.index(said.risk) > RISKS.index(risk):
            risk, reasons = said.risk, (f"{said.ref} calls it {said.risk}",)
    return risk, reasons


def _hear(case: Case, facts: PolicyFacts, policy: Policy, risk: Risk, now_ms: int) -> list[Said]:
    unsound = policy.unsound or facts.unsound
    if unsound is not None:
        return [Said("integrity", "deny", unsound)]
    allowable = not isinstance(case, PeerAsks) or case.is_allowable
    said = _hear_rules(case, policy, risk, now_ms) if policy.rules else []
    said += facts.heard
    if isinstance(case, PeerAsks) and facts.grants:
        grant = find_grant(facts.grants, case, facts.where, now_ms)
        if grant is not None:
            said.append(Said("grant", "allow", f"{grant.minted_by} allowed it", grant.grant_id))
    said += _hear_mode(case, policy.mode, risk)
    if facts.bypass:
        said.append(_hear_bypass(case, risk))
    said.append(_say_default(case, facts))
    return [
        one for one in said if one.verdict != "allow" or allowable or one.source == "classifier"
    ]


def _hear_rules(case: Case, policy: Policy, risk: Risk, now_ms: int) -> list[Said]:
    values = list_values(case, risk, policy.mode, now_ms)
    return [_say(rule) for rule in policy.rules if rule.matches(case, values)]


def _say(rule: Rule) -> Said:
    reason = rule.reason or f"the rule {rule.ref}"
    return Said("rule", rule.effect, reason, rule.ref, grantable=rule.grantable)


def _hear_mode(case: Case, mode: PolicyMode, risk: Risk) -> list[Said]:
    match mode:
        case "normal" | "no_ask":
            return []
        case "plan":
            changes = name_type(case) in CHANGING
            return [_tell(mode, "deny", "while planning nothing is changed")] if changes else []
        case "auto":
            allows = RISKS.index(risk) <= RISKS.index(_AUTO_UP_TO)
            return [_tell(mode, "allow", f"the risk is {risk}")] if allows else []
        case _:
            assert_never(mode)


def _hear_bypass(case: Case, risk: Risk) -> Said:
    destroys = isinstance(case, PeerAsks) and case.destructive
    if risk == "critical" or destroys:
        return _tell("bypass", "silent", "not for what is critical or destroys")
    return _tell("bypass", "allow", "its owner has it on for a while")


def _tell(mode: str, verdict: Verdict, reason: str) -> Said:
    return Said("mode", verdict, reason, mode)


def _say_default(case: Case, facts: PolicyFacts) -> Said:
    match case:
        case InboundCall():
            covered = facts.may_call
            reason = f"the credential {'covers' if covered else 'does not cover'} the agent"
        case OutboundDelegation():
            covered = facts.is_configured
            reason = f"the peer is {'configured' if covered else 'not configured'}"
        case ControlCommand():
            return Said("default", "allow", "no rule is about this command")
        case PeerAsks():
            return Said("default", "ask", f"what a {case.asker} asks is for somebody to decide")
        case _:
            assert_never(case)
    return Said("default", "allow" if covered else "deny", reason)


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


def _choose(said: list[Said]) -> Said:
    has_grant = any(one.source == "grant" for one in said)
    heard = [
        one
        for one in said
        if (one.source, one.verdict) in _RANKS
        and not (has_grant and one.verdict == "ask" and one.grantable)
    ]
    return min(heard, key=lambda one: _RANKS[one.source, one.verdict])


def _raise(winner: Said, said: list[Said], facts: PolicyFacts, mode: PolicyMode) -> Said | None:
    """A classifier in doubt turns a yes into a question."""
    del facts, mode
    doubts = (one for one in said if one.source == "classifier" and one.verdict == "ask")
    doubt = next(doubts, None)
    if winner.verdict != "allow" or doubt is None:
        return None
    said.remove(doubt)
    return doubt


def _refuse_to_ask(
    winner: Said, said: list[Said], facts: PolicyFacts, mode: PolicyMode
) -> Said | None:
    """A question that nobody is there to answer is none."""
    del said
    if winner.verdict != "ask":
        return None
    if mode == "no_ask":
        return _tell(mode, "deny", "nobody is there to ask")
    if not facts.can_ask:
        return Said("unavailable", "deny", "there is nobody who could decide")
    return None


def _offers_grant(winner: Said, said: list[Said]) -> bool:
    """Whether a standing approval would be heard the next time: not where a rule or a hook wants to ask each time."""
    asks = [one for one in said if one.verdict == "ask" and one.source in {"rule", "hook"}]
    return winner.verdict == "ask" and all(one.grantable for one in asks)


def _read_effect(winner: Said) -> Effect:
    if winner.verdict == "silent":
        raise AssertionError("nobody decides by silence")
    return winner.verdict
