"""Approvers by risk: the operator's tiers give an approval request its quorum and its audience.

The risk of a request is derived from its action. The agent can raise it, never lower it. A step lists people, and roles
by their members: role membership is read when the request is opened. The tier with the highest risk at or below that of
the request applies. The request keeps the tier's content: a changed configuration affects later requests only.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Final, get_args

from passerelle.core.frozen import frozen
from passerelle.core.payloads.approval import ActionType, AudienceStep, Quorum, Risk
from passerelle.core.wire.canonical import digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from passerelle.core.payloads.approval import AudienceDevices
    from passerelle.core.wire.json import JsonObject

RISKS: Final[tuple[Risk, ...]] = get_args(Risk)
PAYMENT_TAGS: Final = frozenset({"payment", "payments"})

_LOW: Final[frozenset[ActionType]] = frozenset({"free_input", "inbound_call"})
_HIGH: Final[frozenset[ActionType]] = frozenset({"credential", "policy_change", "device_pairing"})


def judge_risk(
    action_type: ActionType,
    *,
    destructive: bool,
    tags: AbstractSet[str] = frozenset(),
    declared: Risk | None = None,
) -> tuple[Risk, tuple[str, ...]]:
    """The risk and its reasons. ``tags`` are the agent's configured tags, ``declared`` is its own rating.

    Payments are critical, destructive actions and credentials are high, free-text input is low, anything unknown is
    medium.
    """
    found: list[tuple[Risk, str]] = []
    if action_type != "free_input" and PAYMENT_TAGS & tags:
        found.append(("critical", "the agent is tagged for payments"))
    if destructive:
        found.append(("high", "declared destructive"))
    if action_type in _HIGH:
        found.append(("high", f"{action_type} is sensitive"))
    if declared is not None:
        found.append((declared, f"the agent rates it {declared}"))
    found.append(("low" if action_type in _LOW else "medium", f"default for {action_type}"))
    worst, _ = max(found, key=lambda one: RISKS.index(one[0]))
    return worst, tuple(reason for risk, reason in found if risk == worst)


CALLER: Final = "@caller"
"""In a list of approvers: the caller for whom the work is done."""
ROLE_MARK: Final = "@"
"""In a list of approvers: the prefix of a role name."""
LOWEST: Final = RISKS[0]
"""The risk of a tier that a rule names: it applies at any risk."""


@frozen
class Tier:
    """The approvers for requests of at least ``risk``. Steps list principals; the first step is notified at once."""

    risk: Risk
    quorum: Quorum
    steps: tuple[AudienceStep, ...]

    def list_audience(self, caller: str) -> tuple[AudienceStep, ...]:
        """The steps with ``CALLER`` replaced by one caller."""
        return tuple(
            replace(
                step,
                principals=tuple(
                    dict.fromkeys(caller if name == CALLER else name for name in step.principals)
                ),
            )
            for step in self.steps
        )

    def find_fault(self) -> str | None:
        """Why a request could be left without enough approvers, or None; the caller may be one of the approvers."""
        named = {name for step in self.steps for name in step.principals}
        fixed = len(named - {CALLER})
        able = fixed - 1 if not self.quorum.allow_self else max(fixed, 1 if CALLER in named else 0)
        if able < self.quorum.need:
            return (
                f"{self.quorum.need} approvals are needed, and at most {max(able, 0)} can be given"
            )
        return None


def make_step(
    names: Iterable[str],
    roles: Mapping[str, tuple[str, ...]],
    after_ms: int = 0,
    devices: AudienceDevices | None = None,
) -> AudienceStep:
    """A step that lists its people and the members of its roles, each once.

    Raises:
        KeyError: an unknown role.
    """
    people: dict[str, None] = {}
    found: list[str] = []
    for name in names:
        if name == CALLER or not name.startswith(ROLE_MARK):
            people[name] = None
            continue
        role = name.removeprefix(ROLE_MARK)
        people.update(dict.fromkeys(roles[role]))
        found.append(role)
    return AudienceStep((*people,), after_ms, (*found,) or None, devices)


def choose_tier(tiers: Iterable[Tier], risk: Risk, of_rules: Iterable[Tier] = ()) -> Tier | None:
    """The tier of a request; None if its owner decides.

    If rules name approvers as well, the strictest tier wins: the one that needs more approvals, on a tie the one that
    excludes the requester, and among equals the rules in their order before the risk tier.
    """
    reached = [tier for tier in tiers if RISKS.index(tier.risk) <= RISKS.index(risk)]
    by_risk = sorted(reached, key=lambda tier: RISKS.index(tier.risk))[-1:]
    return max([*of_rules, *by_risk], key=_weigh, default=None)


def _weigh(tier: Tier) -> tuple[int, bool]:
    return tier.quorum.need, not tier.quorum.allow_self


def name_version(version: str, tiers: Iterable[Tier]) -> str:
    """The version of a policy with its tiers: they influence decisions as much as rules do."""
    stated: list[JsonObject] = [state_tier(tier) for tier in tiers]
    return digest({"policy": version, "approvers": [*stated]}) if stated else version


def state_tier(tier: Tier) -> JsonObject:
    """Everything about a tier that the policy version depends on."""
    return {
        "risk": tier.risk,
        "need": tier.quorum.need,
        "veto": tier.quorum.veto,
        "allowSelf": tier.quorum.allow_self,
        "steps": [_state_step(step) for step in tier.steps],
    }


def _state_step(step: AudienceStep) -> JsonObject:
    stated: JsonObject = {"principals": [*step.principals], "afterMs": step.after_ms}
    if step.roles:
        stated["roles"] = [*step.roles]
    return stated if step.devices is None else {**stated, "devices": step.devices}
