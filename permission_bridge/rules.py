"""The operator's policy: rules that deny, ask or allow, and a mode for cases that no rule matches."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.frozen import frozen
from passerelle.core.payloads.approval import ActionType, GrantScope
from passerelle.core.wire.canonical import digest
from passerelle.permission_bridge.approvers import Tier, choose_tier, state_tier
from passerelle.permission_bridge.cases import About, PeerAsks, name_about
from passerelle.permission_bridge.conditions import Condition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.payloads.approval import Risk
    from passerelle.core.payloads.governance import HookPoint
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.permission_bridge.cases import Case
    from passerelle.permission_bridge.conditions import Values
    from passerelle.permission_bridge.hook_terms import HookTerms

Effect: TypeAlias = Literal["deny", "ask", "allow"]
PolicyMode: TypeAlias = Literal["normal", "no_ask", "plan", "auto"]
MatchBy: TypeAlias = Literal["exact", "tool"]

CHANGING: Final[frozenset[ActionType]] = frozenset(
    {
        "tool_call",
        "command",
        "file_change",
        "network",
        "process",
        "credential",
        "cancel_task",
        "policy_change",
        "device_pairing",
    }
)
"""Actions that mode ``plan`` denies. A tool call could do anything; a call of an agent counts as planning."""

DEFAULTS: Final = {
    "inbound_call": "allow when the credential covers the agent, else deny",
    "delegation": "allow when the peer is configured, else deny",
    "control": "allow",
    "peer_asks": "ask",
}
HOUR_MS: Final = 3_600_000
GRANT_TTL_MS: Final = 8 * HOUR_MS


ASKS: Final[frozenset[About]] = frozenset({"asks"})


@frozen
class Rule:
    """One rule of the policy. It matches if all its parts hold.

    ``argv`` are the first words of a command. If a part cannot be evaluated (an error in the condition, a command that
    a shell would expand), deny and ask rules match and allow rules do not. ``owner``: the rule applies to the work of
    this caller only; rules of the host apply to every caller.
    """

    name: str
    effect: Effect
    condition: Condition | None = None
    argv: tuple[str, ...] = ()
    reason: str | None = None
    about: frozenset[About] = ASKS
    grantable: bool = False
    """Whether a grant may answer when this rule asks."""
    owner: str | None = None
    tier: Tier | None = None
    """The approvers of requests that this rule leads to."""
    edited: bool = False
    """Whether the rule was added at runtime."""

    @property
    def ref(self) -> str:
        """The name of the rule in records."""
        name = self.name if self.owner is None else f"{self.owner}/{self.name}"
        return f"edited:{name}" if self.edited else name

    def matches(self, case: Case, values: Values) -> bool:
        """Whether the rule matches ``case``, whose fields are ``values``."""
        if name_about(case) not in self.about or self.owner not in {None, case.caller}:
            return False
        if self.argv and not self._fits_command(case):
            return False
        if self.condition is None:
            return True
        holds = self.condition.holds(values)
        return self.effect != "allow" if holds is None else holds

    def _fits_command(self, case: Case) -> bool:
        if not isinstance(case, PeerAsks):
            return False
        command = case.command
        return command.is_only(self.argv) if self.effect == "allow" else command.may_run(self.argv)


@frozen
class GrantTerms:
    """The grant that an "always" option creates. ``scope`` None: only single approvals are offered."""

    scope: GrantScope | None = None
    match: MatchBy = "exact"
    ttl_ms: int = GRANT_TTL_MS
    max_uses: int | None = None


NO_GRANTS: Final = GrantTerms()
_SENDS: Final[frozenset[About]] = frozenset({"calls", "delegations"})
_TOOLS: Final[frozenset[About]] = frozenset({"calls", "delegations", "commands"})
_ENDS: Final[frozenset[HookPoint]] = frozenset({"before_deliver", "on_stop"})


@frozen
class Policy:
    """Rules in the order of the file, those of the host first, and the mode.

    ``version`` changes with every rule, hook and limit; a decision records the version under which it was requested.
    ``unsound``: why a part cannot be parsed; everything is denied then.
    """

    rules: tuple[Rule, ...]
    mode: PolicyMode
    version: str
    grants: GrantTerms = NO_GRANTS
    tiers: tuple[Tier, ...] = ()
    hooks: tuple[HookTerms, ...] = ()
    classifier: HookTerms | None = None
    unsound: str | None = None
    _points: frozenset[HookPoint] = field(init=False, repr=False, compare=False)
    _about: frozenset[About] = field(init=False, repr=False, compare=False)
    judges_sends: bool = field(init=False, repr=False, compare=False)
    """Whether anything but the defaults may decide about messages to agents."""
    judges_tools: bool = field(init=False, repr=False, compare=False)
    """Whether a rule may withhold agents or task commands from callers."""
    watches_answers: bool = field(init=False, repr=False, compare=False)
    """Whether a hook receives answers or the ends of tasks."""

    def __post_init__(self) -> None:
        # Precomputed: read several times per turn, and constant for the lifetime of the policy.
        points = frozenset(point for hook in self.hooks for point in hook.points)
        about = frozenset(about for rule in self.rules for about in rule.about)
        judges = self.unsound is not None or about & _SENDS or "before_delegate" in points
        object.__setattr__(self, "_points", points)
        object.__setattr__(self, "_about", about)
        object.__setattr__(self, "judges_sends", bool(judges))
        held_back = self.unsound is not None or bool(about & _TOOLS)
        object.__setattr__(self, "judges_tools", held_back)
        object.__setattr__(self, "watches_answers", bool(points & _ENDS))

    def hooks_at(self, point: HookPoint) -> bool:
        """Whether a hook is configured for a point."""
        return point in self._points

    def find_tier(self, refs: Iterable[str], risk: Risk) -> Tier | None:
        """The approvers of a request of this risk that the named rules led to; None: its owner."""
        spoke = frozenset(refs)
        of_rules = (rule.tier for rule in self.rules if rule.tier is not None and rule.ref in spoke)
        return choose_tier(self.tiers, risk, of_rules)

    def speaks_about(self, about: About) -> bool:
        """Whether any rule may apply to such cases; if not, the caller can skip preparing the input."""
        return self.unsound is not None or about in self._about


UNCONDITIONAL: Final = (
    'an allow rule needs a condition: write when: "true" to allow everything that it applies to'
)


def is_unconditional(effect: Effect, when: str | None, argv: tuple[str, ...]) -> bool:
    """Whether a stated rule allows everything without an explicit condition, as when a line of it is lost."""
    return effect == "allow" and when is None and not argv


def make_policy(
    rules: tuple[Rule, ...] = (),
    mode: PolicyMode = "normal",
    grants: GrantTerms = NO_GRANTS,
    hooks: tuple[HookTerms, ...] = (),
    classifier: HookTerms | None = None,
) -> Policy:
    """The policy of these rules and hooks, with its version."""
    rules = tuple(sorted(rules, key=lambda rule: rule.owner is not None))
    stated: JsonObject = {
        "v": 3,
        "defaults": dict(DEFAULTS),
        "mode": mode,
        "rules": [state_rule(rule) for rule in rules],
        "grants": [grants.scope, grants.match, grants.ttl_ms, grants.max_uses],
        "hooks": [hook.state() for hook in hooks],
        "classifier": classifier.state() if classifier else None,
    }
    return Policy(rules, mode, digest(stated), grants, hooks=hooks, classifier=classifier)


def state_rule(rule: Rule) -> JsonObject:
    """Everything about a rule that the policy version depends on."""
    about: list[Json] = [*sorted(rule.about)]
    stated: JsonObject = {
        "name": rule.name,
        "effect": rule.effect,
        "when": rule.condition.text if rule.condition else None,
        "argv": list(rule.argv),
        "about": about,
        "grantable": rule.grantable,
        "owner": rule.owner,
    }
    return stated if rule.tier is None else {**stated, "approvers": state_tier(rule.tier)}


DEFAULT_POLICY: Final = make_policy()
