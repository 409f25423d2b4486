"""What an operator writes down: rules that deny, ask or allow, and a mode for all that no rule names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.canonical import digest
from passerelle.core.payloads.approval import ActionType
from passerelle.permission_bridge.conditions import Condition

if TYPE_CHECKING:
    from passerelle.core.json import JsonObject
    from passerelle.permission_bridge.cases import PeerAsks
    from passerelle.permission_bridge.conditions import Values

Effect: TypeAlias = Literal["deny", "ask", "allow"]
Mode: TypeAlias = Literal["normal", "no_ask", "plan", "auto"]

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
"""What mode ``plan`` denies. A tool call could be anything; to ask an agent is planning."""

DEFAULTS: Final = {
    "inbound_call": "allow when the credential covers the agent, else deny",
    "delegation": "allow when the peer is configured, else deny",
    "peer_asks": "ask",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of policy. It matches where all that it states holds.

    ``argv`` are the first words of a command. What cannot be told, an error in the condition or a command that a
    shell would still change, counts as a match for a rule that denies or asks and as none for one that allows.
    """

    name: str
    effect: Effect
    condition: Condition | None = None
    argv: tuple[str, ...] = ()
    reason: str | None = None

    def matches(self, case: PeerAsks, values: Values) -> bool:
        """Whether the rule speaks about ``case``, whose fields are ``values``."""
        if not self._fits_command(case):
            return False
        if self.condition is None:
            return True
        holds = self.condition.holds(values)
        return self.effect != "allow" if holds is None else holds

    def _fits_command(self, case: PeerAsks) -> bool:
        if not self.argv:
            return True
        command = case.command
        return command.is_only(self.argv) if self.effect == "allow" else command.may_run(self.argv)


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules in the order of the file, and the mode.

    ``version`` changes with every rule; a decision names the version under which it was asked for.
    """

    rules: tuple[Rule, ...]
    mode: Mode
    version: str


def make_policy(rules: tuple[Rule, ...] = (), mode: Mode = "normal") -> Policy:
    """The policy of these rules, with its version."""
    stated: JsonObject = {
        "v": 2,
        "defaults": dict(DEFAULTS),
        "mode": mode,
        "rules": [_state(rule) for rule in rules],
    }
    return Policy(rules, mode, digest(stated))


def _state(rule: Rule) -> JsonObject:
    return {
        "name": rule.name,
        "effect": rule.effect,
        "when": rule.condition.text if rule.condition else None,
        "argv": list(rule.argv),
    }


DEFAULT_POLICY: Final = make_policy()
