"""The current load of a gateway in a few numbers, for its operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import WAITING, Status
from passerelle.core.wire.record import record
from passerelle.core.wire.times import parse_ms

FOR_A_PERSON: Final = frozenset({Status.WAITING_INPUT, Status.WAITING_PERMISSION})
"""Tasks that wait for a person."""


@record
class OldestTask:
    """A task and the start of its current status."""

    task_id: str
    agent: str
    status: Status
    since: str


@record
class TaskOverview:
    """Open tasks. ``by_status``, ``need_person`` and ``oldest_waiting`` cover the ``counted`` ones.

    If ``complete`` is false, there are more than ``counted``; those longest in their status are counted.
    """

    open: int
    counted: int
    complete: bool
    by_status: Mapping[str, int]
    by_agent: Mapping[str, int]
    need_person: int
    oldest_waiting: OldestTask | None


@record
class ApprovalOverview:
    """Open approvals; if ``complete`` is false, there are more."""

    open: int
    complete: bool
    oldest_at: str | None


@record
class DeliveryOverview:
    """Webhooks whose deliveries fail; if ``complete`` is false, there are more."""

    failing: int
    complete: bool
    oldest_at: str | None


@record
class RuntimeOverview:
    """The answering instance, the number of live instances, and the store as this one sees it.

    ``replicated`` are the primaries whose replicas irreversible acts wait for; ``alone`` those without a replica, where
    acts do not wait. ``config_fault`` is why the current configuration file is not in force.
    """

    instance: str = ""
    instances: int = 0
    shards_led: int = 0
    relay_behind_ms: int = 0
    primaries: int = 0
    replicated: int = 0
    replicas_missing: bool = False
    alone: int = 0
    memory_share: float = 0.0
    config_fault: str | None = None


@record
class Overview:
    """Parts that the reader may not read are left out."""

    at: str
    tasks: TaskOverview | None = None
    approvals: ApprovalOverview | None = None
    deliveries: DeliveryOverview | None = None
    runtime: RuntimeOverview | None = None


def count_tasks(
    records: Iterable[TaskRecord], names: Mapping[str, str], more: Mapping[str, int]
) -> TaskOverview:
    """The overview of open tasks: ``names`` are their facade ids, by record.

    ``more``: the number of further tasks by agent, if known; an entry of 0 means that there may be some.
    """
    by_status, by_agent, known = dict[str, int](), dict[str, int](), list[TaskRecord]()
    for one in records:
        known.append(one)
        by_status[one.status.value] = by_status.get(one.status.value, 0) + 1
        by_agent[one.kind] = by_agent.get(one.kind, 0) + 1
    for agent, count in more.items():
        by_agent[agent] = by_agent.get(agent, 0) + count
    waiting = min(
        (one for one in known if one.status in WAITING),
        key=lambda one: (parse_ms(one.status_at), one.task_id),
        default=None,
    )
    return TaskOverview(
        open=len(known) + sum(more.values()),
        counted=len(known),
        complete=not more,
        by_status=dict(sorted(by_status.items())),
        by_agent=dict(sorted(by_agent.items())),
        need_person=sum(one.status in FOR_A_PERSON for one in known),
        oldest_waiting=None
        if waiting is None
        else OldestTask(names[waiting.task_id], waiting.kind, waiting.status, waiting.status_at),
    )
