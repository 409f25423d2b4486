"""Settings of how long finished sessions stay in memory, and when they are deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field, WithJsonSchema

from passerelle.gateway.settings.section import Section
from passerelle.runtime.common.durations import PATTERN, Duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_YEARS: Final = 100
_LONGEST_MS: Final = LONGEST_YEARS * 366 * 86_400_000
_NEVER: Final = "never"
_MEMORY_FIRST: Final = "a session must leave memory before it is deleted"
_AGE_SCHEMA: Final = {"type": "string", "pattern": PATTERN}
_STAY_SCHEMA: Final = {"anyOf": [{"const": _NEVER}, _AGE_SCHEMA]}


def _read_age(given: object) -> object:
    return parse_duration(given, _LONGEST_MS) if isinstance(given, str) else given


Age: TypeAlias = Annotated[Duration, BeforeValidator(_read_age), WithJsonSchema(_AGE_SCHEMA)]
"""A duration of up to ``LONGEST_YEARS``."""


def _read_stay(given: object) -> object:
    if isinstance(given, Duration) or given == _NEVER:
        return given
    if isinstance(given, str):
        return parse_duration(given)
    message = f"is {_NEVER} or a duration, such as 24h"
    raise ValueError(message)


Stay: TypeAlias = Annotated[
    Duration | Literal["never"], BeforeValidator(_read_stay), WithJsonSchema(_STAY_SCHEMA)
]
"""A duration, or ``never``."""


class OutcomeAges(Section):
    """How long a session is kept, by the outcome of its tasks."""

    completed: Age | None = Field(
        default=None, description="Absent: kept forever; the same for the others."
    )
    failed: Age | None = None
    cancelled: Age | None = None
    timed_out: Age | None = None

    def list_ages(self) -> Iterator[tuple[str, int]]:
        """Outcomes with a limited age, in milliseconds."""
        for outcome in type(self).model_fields:
            if (age := cast("Duration | None", getattr(self, outcome))) is not None:
                yield outcome, age.ms


def _read_ages(given: object) -> object:
    """One duration applies to every outcome."""
    if given is None or given == _NEVER:
        return {}
    if isinstance(given, str):
        return dict.fromkeys(OutcomeAges.model_fields, _read_age(given))
    return given


Ages: TypeAlias = Annotated[
    OutcomeAges,
    BeforeValidator(_read_ages),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": _NEVER},
                _AGE_SCHEMA,
                {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        name: {"anyOf": [_AGE_SCHEMA, {"type": "null"}]}
                        for name in ("completed", "failed", "cancelled", "timed_out")
                    },
                },
            ]
        }
    ),
]
"""``never``, a duration, or one for each outcome."""


class RetentionSettings(Section):
    """How long finished work is kept, and where."""

    memory: Duration | None = Field(
        default=parse_duration("24h"),
        json_schema_extra={"default": "24h"},
        description="How long a session without open work stays in the memory of the store after its last event. Then "
        "it moves to `archive` next to the blobs, is read from there, and returns to memory with the next message. "
        "Above 80 % of the memory it moves sooner. An agent can have its own time; for a session with tasks of "
        "several agents the longest applies. null: sessions stay in memory.",
    )

    inbox: Duration | None = Field(
        default=parse_duration("7d"),
        json_schema_extra={"default": "7d"},
        description="How long events of an inbox are kept for devices that are offline. A device that returns later "
        "gets a gap and a snapshot; pending approval requests are never lost. At most 8 MiB are kept. null: only this "
        "size limits them.",
    )

    forget: Ages = Field(
        default=OutcomeAges(),
        json_schema_extra={"default": _NEVER},
        description="How long after its last event a session is permanently deleted, as by `passerelle store forget`: "
        "`never`, a duration such as `400d`, or durations by outcome: `{completed: 90d, failed: 400d}`, where other "
        "outcomes are kept. For a session with several tasks the longest applies. Not shorter than `memory`. An agent "
        "can have its own. Sessions of held owners are kept.",
    )

    @property
    def memory_ms(self) -> int | None:
        """``memory`` in milliseconds."""
        return None if self.memory is None else self.memory.ms

    @property
    def inbox_ms(self) -> int | None:
        """``inbox`` in milliseconds."""
        return None if self.inbox is None else self.inbox.ms

    def find_faults(
        self, forget: OutcomeAges | None, memory: Stay | None
    ) -> Iterator[tuple[str, str]]:
        """Why an agent cannot have these times, together with the general ones that it does not override.

        Yields the first fault only, with the name of the setting: ``forget`` if the agent sets both.
        """
        stays = self.memory if memory is None else None if memory == _NEVER else memory
        named = f"retention.memory, {stays}" if memory is None else f"its memory, {stays}"
        for outcome, age_ms in (self.forget if forget is None else forget).list_ages():
            if stays is None or age_ms >= stays.ms:
                continue
            if forget is None and memory is not None:
                yield (
                    "memory",
                    f"{stays} is longer than retention.forget, {Duration(age_ms)} for {outcome}: {_MEMORY_FIRST}",
                )
            elif forget is not None:
                yield (
                    "forget",
                    f"{Duration(age_ms)} for {outcome} is shorter than {named}: {_MEMORY_FIRST}",
                )
            return

    def find_fault(self) -> str | None:
        """Why ``forget`` conflicts with ``memory``; None: it does not."""
        return next((reason for _, reason in self.find_faults(self.forget, None)), None)
