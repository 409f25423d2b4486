"""Whose question it is: who may decide, and who may look at it.

Without an audience the owner decides. With one, the principals of the steps that have begun do, and the owner goes on
seeing what is asked in its name. A step that comes later takes nothing from those before it. Where a step wants paired
devices, the same people with another credential are nobody: the question is not shown to them, and they decide nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from passerelle.core.agent_name import find_base
from passerelle.core.principal import Principal

if TYPE_CHECKING:
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.payloads.approval import AudienceStep


def may_decide(record: ActionRecord, who: Principal) -> bool:
    """Whether a principal is among those who decide by now."""
    request = record.request
    if not request.quorum.allow_self and who.id == request.principal:
        return False
    return who.key == request.owner if not request.audience else _is_asked(record, who)


def is_asking_side(record: ActionRecord, who: Principal) -> bool:
    """Whether a question comes from this very credential: of a worker, or of an agent that dials in with it.

    Whoever may serve every agent is the asking side only as a program: the operator of a runtime is a person.
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
    """Owner keys of everybody in whose inbox the question stands: the owner, and who decides by now."""
    request = record.request
    named = (name for step in _list_begun(record) for name in step.principals)
    return tuple(dict.fromkeys((request.owner, *(_find_key(record, name) for name in named))))


def list_paired_readers(record: ActionRecord) -> frozenset[str]:
    """Those of the readers who see the question from paired devices alone; never the owner."""
    begun = _list_begun(record)
    paired = {name for step in begun if step.devices == "paired" for name in step.principals}
    anywhere = {name for step in begun if step.devices is None for name in step.principals}
    keys = {_find_key(record, name) for name in paired - anywhere}
    return frozenset(keys - {record.request.owner})


def may_read(record: ActionRecord, who: Principal) -> bool:
    """Whether the question is shown to a principal; to others it looks like none."""
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
