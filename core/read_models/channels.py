"""Read models of device links: the links of a session, and the state that a reconnecting device finds.

Links are devices and agents, with the deliveries pending for them (SNAP-13, PRS-9). A device finds one of six states
(CHN-12), computed from records, never from text. None of the six is a failure: a failed task has ended, and its record
has the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Final

from passerelle.core.approval.record import ActionRecord, ReturnState
from passerelle.core.payloads.channel import Recovery
from passerelle.core.read_models.mark import FreshnessMark, unavailable
from passerelle.core.read_models.task import doubt_status
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.record import record


@record
class DeviceLink:
    """A device, or a tab of it, that follows the session or one task of it. ``cursor`` is its last acknowledgement."""

    channel_id: str
    device: str
    generation: int
    seen_at: str
    connected: bool
    cursor: str | None = None
    acknowledged: int | None = None
    task: str | None = None
    tab: str | None = None


@record
class WebhookLink:
    """A webhook for the session, or for one task of it. ``cursor`` is its last confirmed position."""

    channel_id: str
    webhook_id: str
    subject: str
    state: str
    cursor: str
    acknowledged: int


@record
class PeerLink:
    """An agent that has or had a run of the session, with its own ids for it."""

    peer: str
    task_id: str
    run_id: str
    status: Status
    native_protocol: str
    delivery_mechanism: str
    last_seen_at: str
    remote_task_id: str | None = None
    remote_context_id: str | None = None
    native_status: str | None = None


@record
class BridgeItem:
    """An approval in transit: to approvers while it is open, back to the agent afterwards."""

    action_id: str
    state: str
    return_state: ReturnState
    return_attempts: int = 0
    return_error: str | None = None


@record
class ChannelSummary:
    """The links of a session. ``pending``: open approvals; ``returning``: decisions not delivered yet."""

    session_id: str
    sequence: int
    devices: tuple[DeviceLink, ...]
    peers: tuple[PeerLink, ...]
    pending: tuple[BridgeItem, ...]
    returning: tuple[BridgeItem, ...]
    webhooks: tuple[WebhookLink, ...] = ()
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def show_channels(
    session_id: str,
    sequence: int,
    devices: Sequence[DeviceLink],
    tasks: Sequence[TaskRecord],
    actions: Iterable[ActionRecord],
    left_out: int,
    webhooks: Sequence[WebhookLink],
) -> ChannelSummary:
    """The summary of records that were read after ``sequence``; ``left_out`` tasks were not read."""
    items = [
        BridgeItem(
            one.request.action_id,
            one.state,
            one.return_state,
            one.return_attempts,
            one.return_error,
        )
        for one in actions
    ]
    return ChannelSummary(
        session_id=session_id,
        sequence=sequence,
        devices=tuple(devices),
        peers=tuple(link for task in tasks for link in _list_peers(task)),
        pending=tuple(one for one in items if one.state == "pending"),
        returning=tuple(one for one in items if one.return_state in {"owed", "returning"}),
        webhooks=tuple(webhooks),
        marks={"peers": unavailable(f"{left_out} older tasks")} if left_out else {},
    )


def _list_peers(task: TaskRecord) -> list[PeerLink]:
    return [
        PeerLink(
            peer=run.worker.peer,
            task_id=task.task_id,
            run_id=run.run_id,
            status=run.status,
            native_protocol=run.native_protocol,
            delivery_mechanism=run.delivery_mechanism,
            last_seen_at=run.last_seen_at,
            remote_task_id=run.remote_task_id,
            remote_context_id=run.remote_context_id,
            native_status=run.native_status,
        )
        for run in task.attempts
    ]


_ASKING: Final = frozenset({Status.WAITING_INPUT, Status.WAITING_PERMISSION})
ORDER: Final[tuple[Recovery, ...]] = (
    "waiting",
    "unreachable",
    "running",
    "completed_undelivered",
    "idle",
    "archived_or_missing",
)
"""Priority for a person: of several states the earliest in this order counts."""


def find_recovery(task: TaskRecord, held: int, now_ms: int, archive: str | None = None) -> Recovery:
    """The state of one task for a device that has its session up to the sequence ``held``.

    ``archive`` is the ref of its session if that is archived. A result that the device has not seen comes first.
    """
    if task.status is Status.ARCHIVED:
        return "archived_or_missing"
    if task.status in ENDED:
        if task.last > held and task.status is Status.COMPLETED:
            return "completed_undelivered"
        return "idle" if archive is None else "archived_or_missing"
    if task.open_actions or task.status in _ASKING:
        return "waiting"
    if task.status is Status.LOST or doubt_status(task, now_ms) is not None:
        return "unreachable"
    if task.run is not None or task.status in _STARTING:
        return "running"
    return "idle"


def choose_recovery(found: Iterable[Recovery]) -> Recovery:
    """The combined state of several tasks or streams; without any, nothing is active."""
    states = set(found)
    for state in ORDER:
        if state in states:
            return state
    return "idle"


_STARTING: Final = frozenset(
    {Status.ACCEPTED, Status.QUEUED, Status.PREPARING, Status.RETRYING, Status.WAITING_RESOURCE}
)
"""The task will progress without an approval or input."""
