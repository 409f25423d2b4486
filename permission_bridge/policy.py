"""What may happen without asking: ``evaluate`` judges one subject, and the whole of its reasoning is recorded (EXT-1).

Pure: what a source outside says (a rule, a grant, a hook) comes in as a fact. The sources here are the defaults
by direction: a caller may do what its credential covers, a configured peer may be called, and what a peer asks is
for somebody to decide, never for the gateway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, assert_never

from passerelle.core.canonical import digest
from passerelle.core.payloads.approval import ActionType, PermissionEvaluated, Risk, TrailStep
from passerelle.permission_bridge.risk import judge_risk

Verdict: TypeAlias = Literal["allow", "ask", "deny"]
SOURCE: Final = "default"


@dataclass(frozen=True, slots=True)
class InboundCall:
    """A caller wants an agent called."""

    caller: str
    agent: str


@dataclass(frozen=True, slots=True)
class OutboundDelegation:
    """We are about to send work to a peer."""

    peer: str


@dataclass(frozen=True, slots=True)
class PeerAsks:
    """A peer waits for a decision.

    ``tags`` are the peer's in our configuration, ``declared`` is its own word for the risk.
    """

    peer: str
    action_type: ActionType
    destructive: bool = False
    declared: Risk | None = None
    tags: frozenset[str] = frozenset()


Subject: TypeAlias = InboundCall | OutboundDelegation | PeerAsks


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """What is known beside the subject. ``evaluation_id`` is minted by whoever asks."""

    evaluation_id: str
    may_call: bool = False
    """Whether the caller's credential covers the agent."""
    is_configured: bool = False
    """Whether the peer stands in our configuration."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What policy says, and why. ``evaluated_ms`` is the time it was given."""

    evaluation_id: str
    decision: Verdict
    source: str
    reason: str
    subject: str
    policy_version: str
    risk: Risk
    risk_reasons: tuple[str, ...]
    trail: tuple[TrailStep, ...]
    evaluated_ms: int

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
        )


_DEFAULTS: Final = {
    "inbound_call": "allow when the credential covers the agent, else deny",
    "delegation": "allow when the peer is configured, else deny",
    "peer_asks": "ask",
}
POLICY_VERSION: Final = digest({"v": 1, "defaults": dict(_DEFAULTS)})
"""Changes with every rule; a decision names the version under which it was asked for."""


def evaluate(subject: Subject, facts: PolicyFacts, now_ms: int) -> Evaluation:
    """Judges ``subject``. The same arguments always give the same evaluation; nothing is written."""
    name, verdict, reason = _judge(subject, facts)
    risk, risk_reasons = _weigh(subject)
    return Evaluation(
        evaluation_id=facts.evaluation_id,
        decision=verdict,
        source=SOURCE,
        reason=reason,
        subject=name,
        policy_version=POLICY_VERSION,
        risk=risk,
        risk_reasons=risk_reasons,
        trail=(TrailStep(SOURCE, verdict, reason),),
        evaluated_ms=now_ms,
    )


def _judge(subject: Subject, facts: PolicyFacts) -> tuple[str, Verdict, str]:
    match subject:
        case InboundCall(caller=caller, agent=agent):
            name = f"inbound_call {caller} -> {agent}"
            if facts.may_call:
                return name, "allow", "the credential covers the agent"
            return name, "deny", "the credential does not cover the agent"
        case OutboundDelegation(peer=peer):
            name = f"delegation -> {peer}"
            if facts.is_configured:
                return name, "allow", "the peer is configured"
            return name, "deny", "the peer is not configured"
        case PeerAsks(peer=peer, action_type=action_type):
            return f"{action_type} <- {peer}", "ask", "what a peer asks is for somebody to decide"
        case _:
            assert_never(subject)


def _weigh(subject: Subject) -> tuple[Risk, tuple[str, ...]]:
    match subject:
        case InboundCall():
            return judge_risk("inbound_call", destructive=False)
        case OutboundDelegation():
            return judge_risk("delegation", destructive=False)
        case PeerAsks():
            return judge_risk(
                subject.action_type,
                destructive=subject.destructive,
                tags=subject.tags,
                declared=subject.declared,
            )
        case _:
            assert_never(subject)
