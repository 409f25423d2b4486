"""How much can go wrong, judged by what is asked for. The asking side can raise it and never lower it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final, get_args

from passerelle.core.payloads.approval import ActionType, Risk

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
