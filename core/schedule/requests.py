"""What a caller can ask of its schedules. Each is the form in which it is sent, too, but for the message."""

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
"""Of the message of a schedule: it stands in a record, which is read and written with each step."""

MOST_SCHEDULES: Final = 1_000
"""That a caller has at a time; each is looked at by somebody at every tick."""

CronText: TypeAlias = Annotated[str, Field(min_length=1, max_length=255)]
EverySeconds: TypeAlias = Annotated[int, Field(ge=1, le=LONGEST_S)]
JitterSeconds: TypeAlias = Annotated[int, Field(ge=0, le=LONGEST_JITTER_S)]
GraceSeconds: TypeAlias = Annotated[int, Field(ge=1, le=86_400)]


@record
class CreateSchedule:
    """A message that is sent to an agent again and again: by exactly one of ``cron`` and ``every_s`` (AP-7)."""

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
    """No tick counts until it is resumed; runs that have begun go on."""

    schedule_id: Id


@record
class ResumeSchedule:
    """Ticks count again, from the next one on: those of the pause were no missed ones."""

    schedule_id: Id


@record
class RunSchedule:
    """One run now, also of a schedule that is paused, and whatever else goes on."""

    schedule_id: Id


@record
class DeleteSchedule:
    """Nothing begins any more. Runs that have begun go on, and its history stays in its session."""

    schedule_id: Id


ScheduleRequest: TypeAlias = (
    CreateSchedule | PauseSchedule | ResumeSchedule | RunSchedule | DeleteSchedule
)


@record
class GetSchedule:
    """A schedule, with its newest runs and how each of them stands."""

    schedule_id: Id


@record
class ListSchedules:
    """The schedules of the caller that are not deleted, the newest first."""

    page_size: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] = 50
    page_token: Annotated[str, Field(max_length=512)] | None = None


@record
class GetScheduleHistory:
    """Steps of a schedule in order, those behind the sequence ``after``."""

    schedule_id: Id
    after: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] = 100


ScheduleQuery: TypeAlias = GetSchedule | ListSchedules | GetScheduleHistory


@record
class ScheduleChanged:
    """The schedule after a command; ``repeated``: the command had been carried out before."""

    schedule: JsonObject
    version: int
    repeated: bool = False
