"""What may happen without a person's approval: the section ``policy`` of ``passerelle.yaml``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, field_validator, model_validator

from passerelle.core.errors import ConfigInvalid, InvalidInput
from passerelle.core.payloads.approval import AudienceDevices, GrantScope, Quorum, Risk
from passerelle.core.payloads.governance import HookPoint
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings.section import Name, Section, WebUrl
from passerelle.permission_bridge.approvers import (
    CALLER,
    LOWEST,
    ROLE_MARK,
    Tier,
    make_step,
    name_version,
)
from passerelle.permission_bridge.cases import About
from passerelle.permission_bridge.conditions import LENGTH_LIMIT, read_condition
from passerelle.permission_bridge.hook_terms import HookTerms, OnError
from passerelle.permission_bridge.hooks.caller import find_callable
from passerelle.permission_bridge.rules import (
    UNCONDITIONAL,
    Effect,
    GrantTerms,
    MatchBy,
    Policy,
    PolicyMode,
    Rule,
    is_unconditional,
    make_policy,
)
from passerelle.runtime.common.durations import Duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

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
RoleName: TypeAlias = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
AnsweringDevices: TypeAlias = Literal["any", "paired"]
_DEVICES: Final[dict[AnsweringDevices, AudienceDevices | None]] = {"any": None, "paired": "paired"}


_TRIED: Final = frozenset({"rules", "owners", "mode", "grants"})


class EscalationSettings(Section):
    """Additional approvers if no decision was made for some time."""

    after: Duration = Field(description="Time after the request was opened.")
    to: tuple[Approver, ...] = Field(min_length=1, max_length=16)
    devices: AnsweringDevices | None = Field(default=None, description="As in the tier, if absent.")


class DeciderSettings(Section):
    """Approvers: clients, `owner`, `<issuer>:<subject>`, `@caller`, or a role as `@` and its name."""

    who: tuple[Approver, ...] = Field(min_length=1, max_length=16)
    need: int = Field(default=1, ge=1, le=16, description="Required number of approvals.")
    veto: bool = Field(default=True, description="Whether one rejection is enough.")
    allow_self: bool = Field(
        default=True,
        description="Whether the requester may approve their own request, if listed in `who`.",
    )
    devices: AnsweringDevices = Field(
        default="any",
        description="`paired`: approvers see and decide it only on paired devices, not with a key or a token.",
    )
    escalate: tuple[EscalationSettings, ...] = Field(default=(), max_length=8)


class ApproverSettings(DeciderSettings):
    """Approvers from a risk level on."""

    risk: Risk = Field(description="Lowest risk of this tier; it ends at the next one.")


class RuleSettings(Section):
    """One rule. It matches if all of its conditions do."""

    name: Name
    effect: Effect
    about: tuple[About, ...] = Field(
        default=("asks",),
        min_length=1,
        description="`asks`: approval requests of agents and workers; `calls`: calls of callers to agents; "
        "`delegations`: messages sent to an agent; `commands`: commands to the gateway.",
    )
    when: When | None = Field(
        default=None,
        description="A condition in CEL over action.*, peer.*, caller.name, direction, mode and now. A rule that "
        'allows needs one, or `argv`; `when: "true"` allows everything in `about`.',
    )
    argv: tuple[str, ...] = Field(
        default=(),
        description="The first words of a command. A rule that allows matches only this single command.",
    )
    grantable: bool = Field(
        default=False, description="Whether a standing approval may answer where this rule asks."
    )
    reason: str | None = Field(
        default=None, max_length=200, description="Text that is recorded with the decision."
    )
    approvers: DeciderSettings | None = Field(
        default=None,
        description="Approvers for this rule. If several rules or tiers name approvers, the one that needs more "
        "approvals wins; on a tie, that of this rule.",
    )

    @model_validator(mode="after")
    def _check_condition(self) -> Self:
        if is_unconditional(self.effect, self.when, self.argv):
            raise ValueError(UNCONDITIONAL)
        return self

    @model_validator(mode="after")
    def _check_approvers(self) -> Self:
        if self.approvers is not None and self.effect != "ask":
            raise ValueError("approvers: only a rule with the effect ask may have them")
        return self


class OwnerSettings(Section):
    """Rules for the work of one caller, evaluated together with the general ones."""

    rules: tuple[RuleSettings, ...] = ()


class GrantOptionSettings(Section):
    """The standing approval that the "always" option of a request creates."""

    scope: GrantScope | None = Field(
        default=None,
        description='Its scope. Absent: there is no "always" option.',
    )
    match: MatchBy = Field(
        default="exact",
        description="`exact`: the same subject; `tool`: the same tool with any arguments.",
    )
    ttl: Duration = Field(
        default=parse_duration("8h"),
        json_schema_extra={"default": "8h"},
        description="Its lifetime, 30 days at most.",
    )
    max_uses: int | None = Field(default=None, ge=1, le=1_000_000)

    @field_validator("ttl")
    @classmethod
    def _check_ttl(cls, ttl: Duration) -> Duration:
        if not 0 < ttl.seconds <= _LONGEST_GRANT_S:
            raise ValueError("must be longer than 0 and at most 30 days")
        return ttl


class HookSettings(Section):
    """Your own code that takes part in decisions: an HTTP endpoint, or a callable of an importable module."""

    name: Name
    points: tuple[HookPoint, ...] = Field(
        min_length=1,
        description="`before_delegate`: before a message, or an answer in words, is sent to an agent; "
        "`on_permission_request`: before an approval request is opened; `before_deliver`: before an answer is "
        "stored; `on_stop`: after a task has ended.",
    )
    url: WebUrl | None = None
    call: str | None = Field(
        default=None, pattern=r"^[\w.]+:\w+$", description="`module:name` of a function."
    )
    key_env: str | None = Field(
        default=None, description="Variable with the bearer token for the endpoint."
    )
    timeout: Duration = Field(default=parse_duration("2s"), json_schema_extra={"default": "2s"})
    on_error: OnError = Field(
        default="closed",
        description="`closed`: a failed hook means ask, or deny if no approver can be asked; `open`: it is ignored, "
        "with a warning.",
    )

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        _check_target(self.url, self.call)
        return self


class ClassifierSettings(Section):
    """A hook that estimates risk. It can turn allow into ask, never the reverse."""

    url: WebUrl | None = None
    call: str | None = Field(
        default=None, pattern=r"^[\w.]+:\w+$", description="`module:name` of a function."
    )
    key_env: str | None = None
    timeout: Duration = Field(default=parse_duration("1s"), json_schema_extra={"default": "1s"})

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        _check_target(self.url, self.call)
        return self


def _check_target(url: str | None, call: str | None) -> None:
    if (url is None) == (call is None):
        raise ValueError("requires exactly one of url and call")
    if call is not None:
        try:
            find_callable(call)
        except ConfigInvalid as wrong:
            raise ValueError(wrong.details["reason"]) from None


class PolicySettings(Section):
    """Deny takes precedence over ask, ask over allow, regardless of order. If no rule matches, a person is asked."""

    mode: PolicyMode = Field(
        default="normal",
        description="`no_ask` denies instead of asking, `plan` denies everything that changes data, `auto` allows up "
        "to medium risk.",
    )
    rules: tuple[RuleSettings, ...] = ()
    owners: dict[str, OwnerSettings] = Field(
        default={}, description="Rules about the work of one caller, by its name."
    )
    grants: GrantOptionSettings = Field(default=GrantOptionSettings())
    roles: dict[RoleName, tuple[Approver, ...]] = Field(
        default={},
        description="Roles and their principals. `@` and the name of a role mean all of them in `approvers`.",
    )
    approvers: tuple[ApproverSettings, ...] = Field(
        default=(), max_length=4, description="Approvers by risk; absent: the owner of the task."
    )
    hooks: tuple[HookSettings, ...] = Field(default=(), description="Hooks, called in this order.")
    classifier: ClassifierSettings | None = None

    @field_validator("roles")
    @classmethod
    def _check_roles(cls, roles: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, people in roles.items():
            if ROLE_MARK + name == CALLER:
                raise ValueError(f"{name} means the caller of the task and cannot be a role")
            if not people:
                raise ValueError(f"the role {name} has no principals")
            if any(one.startswith(ROLE_MARK) for one in people):
                raise ValueError(f"{name}: a role contains principals, not roles")
        return roles

    @model_validator(mode="after")
    def _check_approvers(self) -> Self:
        stated: list[tuple[str, DeciderSettings | None]] = [
            (f"approvers[{place}]", tier) for place, tier in enumerate(self.approvers)
        ]
        rules = [*self.rules, *(rule for one in self.owners.values() for rule in one.rules)]
        stated += [(f"rule {rule.name}: approvers", rule.approvers) for rule in rules]
        for place, deciders in stated:
            fault = _find_fault(deciders, self.roles) if deciders else None
            if fault is not None:
                raise ValueError(f"{place}: {fault}")
        return self


def _find_fault(deciders: DeciderSettings, roles: Mapping[str, tuple[str, ...]]) -> str | None:
    try:
        return read_tier(deciders, roles).find_fault()
    except KeyError as unknown:
        return f"there is no role {unknown.args[0]}"


def read_policy(settings: PolicySettings) -> Policy:
    """The policy of a section."""
    roles = settings.roles
    rules = [_read_rule(rule, None, roles) for rule in settings.rules]
    for owner, section in settings.owners.items():
        rules += [_read_rule(rule, owner, roles) for rule in section.rules]
    grants = settings.grants
    terms = GrantTerms(grants.scope, grants.match, grants.ttl.ms, grants.max_uses)
    hooks = tuple(_read_hook(hook) for hook in settings.hooks)
    policy = make_policy(
        tuple(rules), settings.mode, terms, hooks, _read_classifier(settings.classifier)
    )
    tiers = tuple(read_tier(tier, roles) for tier in settings.approvers)
    return replace(policy, tiers=tiers, version=name_version(policy.version, tiers))


def _read_hook(hook: HookSettings) -> HookTerms:
    return HookTerms(
        name=hook.name,
        points=frozenset(hook.points),
        url=hook.url,
        call=hook.call,
        key_env=hook.key_env,
        timeout_ms=hook.timeout.ms,
        on_error=hook.on_error,
    )


def _read_classifier(settings: ClassifierSettings | None) -> HookTerms | None:
    if settings is None:
        return None
    return HookTerms(
        "classifier",
        frozenset(),
        settings.url,
        settings.call,
        settings.key_env,
        settings.timeout.ms,
        "open",
    )


def _read_rule(rule: RuleSettings, owner: str | None, roles: Mapping[str, tuple[str, ...]]) -> Rule:
    return Rule(
        name=rule.name,
        effect=rule.effect,
        condition=read_condition(rule.when) if rule.when else None,
        argv=rule.argv,
        reason=rule.reason,
        about=frozenset(rule.about),
        grantable=rule.grantable,
        owner=owner,
        tier=read_tier(rule.approvers, roles) if rule.approvers else None,
    )


def read_tier(settings: DeciderSettings, roles: Mapping[str, tuple[str, ...]]) -> Tier:
    """The tier of a section; escalations are in the order of their times.

    Raises:
        KeyError: an unknown role.
    """
    later = sorted(settings.escalate, key=lambda step: step.after.ms)
    steps = (
        make_step(settings.who, roles, 0, _DEVICES[settings.devices]),
        *(
            make_step(step.to, roles, step.after.ms, _DEVICES[step.devices or settings.devices])
            for step in later
        ),
    )
    quorum = Quorum(settings.need, settings.veto, settings.allow_self)
    risk = settings.risk if isinstance(settings, ApproverSettings) else LOWEST
    return Tier(risk, quorum, steps)


def read_tried_policy(given: JsonObject) -> Policy:
    """The policy of a section that is only tried.

    Raises:
        InvalidInput: a member is invalid, or cannot be tried.
    """
    for name in given:
        if name not in _TRIED:
            # Recorded hook results are used: hooks are not called again, and a query loads no code.
            raise InvalidInput(f"policy.{name}", "cannot be tried")
    try:
        return read_policy(PolicySettings.model_validate(given))
    except ValueError as wrong:
        raise InvalidInput("policy", str(wrong).splitlines()[-1].strip()) from None
