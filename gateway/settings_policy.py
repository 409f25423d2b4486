"""What may happen without asking a person: the section ``policy`` of ``passerelle.yaml``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Self, TypeAlias

from pydantic import AfterValidator, Field, field_validator, model_validator

from passerelle.core.errors import InvalidInput
from passerelle.core.payloads.approval import AudienceStep, GrantScope, Quorum, Risk
from passerelle.gateway.durations import Duration, parse_duration
from passerelle.gateway.settings_section import Name, Section
from passerelle.permission_bridge.approvers import Tier, name_version
from passerelle.permission_bridge.cases import About
from passerelle.permission_bridge.conditions import LENGTH_LIMIT, read_condition
from passerelle.permission_bridge.rules import (
    Effect,
    GrantTerms,
    MatchBy,
    Mode,
    Policy,
    Rule,
    make_policy,
)

_LONGEST_GRANT_S: Final = 30 * 24 * 3_600


def _check_condition(text: str) -> str:
    try:
        read_condition(text)
    except InvalidInput as refused:
        raise ValueError(refused.reason) from None
    return text


When: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=LENGTH_LIMIT), AfterValidator(_check_condition)
]


Approver: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]


class RuleSettings(Section):
    """One rule: all that it states has to hold."""

    name: Name
    effect: Effect
    about: tuple[About, ...] = Field(
        default=("asks",),
        min_length=1,
        description="`asks`: what agents and workers ask for; `calls`: callers that want an agent; `delegations`: what "
        "is sent to an agent; `commands`: what callers want of the gateway.",
    )
    when: When | None = Field(
        default=None,
        description="A condition in CEL over action.*, peer.*, caller.name, direction, mode and now.",
    )
    argv: tuple[str, ...] = Field(
        default=(),
        description="The first words of a command. A rule that allows wants this one command and nothing else.",
    )
    grantable: bool = Field(
        default=False, description="Whether a grant may answer where this rule asks."
    )
    reason: str | None = Field(
        default=None, max_length=200, description="What is recorded with the decision."
    )


class OwnerSettings(Section):
    """Rules about the work of one caller. They are weighed with those of everybody: deny beats ask beats allow."""

    rules: tuple[RuleSettings, ...] = ()


class GrantSettings(Section):
    """What an "always" option of a question would write."""

    scope: GrantScope | None = Field(
        default=None,
        description="Where it holds. None: nobody is offered more than a yes for once.",
    )
    match: MatchBy = Field(
        default="exact",
        description="`exact`: the very same subject; `tool`: the same tool, whatever its arguments.",
    )
    ttl: Duration = Field(
        default=parse_duration("8h"),
        json_schema_extra={"default": "8h"},
        description="How long it holds, 30 days at most.",
    )
    max_uses: int | None = Field(default=None, ge=1, le=1_000_000)

    @field_validator("ttl")
    @classmethod
    def _judge_ttl(cls, ttl: Duration) -> Duration:
        if not 0 < ttl.seconds <= _LONGEST_GRANT_S:
            raise ValueError("is more than nothing and at most 30 days")
        return ttl


class EscalationSettings(Section):
    """Who may decide as well when nobody has for a while."""

    after: Duration = Field(description="From the question on.")
    to: tuple[Approver, ...] = Field(min_length=1, max_length=16)


class ApproverSettings(Section):
    """Who decides from a risk on. They are named as principals: clients, `owner`, `<issuer>:<subject>`, `@caller`."""

    risk: Risk = Field(description="From this risk on, up to the next tier.")
    who: tuple[Approver, ...] = Field(min_length=1, max_length=16)
    need: int = Field(default=1, ge=1, le=16, description="How many of them must agree.")
    veto: bool = Field(default=True, description="Whether one no is enough.")
    allow_self: bool = Field(
        default=True, description="Whether whoever the work is done for may decide, if named."
    )
    escalate: tuple[EscalationSettings, ...] = Field(default=(), max_length=8)

    @model_validator(mode="after")
    def _check_able(self) -> Self:
        fault = read_tier(self).find_fault()
        if fault is not None:
            raise ValueError(fault)
        return self


class PolicySettings(Section):
    """Deny beats ask beats allow, whatever the order; where no rule speaks, a person is asked."""

    mode: Mode = Field(
        default="normal",
        description="`no_ask` denies what would be asked, `plan` denies what changes anything, "
        "`auto` allows up to medium risk.",
    )
    rules: tuple[RuleSettings, ...] = ()
    owners: dict[str, OwnerSettings] = Field(
        default={}, description="Rules about the work of one caller, by its name."
    )
    grants: GrantSettings = Field(default=GrantSettings())
    approvers: tuple[ApproverSettings, ...] = Field(
        default=(), max_length=4, description="Who decides, by risk; absent: whoever owns the task."
    )


def read_policy(settings: PolicySettings) -> Policy:
    """The policy that a section states."""
    rules = [_read_rule(rule, None) for rule in settings.rules]
    for owner, section in settings.owners.items():
        rules += [_read_rule(rule, owner) for rule in section.rules]
    grants = settings.grants
    terms = GrantTerms(grants.scope, grants.match, grants.ttl.ms, grants.max_uses)
    policy = make_policy(tuple(rules), settings.mode, terms)
    tiers = tuple(read_tier(tier) for tier in settings.approvers)
    return replace(policy, tiers=tiers, version=name_version(policy.version, tiers))


def _read_rule(rule: RuleSettings, owner: str | None) -> Rule:
    return Rule(
        name=rule.name,
        effect=rule.effect,
        condition=read_condition(rule.when) if rule.when else None,
        argv=rule.argv,
        reason=rule.reason,
        about=frozenset(rule.about),
        grantable=rule.grantable,
        owner=owner,
    )


def read_tier(settings: ApproverSettings) -> Tier:
    """The tier that a section states; who comes later comes in the order of the times."""
    later = sorted(settings.escalate, key=lambda step: step.after.ms)
    steps = (
        AudienceStep(settings.who),
        *(AudienceStep(step.to, step.after.ms) for step in later),
    )
    quorum = Quorum(settings.need, settings.veto, settings.allow_self)
    return Tier(settings.risk, quorum, steps)
