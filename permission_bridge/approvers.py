"""Who decides what, by risk: an operator's tiers, from which the quorum and the audience of a question are taken.

Risk is how much can go wrong, judged by what is asked for. The asking side can raise it and never lower it.

A step names people, and roles by their members: whoever has a role when the question is opened is one of its people.
The tier that counts is the one of the highest risk that the question reaches. What it says is frozen in the question:
another configuration changes what is asked later, and nothing that is asked already.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, get_args

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
    """The risk and why. ``tags`` are those of the peer in our configuration; ``declared`` is the peer's own word.

    Payments are critical, what destroys or hands out credentials is high, plain words are low, and what
    is not known is medium.
    """
    found: list[tuple[Risk, str]] = []
    if action_type != "free_input" and PAYMENT_TAGS & tags:
        found.append(("critical", "the peer is tagged as one that pays"))
    if destructive:
        found.append(("high", "said to be destructive"))
    if action_type in _HIGH:
        found.append(("high", f"{action_type} is sensitive"))
    if declared is not None:
        found.append((declared, f"the peer calls it {declared}"))
    found.append(("low" if action_type in _LOW else "medium", f"default for {action_type}"))
    worst, _ = max(found, key=lambda one: RISKS.index(one[0]))
    return worst, tuple(reason for risk, reason in found if risk == worst)


CALLER: Final = "@caller"
"""In a list of approvers: whoever the work is done for."""
ROLE_MARK: Final = "@"
"""In a list of approvers: what follows is a role."""
LOWEST: Final = RISKS[0]
"""From where on those decide whom a rule names: whatever it asks."""


@dataclass(frozen=True, slots=True)
class Tier:
    """From ``risk`` on these decide. Steps name principals, the first one those who are asked at once."""

    risk: Risk
    quorum: Quorum
    steps: tuple[AudienceStep, ...]

    def list_audience(self, caller: str) -> tuple[AudienceStep, ...]:
        """The steps for the work of one caller."""
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
        """Why some question could be decided by nobody; whoever calls may be one of those who are named."""
        named = {name for step in self.steps for name in step.principals}
        fixed = len(named - {CALLER})
        able = fixed - 1 if not self.quorum.allow_self else max(fixed, 1 if CALLER in named else 0)
        if able < self.quorum.need:
            return f"{self.quorum.need} must agree, and there may be only {max(able, 0)} who can"
        return None


def make_step(
    names: Iterable[str],
    roles: Mapping[str, tuple[str, ...]],
    after_ms: int = 0,
    devices: AudienceDevices | None = None,
) -> AudienceStep:
    """A step with the members of the roles that it names, each of them once.

    Raises:
        KeyError: a role that there is not.
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
    """The tier of a question; None where its owner decides.

    Where rules name who decides as well, nobody's word makes it easier: those decide of whom more must agree, or who
    may not be whoever asks; between equals the rules in their order, and the tier last.
    """
    reached = [tier for tier in tiers if RISKS.index(tier.risk) <= RISKS.index(risk)]
    by_risk = sorted(reached, key=lambda tier: RISKS.index(tier.risk))[-1:]
    return max([*of_rules, *by_risk], key=_weigh, default=None)


def _weigh(tier: Tier) -> tuple[int, bool]:
    return tier.quorum.need, not tier.quorum.allow_self


def name_version(version: str, tiers: Iterable[Tier]) -> str:
    """The version of a policy with its tiers: they decide as much as rules do."""
    stated: list[JsonObject] = [state_tier(tier) for tier in tiers]
    return digest({"policy": version, "approvers": [*stated]}) if stated else version


def state_tier(tier: Tier) -> JsonObject:
    """Everything about a tier that a version depends on."""
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
