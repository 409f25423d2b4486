"""Settings of what agents bring: files behind addresses, and what is taken out of their words."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, model_validator

from passerelle.delegation.runs.outputs import OutputTerms
from passerelle.gateway.settings_section import Name, Section
from passerelle.gateway.settings_webhooks import AllowedOrigin
from passerelle.runtime.common.durations import Duration, parse_duration

_MIB = 1024 * 1024


class RedactionRule(Section):
    """What is taken out of the words of agents before anything is stored."""

    name: Name = Field(description="Stands in its place, as `[redacted: name]`.")
    pattern: str = Field(
        min_length=1, max_length=1_000, description="A regular expression, as Python has them."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            compiled = re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"pattern: {error}") from None
        if compiled.match(""):
            raise ValueError("pattern: matches where there is nothing")
        return self


class OutputSettings(Section):
    """What becomes of the output of agents."""

    fetch: bool = Field(
        default=False,
        description="Whether files that agents name by address are copied here before their task completes.",
    )
    allow: tuple[AllowedOrigin, ...] = Field(
        default=(),
        description="Origins that files are fetched from, written as `webhooks.allow`; none: every public https one.",
    )
    max_bytes: int = Field(
        default=16 * _MIB,
        ge=1_024,
        le=1_024 * _MIB,
        description="Of one file; the rest is cut off. An upload of an agent is refused beyond it.",
    )
    upload_bytes: int = Field(
        default=1_024 * _MIB,
        ge=1_024,
        description="Of all that one agent has uploaded within a day.",
    )
    artifact_bytes: int = Field(
        default=256 * _MIB,
        ge=1_024,
        description="Content of one artifact, in all of its pieces. Beyond it the agent is told to stop and the run "
        "fails as `artifact_too_large`; what came until then can be read. An agent may have its own.",
    )
    task_bytes: int = Field(
        default=1_024 * _MIB,
        ge=1_024,
        description="The same for all artifacts of a task together.",
    )
    events_per_s: int = Field(
        default=1_000,
        ge=1,
        description="Events of one run in a second; it may bring a second's worth at once. Beyond it the stream of the "
        "agent is read slower, so that the agent waits. An agent may have its own.",
    )
    bytes_per_s: int = Field(
        default=16 * _MIB,
        ge=1_024,
        description="The same for the content of its artifacts and messages.",
    )
    timeout: Duration = Field(
        default=parse_duration("1m"),
        json_schema_extra={"default": "1m"},
        description="For one file.",
    )
    keep: Duration | None = Field(
        default=None, description="How long copies are kept; absent: as long as everything else."
    )
    redact: tuple[RedactionRule, ...] = Field(
        default=(), max_length=32, description="Patterns that are taken out of what agents say."
    )


def read_output_terms(settings: OutputSettings) -> OutputTerms:
    """What the section says, for those who carry it out."""
    return OutputTerms(
        fetches=settings.fetch,
        allow=settings.allow,
        redactions=tuple((rule.name, rule.pattern) for rule in settings.redact),
        keep_ms=settings.keep.ms if settings.keep else None,
        max_bytes=settings.max_bytes,
        upload_bytes=settings.upload_bytes,
        timeout_s=settings.timeout.seconds,
    )
