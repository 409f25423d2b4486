"""Requests of a caller about its schedules. Each class is also the wire form, except for the message."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Final, TypeAlias

from pydantic import Field

from passerelle.core.payloads.schedule import MissedPolicy, OverlapPolicy
from passerelle.core.session.requests import Labels
from passerelle.core.task.requests import PAGE_LIMIT, Id, Title
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record

LONGEST_S: Final = 366 * 86_400
LONGEST_JITTER_S: Final = 3_600
MOST_MESSAGE_BYTES: Final = 8_192
"""Message size of a schedule: it is in a record that every step reads and writes."""

MOST_SCHEDULES: Final = 1_000
"""Schedules per caller: an instance evaluates each at every tick."""

CronText: TypeAlias = Annotated[str, Field(min_length=1, max_length=255)]
EverySeconds: TypeAlias = Annotated[int, Field(ge=1, le=LONGEST_S)]
JitterSeconds: TypeAlias = Annotated[int, Field(ge=0, le=LONGEST_JITTER_S)]
GraceSeconds: TypeAlias = Annotated[int, Field(ge=1, le=86_400)]


@record
class CreateSchedule:
    """Send a message to an agent at regular times: by exactly one of ``cron`` and ``every_s`` (AP-7)."""

    title: Title
    agent: Id
    message: JsonObject
    cron: CronText | None = None
    every_s: EverySeconds | None = None
    timezone: Annotated[str, Field(min_length=1, max_length=64)] = "UTC"
    missed: MissedPolicy = "once"
    overlap: OverlapPolicy = "skip"
    jitter_s: JitterSeconds = 0
    grace_s: GraceSeconds = 60
    labels: Labels = field(default_factory=dict[str, str])


@record
class PauseSchedule:
    """Stop ticks until the schedule is resumed; running tasks continue."""

    schedule_id: Id


@record
class ResumeSchedule:
    """Restart ticks from the next one on; those during the pause are not missed."""

    schedule_id: Id


@record
class RunSchedule:
    """Start one run now, also if the schedule is paused, even while another is active."""

    schedule_id: Id


@record
class DeleteSchedule:
    """Start nothing more. Running tasks continue, and the history stays in the session."""

    schedule_id: Id


ScheduleRequest: TypeAlias = (
    CreateSchedule | PauseSchedule | ResumeSchedule | RunSchedule | DeleteSchedule
)


@record
class GetSchedule:
    """A schedule, with its newest runs and their statuses."""

    schedule_id: Id


@record
class ListSchedules:
    """The caller's schedules that are not deleted, newest first."""

    page_size: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] = 50
    page_token: Annotated[str, Field(max_length=512)] | None = None


@record
class GetScheduleHistory:
    """Steps of a schedule in order, after the sequence ``after``."""

    schedule_id: Id
    after: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] = 100


ScheduleQuery: TypeAlias = GetSchedule | ListSchedules | GetScheduleHistory


@record
class ScheduleChanged:
    """The schedule after a command; ``repeated``: the command was executed before."""

    schedule: JsonObject
    version: int
    repeated: bool = False
