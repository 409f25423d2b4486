"""Settings of agents: address, credentials, timeouts, retries and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from passerelle.a2a_mapping.acceptance import MOST_CONDITIONS
from passerelle.core.agent_name import name_tenant
from passerelle.core.task.retry import RETRIED, Retryable
from passerelle.core.wire.display import explain_error
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings.callers import LimitSettings, PriceSettings
from passerelle.gateway.settings.retention import Ages, Stay
from passerelle.gateway.settings.section import AcceptanceCondition, Name, Section, WebUrl
from passerelle.peers.interface import PREFERENCE, Choice, Security
from passerelle.peers.signatures import (
    DEFAULT_ALGORITHMS,
    CardAlgorithm,
    SignaturePolicy,
)
from passerelle.runtime.common.durations import Duration, parse_duration
from passerelle.runtime.common.secret import Secret

Tenant: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._~-]{0,62}$")]
_RESERVED: Final = frozenset({"tasks", "v1", "ws", "extendedAgentCard"})
"""Names that a tenant cannot have, since they have another meaning in its path."""
_HTTP_ONLY: Final = frozenset(
    {"url", "tenants", "card_path", "auth", "tls", "interfaces", "allowed_origins", "grpc"}
)
_DIAL_IN_CONNECT_S: Final = 60.0
Variable: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
FieldFault: TypeAlias = tuple[tuple[str, ...], str]


def read_secret(variable: str | None, file: Path | None, environ: Mapping[str, str]) -> Secret:
    """The secret of a variable, else of a file, without surrounding white space.

    Raises:
        LookupError: there is none; the text states why.
    """
    if variable is not None:
        value = environ.get(variable, "").strip()
        if not value:
            raise LookupError(f"the environment variable {variable} is not set")
        return Secret(value)
    if file is None:
        raise LookupError("names no variable and no file")
    try:
        value = file.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise LookupError(f"{file} cannot be read: {explain_error(error)}") from None
    if not value:
        raise LookupError(f"{file} is empty")
    return Secret(value)


class SecretSection(Section):
    """A secret in a variable or in a file, never in the configuration itself."""

    env: Variable | None = Field(default=None, description="Environment variable that holds it.")
    file: Path | None = Field(default=None, description="File that holds it.")

    @model_validator(mode="after")
    def _name_one(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError("names either env or file")
        return self

    def read(self, environ: Mapping[str, str]) -> Secret:
        """Reads the secret.

        Raises:
            LookupError: there is none.
        """
        return read_secret(self.env, self.file, environ)


class ApiKeyAuth(SecretSection):
    """An API key, and its place in requests."""

    place: Literal["header", "query", "cookie"] = Field(
        default="header", description="Its place in requests."
    )
    name: str = Field(
        default="X-API-Key",
        pattern=r"^[A-Za-z0-9_.~-]{1,100}$",
        description="Its name there.",
    )


class BasicAuth(SecretSection):
    """HTTP basic authentication; the secret is the password."""

    user: str = Field(pattern=r"^[^:\x00-\x1f\x7f]{1,200}$", description="User name.")


class OAuth2Auth(SecretSection):
    """OAuth2 client credentials; the secret is the client's."""

    token_url: WebUrl = Field(description="Address of the token endpoint.")
    client_id: str = Field(min_length=1, description="The gateway's client id there.")
    scopes: tuple[str, ...] = Field(default=(), description="Requested scopes.")
    audience: str | None = Field(
        default=None, description="Requested audience, if the server needs it."
    )


class AgentAuth(Section):
    """How the gateway authenticates at an agent: one method, with a secret in a variable or a file."""

    bearer_env: Variable | None = Field(
        default=None, description="Environment variable that holds the bearer token."
    )
    bearer_file: Path | None = Field(default=None, description="File that holds the bearer token.")
    api_key: ApiKeyAuth | None = Field(default=None, description="An API key.")
    basic: BasicAuth | None = Field(default=None, description="User and password.")
    oauth2: OAuth2Auth | None = Field(default=None, description="OAuth2 client credentials.")

    @model_validator(mode="after")
    def _name_one(self) -> Self:
        ways = [way for way, value in self if value is not None]
        if len(ways) != 1:
            raise ValueError("names exactly one of " + ", ".join(type(self).model_fields))
        return self

    def find_faults(self, environ: Mapping[str, str]) -> Iterator[FieldFault]:
        """Path and reason of each missing secret."""
        for way in ("api_key", "basic", "oauth2"):
            section: SecretSection | None = getattr(self, way)
            if section is not None:
                key = "env" if section.env else "file"
                yield from _find_fault((way, key), section.env, section.file, environ)
        if self.bearer_env or self.bearer_file:
            key = "bearer_env" if self.bearer_env else "bearer_file"
            yield from _find_fault((key,), self.bearer_env, self.bearer_file, environ)


def _find_fault(
    path: tuple[str, ...], variable: str | None, file: Path | None, environ: Mapping[str, str]
) -> Iterator[FieldFault]:
    try:
        read_secret(variable, file, environ)
    except LookupError as error:
        yield path, str(error)


class AgentTls(Section):
    """Trusted authorities for an `https` agent, and the client certificate."""

    ca: Path | None = Field(
        default=None, description="Authorities to trust instead of the system's, as PEM."
    )
    cert: Path | None = Field(
        default=None, description="The client certificate for mutual TLS, with its chain, as PEM."
    )
    key: Path | None = Field(default=None, description="Its key; absent: in the same file.")

    @model_validator(mode="after")
    def _need_cert(self) -> Self:
        if self.key is not None and self.cert is None:
            raise ValueError("has a key without its cert")
        return self


class CardSignature(Section):
    """Whether the card of an agent has to be signed, and by whom."""

    policy: SignaturePolicy = Field(
        default="warn",
        description="`require` rejects a card without a valid signature, `warn` logs it.",
    )
    keys: tuple[Path, ...] = Field(
        default=(),
        description="Files with a public key as JWK, or a JWK set: pinned, each by its kid.",
    )
    jku_origins: tuple[WebUrl, ...] = Field(
        default=(),
        description="Origins whose key sets are trusted, over https (http on this machine alone).",
    )
    algorithms: tuple[CardAlgorithm, ...] = Field(default=DEFAULT_ALGORITHMS, min_length=1)
    revoked: tuple[str, ...] = Field(default=(), description="Ids of revoked keys.")

    @model_validator(mode="after")
    def _need_keys(self) -> Self:
        if self.policy != "off" and not (self.keys or self.jku_origins):
            raise ValueError("names no key: give keys, or jku_origins")
        for origin in self.jku_origins:
            url = urlsplit(origin)
            if url.scheme != "https" and url.hostname not in {"localhost", "127.0.0.1", "::1"}:
                raise ValueError(f"{origin} is not https")
        return self


class AgentBusy(Section):
    """What callers get if an agent is busy (429, 503 with Retry-After), or if its circuit breaker is open."""

    callers: Literal["task", "refuse"] = Field(
        default="task",
        description="`task`: a caller that waits gets the Task, which waits for the agent and can be cancelled; "
        "`refuse`: 429 (503 if the agent answered that) with Retry-After, and nothing is queued.",
    )
    told_after: Duration = Field(
        default=parse_duration("3s"),
        description="A shorter wait is not reported; the caller keeps waiting for the answer.",
    )
    give_up: Duration | None = Field(
        default=None,
        description="How long the gateway tries to deliver a message that the agent never accepted, until its task "
        "fails. Absent: `timeout.total`.",
    )


class AgentTimeout(Section):
    """Time limits of an agent."""

    connect: Duration = Field(
        default=parse_duration("5s"),
        json_schema_extra={"default": "5s"},
        description="Time to connect. For an agent that dials in: how long a message waits until it is connected "
        "(default 1m).",
    )
    query: Duration = Field(
        default=parse_duration("30s"),
        json_schema_extra={"default": "30s"},
        description="Time to read the card or a task.",
    )
    total: Duration = Field(
        default=parse_duration("30m"),
        json_schema_extra={"default": "30m"},
        description="Longest duration of an attempt.",
    )
    idle: Duration = Field(
        default=parse_duration("2m"),
        json_schema_extra={"default": "2m"},
        description="Longest silence in a stream before the gateway polls the agent.",
    )
    arrival: Duration = Field(
        default=parse_duration("35s"),
        json_schema_extra={"default": "35s"},
        description="How long a message of unknown outcome may still arrive. Only after this time does a list of "
        "tasks without it prove that it was lost, and is an answer sent again to a task that still waits for it. Must "
        "be longer than the agent needs to list a new task.",
    )
    liveness: Duration = Field(
        default=parse_duration("2m"),
        json_schema_extra={"default": "2m"},
        description="How long an agent may be unreachable until its attempts are `lost`, and after that until they "
        "have failed.",
    )
    stalled: Duration = Field(
        default=parse_duration("15s"),
        json_schema_extra={"default": "15s"},
        description="How long a task may make no progress after its connection broke, or its agent answered and "
        "left it working. Then its callers get the task as it is, with the reason; the attempt is followed until "
        "`total`, or `inactivity` if that is set.",
    )
    inactivity: Duration | None = Field(
        default=None,
        description="Longest time without progress, even if the agent still answers polls; then the task has "
        "`timed_out`. Absent: only `total` ends it.",
    )


class AgentRetry(Section):
    """What happens after a failed attempt."""

    attempts: int = Field(default=1, ge=1, le=10, description="Attempts at the agent in all.")
    backoff: Literal["exponential", "fixed"] = Field(
        default="exponential", description="`exponential` doubles the pause after each failure."
    )
    initial: Duration = Field(
        default=parse_duration("1s"),
        json_schema_extra={"default": "1s"},
        description="The first pause.",
    )
    max: Duration = Field(
        default=parse_duration("30s"),
        json_schema_extra={"default": "30s"},
        description="The longest pause, unless the agent itself asks for a longer one.",
    )
    jitter: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="The random share of a pause: 0 none, 1 all of it.",
    )
    retry_on: tuple[Retryable, ...] = Field(
        default=RETRIED,
        description="Which failures are retried: the agent was `unreachable`, `busy`, `failed` the task, was "
        "`malformed` (its answer is not A2A), `lost` the task, or `timed_out`.",
    )
    never_on: tuple[Retryable, ...] = Field(
        default=(), description="Failures that are not retried, even if `retry_on` has them."
    )
    idempotent: bool = Field(
        default=False,
        description="Whether the agent may get the same work twice. If not, nothing is sent again automatically after "
        "a task was lost or has timed out.",
    )


class AgentStreams(Section):
    """Streams of callers of an agent."""

    await_approval: bool = Field(
        default=False,
        description="Whether the stream of a message stays open while the task waits for an approval (AUTH_REQUIRED). "
        "If not, it ends there as the agent's own does, and SubscribeToTask continues. The parameter of a caller "
        "takes precedence.",
    )


class AgentSettings(Section):
    """An agent that the gateway serves at ``/agents/<name>``."""

    name: Name = Field(description="Served at /agents/<name>.")
    url: WebUrl | None = Field(
        default=None, description="Where its agent card is. Absent for one that dials in."
    )
    transport: Literal["http", "channel"] = Field(
        default="http",
        description="`http` is called at `url`; `channel` dials in over `/v1/channel` and sends its card, with a "
        "credential whose `serves` has the name.",
    )
    pool: bool = Field(
        default=False,
        description="Whether several processes may dial in under this name at once. They have to share their tasks, "
        "like replicas behind a load balancer. Otherwise the newest one replaces the others.",
    )
    tenants: tuple[Tenant, ...] = Field(
        default=(),
        description="Tenants of it, each served at /agents/<name>/<tenant> and by the `tenant` of requests. "
        "Calls go to the interfaces that its card lists for the tenant, if any.",
    )
    card_path: str = Field(
        default="/.well-known/agent-card.json",
        pattern=r"^/[^\s?#]*$",
        description="Path of the card below the URL.",
    )
    auth: AgentAuth | None = Field(
        default=None, description="Absent: requests have no credentials."
    )
    artifact_bytes: int | None = Field(
        default=None, ge=1_024, description="Its own `outputs.artifact_bytes`."
    )
    task_bytes: int | None = Field(
        default=None, ge=1_024, description="Its own `outputs.task_bytes`."
    )
    events_per_s: int | None = Field(
        default=None, ge=1, description="Its own `outputs.events_per_s`."
    )
    bytes_per_s: int | None = Field(
        default=None, ge=1_024, description="Its own `outputs.bytes_per_s`."
    )
    chunk_delay: Duration | None = Field(default=None, description="Its own `outputs.chunk_delay`.")
    forward_auth: bool = Field(
        default=False,
        description="Forwards the caller's Authorization header to the agent.",
    )
    tls: AgentTls | None = Field(default=None, description="Trusted authorities, and mutual TLS.")
    interfaces: tuple[Choice, ...] = Field(
        default=PREFERENCE,
        min_length=1,
        description="Kinds of interfaces that may be used, the preferred one first.",
    )
    allowed_origins: tuple[WebUrl, ...] = Field(
        default=(),
        description="Further origins that calls may go to, in addition to the card's own.",
    )
    grpc: Security | None = Field(
        default=None,
        description="How to connect to gRPC of this agent if its card has `host:port` without a scheme, on any port "
        "of the card's host: `plaintext`, as the samples of the SDKs do, or `tls`. Absent: such an address is used "
        "only if allowed_origins has it, as `http://host:port` or `https://host:port`.",
    )
    card_signature: CardSignature | None = Field(
        default=None, description="Absent: signatures on its card are not checked."
    )
    timeout: AgentTimeout = Field(default=AgentTimeout())
    retry: AgentRetry = Field(default=AgentRetry())
    fallback: tuple[Name, ...] = Field(
        default=(),
        description="Agents that take over, in this order: at once if this one is unreachable or rejects the task, "
        "otherwise when its attempts are used up. Callers need no grant for them.",
    )
    streams: AgentStreams = Field(default=AgentStreams())
    limits: LimitSettings = Field(
        default=LimitSettings(),
        description="Limits of messages to it. Reads of tasks do not count; an instance has at most `concurrency` of "
        "them open at once, 64 without it.",
    )
    busy: AgentBusy = Field(default=AgentBusy())
    price: PriceSettings | None = Field(
        default=None, description="What its calls cost; if unset, cost is not tracked."
    )
    answers: Literal["auto", "always_task"] = Field(
        default="auto",
        description="`auto` returns what the agent answers, a Message or a Task; `always_task` creates a Task before "
        "the agent is called, and completes it if the agent answers with a Message.",
    )
    correlation: bool = Field(
        default=False,
        description="Adds a correlation key to the metadata of each first message. If it is unknown whether the "
        "message arrived, the gateway finds the agent's task by it.",
    )
    acceptance: tuple[AcceptanceCondition, ...] = Field(
        default=(),
        max_length=MOST_CONDITIONS,
        description="Conditions for the completion of its tasks.",
    )
    forget: Ages | None = Field(
        default=None,
        description="Replaces `retention.forget` for this agent: `never`, a duration, or durations by outcome.",
    )
    memory: Stay | None = Field(
        default=None,
        description="Replaces `retention.memory` for this agent: a duration, or `never`.",
    )
    tags: tuple[str, ...] = Field(
        default=(), description="Free tags, for rules and for the choice of an agent."
    )

    @field_validator("tenants")
    @classmethod
    def _check_tenants(cls, tenants: tuple[str, ...]) -> tuple[str, ...]:
        if taken := sorted(_RESERVED.intersection(tenants)):
            raise ValueError(f"{taken[0]} has another meaning in a path")
        if len(set(tenants)) < len(tenants):
            raise ValueError("names a tenant twice")
        return tenants

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        if not self.dials_in:
            if self.url is None:
                raise ValueError("names no url: give one, or transport: channel")
            if self.pool:
                raise ValueError("pool is for agents with transport: channel")
            return self
        given = sorted(self.model_fields_set & _HTTP_ONLY)
        if given:
            raise ValueError(f"{given[0]} does not apply to an agent that dials in")
        return self

    @property
    def dials_in(self) -> bool:
        """Whether the agent connects to the gateway."""
        return self.transport == "channel"

    @property
    def connect_s(self) -> float:
        """How long to wait for a connection to it."""
        if self.dials_in and "connect" not in self.timeout.model_fields_set:
            return _DIAL_IN_CONNECT_S
        return self.timeout.connect.seconds

    @property
    def served_names(self) -> tuple[str, ...]:
        """Its name, and those of its tenants."""
        return (self.name, *(name_tenant(self.name, tenant) for tenant in self.tenants))

    @property
    def conditions(self) -> tuple[JsonObject, ...]:
        """The acceptance conditions in the form that a task records."""
        return tuple(condition.to_condition() for condition in self.acceptance)
