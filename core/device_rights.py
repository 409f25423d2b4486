"""What a device may say in its principal's name: a watch may say yes to little things, and no to everything."""

from __future__ import annotations

from typing import Final, get_args

from passerelle.core.payloads.approval import OptionKind, Risk
from passerelle.core.record import record

_RISKS: Final[tuple[Risk, ...]] = get_args(Risk)
NEGATIVE: Final[frozenset[OptionKind]] = frozenset({"reject_once", "reject_always", "cancel"})
"""Options that stop something; every device that decides at all may choose them."""


@record
class DeviceRights:
    """Narrows what the principal may do, and never widens it. None means no bound."""

    options: tuple[OptionKind, ...] | None = None
    risk_up_to: Risk | None = None

    def allow(self, kind: OptionKind, risk: Risk) -> bool:
        """Whether an option of this kind may be chosen for something of this risk."""
        if kind in NEGATIVE:
            return True
        if self.options is not None and kind not in self.options:
            return False
        return self.risk_up_to is None or reaches(self.risk_up_to, risk)


EVERYTHING: Final = DeviceRights()


def reaches(bound: Risk, risk: Risk) -> bool:
    """Whether ``risk`` is not above ``bound``."""
    return _RISKS.index(risk) <= _RISKS.index(bound)
