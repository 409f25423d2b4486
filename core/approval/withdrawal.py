"""Why an open question leaves the sight of a device: not for what became of it, but for who the device is by now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from passerelle.core.approval.audience import may_decide, may_read
from passerelle.core.principal import AccessScope

if TYPE_CHECKING:
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.principal import Principal
    from passerelle.core.vocabulary import WithdrawalReason


def find_withdrawal(
    record: ActionRecord, before: Principal, now: Principal
) -> WithdrawalReason | None:
    """Why ``now`` may no longer see or answer a question that ``before`` could; None where nothing was lost.

    A yes that takes a right of its own, or a signature, is refused where it is given: such a question can be answered
    with a no, and stays.
    """
    if not _sees(record, before):
        return None
    if _sees(record, now) and (_answers(record, now) or not _answers(record, before)):
        return None
    paired = replace(now, paired=before.paired)
    if _answers(record, paired) and not _answers(record, now):
        return "pairing"
    if may_read(record, now):
        return "scope"
    return "pairing" if may_read(record, paired) else "audience"


def _sees(record: ActionRecord, who: Principal) -> bool:
    may_look = AccessScope.READ_APPROVALS in who.scopes or AccessScope.DECIDE in who.scopes
    return may_look and who.has_inbox and may_read(record, who)


def _answers(record: ActionRecord, who: Principal) -> bool:
    return AccessScope.DECIDE in who.scopes and may_decide(record, who)
