"""The calls about schedules. Most parameters are the command or query itself: its fields are documented."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any, Final

from pydantic import Field

from passerelle.a2a_mapping.inbound import ROLE_USER, read_send
from passerelle.core.errors import InvalidInput
from passerelle.core.payloads.schedule import MissedPolicy, OverlapPolicy
from passerelle.core.principal import AccessScope
from passerelle.core.read_models.schedule import ScheduleHistory, ScheduleModel
from passerelle.core.schedule.requests import (
    CreateSchedule,
    CronText,
    DeleteSchedule,
    EverySeconds,
    GetSchedule,
    GetScheduleHistory,
    GraceSeconds,
    JitterSeconds,
    ListSchedules,
    PauseSchedule,
    ResumeSchedule,
    RunSchedule,
    ScheduleChanged,
)
from passerelle.core.session.requests import Labels
from passerelle.core.task.requests import Id, Title
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.record import record
from passerelle.gateway.rpc.forms import ScheduleHistoryParams
from passerelle.gateway.rpc.paging import choose_position, choose_size
from passerelle.runtime.common.calls import Caller, MethodRow


@record
class CreateScheduleParams:
    """When: exactly one of ``cron`` and ``every_s``. What: one of ``message`` (A2A 1.0), ``parts``, ``text``.

    Each run gets its own message id and context.
    """

    title: Title
    agent: Id
    message: JsonObject | None = None
    parts: list[JsonObject] | None = None
    text: str | None = None
    cron: CronText | None = None
    every_s: EverySeconds | None = None
    timezone: Annotated[str, Field(min_length=1, max_length=64)] = "UTC"
    missed: MissedPolicy = "once"
    overlap: OverlapPolicy = "skip"
    jitter_s: JitterSeconds = 0
    grace_s: GraceSeconds = 60
    labels: Labels = field(default_factory=dict[str, str])


def _read_create(params: CreateScheduleParams, _caller: Caller) -> CreateSchedule:
    """Raises InvalidInput: not exactly one form of the message is given."""
    given = [one for one in (params.message, params.parts, params.text) if one is not None]
    if len(given) != 1:
        raise InvalidInput("message", "exactly one of message, parts and text is required")
    parts: list[Json] = [*params.parts] if params.parts else [{"text": params.text}]
    message: JsonObject = params.message or {"parts": parts}
    read = read_send({"message": {"role": ROLE_USER, **message, "messageId": "schedule"}}).message
    return CreateSchedule(
        title=params.title,
        agent=params.agent,
        message={name: value for name, value in read.items() if name != "messageId"},
        cron=params.cron,
        every_s=params.every_s,
        timezone=params.timezone,
        missed=params.missed,
        overlap=params.overlap,
        jitter_s=params.jitter_s,
        grace_s=params.grace_s,
        labels=params.labels,
    )


def _change(name: str, summary: str, command: type[Any]) -> MethodRow:
    scopes = (AccessScope.WRITE_TASKS,)
    return MethodRow(name, summary, scopes, command, ScheduleChanged)


_READ: Final = (AccessScope.READ_TASKS,)

SCHEDULE_ROWS: Final[Sequence[MethodRow]] = (
    MethodRow(
        "create_schedule",
        "Send a message to an agent at regular times",
        (AccessScope.CALL,),
        CreateScheduleParams,
        ScheduleChanged,
        read=_read_create,
    ),
    MethodRow(
        "list_schedules", "The schedules of the caller, the newest first", _READ, ListSchedules
    ),
    MethodRow(
        "get_schedule",
        "A schedule, its next tick, and its newest runs",
        _READ,
        GetSchedule,
        model=ScheduleModel,
    ),
    MethodRow(
        "get_schedule_history",
        "The steps of a schedule in order: ticks, runs, pauses",
        _READ,
        ScheduleHistoryParams,
        read=lambda given, _: GetScheduleHistory(
            given.schedule_id,
            choose_position(given.page_token, given.after),
            choose_size(given.page_size, given.limit, 100),
        ),
        model=ScheduleHistory,
    ),
    _change("pause_schedule", "Pause a schedule; active runs continue", PauseSchedule),
    _change("resume_schedule", "Resume a schedule from its next tick on", ResumeSchedule),
    _change("run_schedule", "Run a schedule now", RunSchedule),
    _change("delete_schedule", "Delete a schedule; active runs continue", DeleteSchedule),
)
