"""Why a device may no longer see an open approval: its rights changed, not the approval."""

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
    """Why ``now`` may no longer see or answer an approval that ``before`` could; None if nothing was lost.

    A missing scope or signature for an allow is refused when the answer is given: such an approval can still be
    rejected, so it stays visible.
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
