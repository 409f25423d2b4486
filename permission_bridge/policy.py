"""What may happen without asking: ``evaluate`` judges one case, and the whole of its reasoning is recorded (EXT-1).

Pure. First every source says what it has to say, so that the trail shows all of them; then a fixed order decides,
whatever the order of the rules:

1. a rule that denies,
2. a rule that asks,
3. the modes that deny: ``no_ask`` whatever would be asked, ``plan`` what changes anything,
4. a rule that allows,
5. mode ``auto``, which allows up to medium risk,
6. the default of the direction: a caller may do what its credential covers, a configured peer may be called, and what
   a peer asks is for somebody to decide.

Deny beats ask beats allow (PRS-3). A question for words or for a credential is never allowed by policy: nobody but a
person has the words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never

from passerelle.core.payloads.approval import Cause, PermissionEvaluated, Risk, TrailStep
from passerelle.permission_bridge.cases import (
    Case,
    InboundCall,
    OutboundDelegation,
    PeerAsks,
    list_values,
    name_case,
    weigh,
)
from passerelle.permission_bridge.risk import RISKS
from passerelle.permission_bridge.rules import CHANGING, DEFAULT_POLICY, Effect, Mode, Policy

if TYPE_CHECKING:
    from passerelle.permission_bridge.rules import Rule

Source: TypeAlias = Literal["rule", "mode", "default"]

_AUTO_UP_TO: Final[Risk] = "medium"


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """What is known beside the case. ``evaluation_id`` is minted by whoever asks."""

    evaluation_id: str
    may_call: bool = False
    """Whether the caller's credential covers the agent."""
    is_configured: bool = False
    """Whether the peer stands in our configuration."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one source says, and why. ``ref`` is the name of the rule or mode."""

    source: Source
    verdict: Effect
    reason: str
    ref: str | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What policy says, and why. ``evaluated_ms`` is the time it was given."""

    evaluation_id: str
    decision: Effect
    source: Source
    reason: str
    subject: str
    policy_version: str
    risk: Risk
    risk_reasons: tuple[str, ...]
    trail: tuple[TrailStep, ...]
    evaluated_ms: int
    rules: tuple[str, ...] = ()

    @property
    def cause(self) -> Cause:
        """What a question is closed by that policy answers."""
        return self.source

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
        )


def evaluate(
    case: Case, facts: PolicyFacts, now_ms: int, policy: Policy = DEFAULT_POLICY
) -> Evaluation:
    """Judges ``case``. The same arguments always give the same evaluation; nothing is written."""
    risk, risk_reasons = weigh(case)
    said = [_say_default(case, facts)]
    if isinstance(case, PeerAsks):
        said = _hear_rules(case, policy, risk, now_ms) + said
        said = _hear_mode(case, policy.mode, risk, said) + said
    winner = _choose(said)
    return Evaluation(
        evaluation_id=facts.evaluation_id,
        decision=winner.verdict,
        source=winner.source,
        reason=winner.reason,
        subject=name_case(case),
        policy_version=policy.version,
        risk=risk,
        risk_reasons=risk_reasons,
        trail=tuple(TrailStep(one.source, one.verdict, one.ref or one.reason) for one in said),
        evaluated_ms=now_ms,
        rules=tuple(one.ref for one in said if one.source == "rule" and one.ref),
    )


def _hear_rules(case: PeerAsks, policy: Policy, risk: Risk, now_ms: int) -> list[Said]:
    values = list_values(case, risk, policy.mode, now_ms)
    heard = [rule for rule in policy.rules if rule.matches(case, values)]
    return [_say(rule) for rule in heard if rule.effect != "allow" or case.is_allowable]


def _say(rule: Rule) -> Said:
    return Said("rule", rule.effect, rule.reason or f"the rule {rule.name}", rule.name)


def _hear_mode(case: PeerAsks, mode: Mode, risk: Risk, said: list[Said]) -> list[Said]:
    match mode:
        case "normal":
            return []
        case "no_ask":
            asks = _choose(said).verdict == "ask"
            return [_tell(mode, "deny", "nobody is there to ask")] if asks else []
        case "plan":
            changes = case.action_type in CHANGING
            return [_tell(mode, "deny", "while planning nothing is changed")] if changes else []
        case "auto":
            allows = case.is_allowable and RISKS.index(risk) <= RISKS.index(_AUTO_UP_TO)
            return [_tell(mode, "allow", f"the risk is {risk}")] if allows else []
        case _:
            assert_never(mode)


def _tell(mode: str, verdict: Effect, reason: str) -> Said:
    return Said("mode", verdict, reason, mode)


def _say_default(case: Case, facts: PolicyFacts) -> Said:
    match case:
        case InboundCall():
            covered = facts.may_call
            reason = f"the credential {'covers' if covered else 'does not cover'} the agent"
        case OutboundDelegation():
            covered = facts.is_configured
            reason = f"the peer is {'configured' if covered else 'not configured'}"
        case PeerAsks():
            return Said("default", "ask", "what a peer asks is for somebody to decide")
        case _:
            assert_never(case)
    return Said("default", "allow" if covered else "deny", reason)


def _choose(said: list[Said]) -> Said:
    """Deny beats ask beats allow; a default only speaks where nothing else does, but for its own deny."""
    ranked = {
        ("rule", "deny"): 0,
        ("default", "deny"): 1,
        ("mode", "deny"): 2,
        ("rule", "ask"): 3,
        ("rule", "allow"): 4,
        ("mode", "allow"): 5,
        ("default", "allow"): 6,
        ("default", "ask"): 6,
    }
    return min(said, key=lambda one: ranked[one.source, one.verdict])
