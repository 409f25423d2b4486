"""Who decides what, by risk: an operator's tiers, from which the quorum and the audience of a question are taken.

The tier that counts is the one of the highest risk that the question reaches. What it says is frozen in the question:
another configuration changes what is asked later, and nothing that is asked already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.canonical import digest
from passerelle.core.payloads.approval import AudienceStep, Quorum, Risk
from passerelle.permission_bridge.risk import RISKS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.json import JsonObject

CALLER: Final = "@caller"
"""In a list of approvers: whoever the work is done for."""


@dataclass(frozen=True, slots=True)
class Tier:
    """From ``risk`` on these decide. Steps name principals, the first one those who are asked at once."""

    risk: Risk
    quorum: Quorum
    steps: tuple[AudienceStep, ...]

    def list_audience(self, caller: str) -> tuple[AudienceStep, ...]:
        """The steps for the work of one caller."""
        return tuple(
            AudienceStep(
                tuple(
                    dict.fromkeys(caller if name == CALLER else name for name in step.principals)
                ),
                step.after_ms,
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


def choose_tier(tiers: Iterable[Tier], risk: Risk) -> Tier | None:
    """The tier of a question; None where its owner decides."""
    reached = [tier for tier in tiers if RISKS.index(tier.risk) <= RISKS.index(risk)]
    return max(reached, key=lambda tier: RISKS.index(tier.risk), default=None)


def name_version(version: str, tiers: Iterable[Tier]) -> str:
    """The version of a policy with its tiers: they decide as much as rules do."""
    stated: list[JsonObject] = [
        {
            "risk": tier.risk,
            "need": tier.quorum.need,
            "veto": tier.quorum.veto,
            "allowSelf": tier.quorum.allow_self,
            "steps": [
                {"principals": [*step.principals], "afterMs": step.after_ms} for step in tier.steps
            ],
        }
        for tier in tiers
    ]
    return digest({"policy": version, "approvers": [*stated]}) if stated else version
