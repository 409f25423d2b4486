"""The base of all sections of ``passerelle.yaml``, and the independent sections.

They are: memory of the process and the engine; signing keys; tracing; the store of ``redis_url``; the server's TLS;
webhooks; output of agents, with copied files and redaction; and acceptance conditions of tasks.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    HttpUrl,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)

from passerelle.a2a_mapping.acceptance import read_conditions
from passerelle.core.errors import InvalidInput
from passerelle.delegation.runs.outputs import OutputTerms
from passerelle.runtime.common.durations import Duration, parse_duration
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.memory.machine import (
    LEAST,
    choose_budget,
    choose_engine_limit,
    read_memory,
)
from passerelle.store.info import StoreDurability

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.wire.json import JsonObject

NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9_-]{0,62}$"
NAME_RULE: Final = "1 to 63 of a-z, 0-9, _ and -, with a letter or digit first"

Name: TypeAlias = Annotated[str, Field(pattern=NAME_PATTERN)]


def _check_url(text: str) -> str:
    url = TypeAdapter(HttpUrl).validate_python(text)
    if url.username or url.password:
        raise ValueError("must not contain credentials: name a variable in auth.bearer_env instead")
    return text.rstrip("/")


WebUrl: TypeAlias = Annotated[
    str, AfterValidator(_check_url), Field(json_schema_extra={"format": "uri"})
]


class Section(BaseModel):
    """A section of the file: immutable, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MemorySettings(Section):
    """A memory budget for data in transit: large request bodies, answers of agents, and converted Tasks."""

    budget_bytes: int | None = Field(
        default=None,
        ge=LEAST,
        description="For one process. Used by bodies over 1 MiB, answers and stream events of agents over 256 KiB, "
        "and large Tasks that are converted to another form; at most half of it by one caller or agent. When it is "
        "used up, callers get 429 or 503 with `Retry-After`, and answers of agents are read later. Absent: a quarter "
        "of the memory of the machine or control group, at most 1 GiB.",
    )

    engine_bytes: int | None = Field(
        default=None,
        ge=0,
        le=2**60,
        description="For the embedded engine, in addition to this process. From 80 % on `/readyz`, the log and a "
        "metric report it; from 90 % on new tasks are refused, with 503 and `Retry-After`, and existing ones "
        "continue. 0: no limit. Absent: half of the memory of the machine or control group, at least 256 MiB; a store "
        "that is already larger gets more, which the log reports at the start.",
    )

    def find_engine_limit(self) -> int:
        """Bytes of the embedded engine; 0: no limit."""
        if self.engine_bytes is not None:
            return self.engine_bytes
        return choose_engine_limit(read_memory())

    def find_budget(self) -> int:
        """The budget in bytes."""
        return self.budget_bytes or choose_budget(read_memory())


class SigningKeySettings(Section):
    """One private key; `passerelle signing-key FILE` makes one."""

    file: Path = Field(description="PEM file of a P-256 or Ed25519 key, mode 0600.")
    signs: bool = Field(
        default=True,
        description="`false`: the key is only published, so that its signatures can still be verified.",
    )


class SigningSettings(Section):
    """Signing keys and what they sign. The public keys are at `/.well-known/jwks.json`."""

    keys: tuple[SigningKeySettings, ...] = Field(
        default=(), description="Every key with `signs` makes a signature."
    )
    cards: bool = Field(
        default=True, description="Whether agent cards are signed if there is a key."
    )

    @property
    def signs_cards(self) -> bool:
        """Whether cards get signatures."""
        return self.cards and any(key.signs for key in self.keys)


class SpanSettings(Section):
    """Tracing with OpenTelemetry; needs the extra ``otel``."""

    otlp_endpoint: WebUrl | None = Field(
        default=None,
        description="Where spans are sent, as OTLP over HTTP: `http://collector:4318/v1/traces`. Absent: tracing is "
        "off. `OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_TRACES_SAMPLER` apply.",
    )


def _join(addresses: object) -> object:
    """Joins a list of addresses with commas, the form used elsewhere."""
    if not isinstance(addresses, list | tuple):
        return addresses
    listed = cast("Sequence[object]", addresses)
    return ",".join(map(str, listed)) if all(isinstance(one, str) for one in listed) else listed


StoreUrl: TypeAlias = Annotated[
    Secret,
    BeforeValidator(_join),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
            ]
        }
    ),
]


class StoreSection(Section):
    """What is expected of the store that ``redis_url`` names."""

    durability: StoreDurability = Field(
        default="aof",
        description="What preserves acknowledged writes: `aof`, an append-only file, which the start requires; "
        "`replicas`, the memory of at least one replica; `service`, a promise of its operator, which is not checked. "
        "[What each can lose](../operate/README.md#what-a-store-can-lose).",
    )
    wait: Duration = Field(
        default=parse_duration("60s"),
        json_schema_extra={"default": "60s"},
        description="How long the start waits for a server that does not answer, loads its data or has no primary; "
        "0s: it does not wait.",
    )


class TlsSettings(Section):
    """The gateway's certificate. With it all ports use TLS 1.2 or newer, and nothing else."""

    cert: Path = Field(description="The gateway's certificate, with its chain, as PEM.")
    key: Path | None = Field(default=None, description="Its key; absent: in the same file.")


ALLOW_PATTERN: Final = r"^https?://(\*|(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:([0-9]{1,5}|\*))?$"

AllowedOrigin: TypeAlias = Annotated[str, Field(pattern=ALLOW_PATTERN)]


class WebhookSettings(Section):
    """Where push notifications may be sent."""

    allow: tuple[AllowedOrigin, ...] = Field(
        default=(),
        description="Origins that may be called, such as `https://*.example.com` or `http://127.0.0.1:9000`; `*` "
        "matches a host, the first part of one, or a port. Empty: every public https address. An origin without a "
        "`*` in its host may be a private one.",
    )
    deliver_final: bool = Field(
        default=False,
        description="Whether a webhook set on an ended task gets the final task.",
    )
    sign: bool = Field(
        default=True,
        description="Whether deliveries are signed once `signing.keys` has a key.",
    )


_MIB = 1024 * 1024


class RedactionRule(Section):
    """Text that is removed from agents' output before it is stored."""

    name: Name = Field(description="Replaces the text, as `[redacted: name]`.")
    pattern: str = Field(min_length=1, max_length=1_000, description="A Python regular expression.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            compiled = re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"pattern: {error}") from None
        if compiled.match(""):
            raise ValueError("pattern: matches the empty string")
        return self


class OutputSettings(Section):
    """How the output of agents is handled."""

    fetch: bool = Field(
        default=False,
        description="Whether files that agents name by URL are copied into the store before their task completes.",
    )
    allow: tuple[AllowedOrigin, ...] = Field(
        default=(),
        description="Origins that files are fetched from, written as in `webhooks.allow`; empty: every public https "
        "origin.",
    )
    max_bytes: int = Field(
        default=16 * _MIB,
        ge=1_024,
        le=1_024 * _MIB,
        description="Size limit of one file; a fetched file is truncated, a larger upload is rejected.",
    )
    upload_bytes: int = Field(
        default=1_024 * _MIB,
        ge=1_024,
        description="Upload limit of one agent within a day.",
    )
    artifact_bytes: int = Field(
        default=256 * _MIB,
        ge=1_024,
        description="Content limit of one artifact, all chunks together. Over it the gateway cancels the task at the "
        "agent, and the run fails as `artifact_too_large`; the content received so far can be read. An agent may have "
        "its own.",
    )
    task_bytes: int = Field(
        default=1_024 * _MIB,
        ge=1_024,
        description="The same for all artifacts of a task together. A task never uses more memory than "
        "`memory.budget_bytes`.",
    )
    events_per_s: int = Field(
        default=1_000,
        ge=1,
        description="Events per second of one run, with a burst of one second. Over it the agent's stream is read more "
        "slowly, so that the agent waits. An agent may have its own.",
    )
    bytes_per_s: int = Field(
        default=16 * _MIB,
        ge=1_024,
        description="The same for the content of its artifacts and messages.",
    )
    chunk_delay: Duration = Field(
        default=parse_duration("50ms"),
        json_schema_extra={"default": "50ms"},
        description="How long an artifact chunk may wait to be stored together with the next ones, if chunks arrive in "
        "quick succession; `0s`: chunks do not wait. An agent may have its own.",
    )
    timeout: Duration = Field(
        default=parse_duration("1m"),
        json_schema_extra={"default": "1m"},
        description="Time limit for one file.",
    )
    keep: Duration | None = Field(
        default=None, description="How long copies are kept; absent: as long as everything else."
    )
    redact: tuple[RedactionRule, ...] = Field(
        default=(), max_length=32, description="Patterns that are removed from agents' text."
    )


def read_output_terms(settings: OutputSettings) -> OutputTerms:
    """The values of the section for the code that uses them."""
    return OutputTerms(
        fetches=settings.fetch,
        allow=settings.allow,
        redactions=tuple((rule.name, rule.pattern) for rule in settings.redact),
        keep_ms=settings.keep.ms if settings.keep else None,
        max_bytes=settings.max_bytes,
        upload_bytes=settings.upload_bytes,
        timeout_s=settings.timeout.seconds,
    )


class WantedArtifact(Section):
    """A required artifact; one artifact must match all members."""

    name: str | None = Field(default=None, min_length=1, description="Its name.")
    media_type: str | None = Field(
        default=None,
        min_length=1,
        serialization_alias="mediaType",
        description="Media type of one of its parts, such as `image/*`.",
    )
    count: int | None = Field(default=None, ge=1, description="How many such artifacts; absent: 1.")


class AcceptanceCondition(Section):
    """One condition for the completion of a task: an artifact, data that fits a schema, or an approval."""

    artifact: WantedArtifact | None = Field(
        default=None,
        description="A required artifact; with `schema`: the artifacts to search for data.",
    )
    schema_: dict[str, Any] | None = Field(
        default=None, alias="schema", description="JSON Schema that a data part must fit."
    )
    review: str | None = Field(
        default=None, description="Question to the owner of the task when the agent has finished."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            read_conditions([self.to_condition()], "condition")
        except InvalidInput as error:
            raise ValueError(error.reason) from None
        except TypeError as error:
            # A number beyond 64 bits, or a key that is no text.
            raise ValueError(f"is not JSON: {error}") from None
        return self

    def to_condition(self) -> JsonObject:
        """The condition in the form that a task records."""
        return self.model_dump(by_alias=True, exclude_none=True)
