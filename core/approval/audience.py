"""The audience of an approval: who may decide it and who may read it.

Without an audience the owner decides. With one, the principals of the steps that have begun decide, and the owner may
still read. A later step adds principals and removes none. Where a step requires paired devices, the same principals
with another credential neither see the approval nor decide it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from passerelle.core.agent_name import find_base
from passerelle.core.principal import AccessScope, Principal

if TYPE_CHECKING:
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.payloads.approval import AudienceStep
    from passerelle.core.vocabulary import WithdrawalReason


def may_decide(record: ActionRecord, who: Principal) -> bool:
    """Whether a principal may decide now."""
    request = record.request
    if not request.quorum.allow_self and who.id == request.principal:
        return False
    return who.key == request.owner if not request.audience else _is_asked(record, who)


def is_asking_side(record: ActionRecord, who: Principal) -> bool:
    """Whether an approval was requested with this credential: by a worker, or by an agent that dials in with it.

    A principal that may serve every agent is the asking side only as a program, since the operator of a runtime is a
    person.
    """
    origin = record.request.origin
    if origin.peer is None or who.tenant != record.request.tenant:
        return False
    match origin.asked_by:
        case "worker":
            return origin.peer == who.id
        case "peer":
            names_it = who.serves is not None or who.kind != "person"
            return names_it and who.may_serve(find_base(origin.peer))
        case "principal" | "gateway":
            return False
        case _:
            assert_never(origin.asked_by)


def list_readers(record: ActionRecord) -> tuple[str, ...]:
    """Owner keys of all inboxes that list the approval: the owner's, and those of the principals who may decide now."""
    request = record.request
    named = (name for step in _list_begun(record) for name in step.principals)
    return tuple(dict.fromkeys((request.owner, *(_find_key(record, name) for name in named))))


def list_paired_readers(record: ActionRecord) -> frozenset[str]:
    """Those readers who see the approval on paired devices only; never the owner."""
    begun = _list_begun(record)
    paired = {name for step in begun if step.devices == "paired" for name in step.principals}
    anywhere = {name for step in begun if step.devices is None for name in step.principals}
    keys = {_find_key(record, name) for name in paired - anywhere}
    return frozenset(keys - {record.request.owner})


def may_read(record: ActionRecord, who: Principal) -> bool:
    """Whether a principal may read the approval; for others it does not exist."""
    request = record.request
    return who.tenant == request.tenant and (who.key == request.owner or _is_asked(record, who))


def _is_asked(record: ActionRecord, who: Principal) -> bool:
    return any(
        who.id in step.principals and (step.devices is None or who.paired)
        for step in _list_begun(record)
    )


def _list_begun(record: ActionRecord) -> tuple[AudienceStep, ...]:
    return record.request.audience[: record.step + 1]


def _find_key(record: ActionRecord, name: str) -> str:
    return Principal(name, record.request.tenant).key


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
