"""What may happen without asking a person: the section ``policy`` of ``passerelle.yaml``."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field

from passerelle.core.errors import InvalidInput
from passerelle.gateway.settings_section import Name, Section
from passerelle.permission_bridge.conditions import LENGTH_LIMIT, read_condition
from passerelle.permission_bridge.rules import Effect, Mode, Policy, Rule, make_policy


def _check_condition(text: str) -> str:
    try:
        read_condition(text)
    except InvalidInput as refused:
        raise ValueError(refused.reason) from None
    return text


When: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=LENGTH_LIMIT), AfterValidator(_check_condition)
]


class RuleSettings(Section):
    """One rule. It speaks about what agents ask for: all that it states has to hold."""

    name: Name
    effect: Effect
    when: When | None = Field(
        default=None,
        description="A condition in CEL over action.*, peer.*, caller.name, mode and now.",
    )
    argv: tuple[str, ...] = Field(
        default=(),
        description="The first words of a command. A rule that allows wants this one command and nothing else.",
    )
    reason: str | None = Field(
        default=None, max_length=200, description="What is recorded with the decision."
    )


class PolicySettings(Section):
    """Deny beats ask beats allow, whatever the order; where no rule speaks, a person is asked."""

    mode: Mode = Field(
        default="normal",
        description="`no_ask` denies what would be asked, `plan` denies what changes anything, "
        "`auto` allows up to medium risk.",
    )
    rules: tuple[RuleSettings, ...] = ()


def read_policy(settings: PolicySettings) -> Policy:
    """The policy that a section states."""
    rules = tuple(
        Rule(
            name=rule.name,
            effect=rule.effect,
            condition=read_condition(rule.when) if rule.when else None,
            argv=rule.argv,
            reason=rule.reason,
        )
        for rule in settings.rules
    )
    return make_policy(rules, settings.mode)
