"""Settings of callers: credentials, grants, limits, quotas and prices.

Callers authenticate with API keys, tokens of an identity provider, or certificates checked by a proxy. Limits are
concurrency and rate; quotas are messages or cost over a period.
"""

from __future__ import annotations

import re
from decimal import Decimal
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, cast

from pydantic import (
    AwareDatetime,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.message_bounds import MessageBounds
from passerelle.core.principal import AccessScope
from passerelle.gateway.proxies import AddressHeader
from passerelle.gateway.settings.section import Name, Section, WebUrl
from passerelle.runtime.common.durations import UNITS_MS, Duration, parse_duration
from passerelle.runtime.limits.account import PeriodName, Quota
from passerelle.runtime.limits.costs import Price
from passerelle.runtime.limits.limit import Bounds, Rate

MICROS: Final = 1_000_000
_RATE_PATTERN: Final = r"^[1-9]\d{0,8}/(s|m|h|d)$"
_RATE: Final = re.compile(r"([1-9]\d{0,8})/(s|m|h|d)", re.ASCII)


def parse_rate(value: object) -> Rate:
    """Parses ``100/s``; the units are s, m, h and d.

    Raises:
        ValueError: it has another form.
    """
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, Rate):
        return value
    if found is None:
        raise ValueError("is a number and a unit of time, such as 100/s, 600/m or 5000/h")
    return Rate(int(found[1]), UNITS_MS[found[2]])


RateText: TypeAlias = Annotated[
    Rate,
    BeforeValidator(parse_rate),
    WithJsonSchema({"type": "string", "pattern": _RATE_PATTERN}),
]
Money: TypeAlias = Annotated[Decimal, Field(gt=0, le=1_000_000_000, decimal_places=6)]
Amount: TypeAlias = Annotated[Decimal, Field(ge=0, le=1_000_000, decimal_places=6)]


class LimitSettings(Section):
    """Cluster-wide limits."""

    concurrency: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Calls in progress; absent: no limit."
    )
    rate: RateText | None = Field(
        default=None, description="Requests in a period, such as 100/s; absent: no limit."
    )

    def bounds(self) -> Bounds:
        """The limits as the limiter uses them."""
        return Bounds(self.concurrency, self.rate)


class ConnectionSettings(Section):
    """Open connections. Over the limit, unauthenticated ones are closed first."""

    most: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Connections of callers, on each instance. Absent: the limit of open files, without a quarter of "
        "it (64 to 4096) for agents, engine and files. With gRPC, a quarter of them is for gRPC.",
    )
    per_address: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Connections of one address over HTTP, and the same number over gRPC; absent: half of either. "
        "Connections from this machine and from `proxy.addresses` are not counted; with `proxy.address_header` the "
        "requests and sockets of each client of the proxy are.",
    )


class RequestSettings(Section):
    """How large a request may be. The JSON of each may be nested 64 levels, its head 64 KiB."""

    body_bytes: int = Field(
        default=25_165_824,
        ge=1_024,
        le=67_108_864,
        description="The body of a request over HTTP, a frame of A2A over WebSocket, a message over gRPC. Bodies over "
        "1 MiB use `memory.budget_bytes` until they are answered.",
    )
    parts: int = Field(default=1_000, ge=1, le=100_000, description="Parts of one message.")
    part_bytes: int = Field(
        default=16_777_216, ge=1, le=67_108_864, description="Text or base64 of one part."
    )

    streams: int = Field(
        default=64,
        ge=1,
        le=100_000,
        description="Open streams of one caller on each instance: streamed messages, subscriptions, event streams of "
        "`/v1`. One more gets 429 with `Retry-After`. Channels have a separate limit.",
    )

    def bounds(self) -> MessageBounds:
        """The limits of messages."""
        return MessageBounds(self.parts, self.part_bytes)


class QuotaSettings(Section):
    """A limit over a period (UTC): messages to agents, or their cost. One of the two."""

    calls: int | None = Field(
        default=None, ge=0, le=10**12, description="Messages to agents in a period."
    )
    cost: Money | None = Field(default=None, description="Their cost, by the prices of the agents.")
    currency: str = Field(
        default="EUR",
        pattern=r"^[A-Z]{3}$",
        description="Currency of `cost`; only agents with a price in it count.",
    )
    per: PeriodName = Field(default="day", description="The period.")
    warn_percent: int = Field(
        default=80, ge=1, le=100, description="Use at which `quota.low` is recorded."
    )
    over: Literal["refuse", "wait"] = Field(
        default="refuse",
        description="What happens to a message over the quota: 429, or a task that waits until the quota resets.",
    )

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.calls is None) == (self.cost is None):
            raise ValueError("has calls or cost, and not both")
        return self

    def quota(self) -> Quota:
        """The quota as it is counted."""
        waits = self.over == "wait"
        if self.cost is None:
            return Quota(self.calls or 0, self.per, self.warn_percent, waits=waits)
        limit = int(self.cost * MICROS)
        return Quota(limit, self.per, self.warn_percent, self.currency, waits)


class PriceSettings(Section):
    """What calls of an agent cost, by exactly one of call, time and tokens."""

    currency: str = Field(default="EUR", pattern=r"^[A-Z]{3}$", description="ISO 4217.")
    per_call: Amount | None = Field(default=None, description="For each attempt.")
    per_second: Amount | None = Field(default=None, description="For each second of an attempt.")
    per_million_input_tokens: Amount | None = Field(
        default=None, description="By the usage that the agent reports."
    )
    per_million_output_tokens: Amount | None = Field(
        default=None, description="The same, for output tokens."
    )
    expected_seconds: int = Field(
        default=10, ge=1, description="Duration of an attempt for the estimate."
    )
    expected_input_tokens: int = Field(
        default=1_000, ge=0, description="Tokens of an attempt for the estimate."
    )
    expected_output_tokens: int = Field(
        default=1_000, ge=0, description="Tokens of an attempt for the estimate."
    )

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        tokens = self.per_million_input_tokens is not None or (
            self.per_million_output_tokens is not None
        )
        if [self.per_call is not None, self.per_second is not None, tokens].count(True) != 1:
            raise ValueError("must be by call, by second or by tokens: exactly one of them")
        return self

    def price(self) -> Price:
        """The price as it is calculated."""
        if self.per_call is not None:
            return Price(self.currency, "per_call", int(self.per_call * MICROS))
        if self.per_second is not None:
            return Price(
                self.currency,
                "per_second",
                int(self.per_second * MICROS),
                expected_ms=self.expected_seconds * 1000,
            )
        return Price(
            self.currency,
            "per_token",
            int((self.per_million_input_tokens or 0) * MICROS),
            int((self.per_million_output_tokens or 0) * MICROS),
            expected_tokens=(self.expected_input_tokens, self.expected_output_tokens),
        )


DEFAULT_SCOPES: Final = (AccessScope.CALL, AccessScope.READ_TASKS)
GRANT_PATTERN: Final = r"^(\*|[a-z0-9][a-z0-9_-]{0,62})$"

ServedName: TypeAlias = Annotated[str, Field(pattern=GRANT_PATTERN)]
CallerKind: TypeAlias = Literal["person", "service", "agent"]
SignatureAlgorithm: TypeAlias = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Never ``none``, and no shared secrets: a public key used as one would let anyone sign."""


class GrantSettings(Section):
    """An agent that may be called. A bare name is the agent with all operations."""

    agent: str = Field(pattern=GRANT_PATTERN, description="Its name; `*` for every one.")
    operations: tuple[Method, ...] | None = Field(
        default=None, min_length=1, description="The only operations; absent: all of them."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_name(cls, value: object) -> object:
        return {"agent": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The schema: a name, or a mapping."""
        mapping = handler.resolve_ref_schema(handler(schema))
        name = cast("dict[str, Any]", {"type": "string", "pattern": GRANT_PATTERN})
        description = mapping.pop("description", "")
        return {"description": description, "anyOf": [name, mapping]}


class CallerSettings(Section):
    """Settings of every kind of caller."""

    may_call: tuple[GrantSettings, ...] = Field(
        description="Names of agents it may call, or `{agent: …, operations: […]}`; `*` for every one."
    )
    scopes: tuple[AccessScope, ...] = Field(default=DEFAULT_SCOPES, description="Its rights.")
    serves: tuple[ServedName, ...] = Field(
        default=(),
        description="Names under which it may dial in as an agent; needs the scopes `channels:connect` and "
        "`agents:serve`; `*` for all. It cannot decide approval requests of these agents.",
    )
    kind: CallerKind = Field(default="service", description="Agents never decide approvals.")
    limits: LimitSettings = Field(default=LimitSettings())
    quotas: tuple[QuotaSettings, ...] = Field(
        default=(), description="Quotas over periods; all of them apply."
    )


class ClientSettings(CallerSettings):
    """A program, or a person, that may call with an API key or a client certificate."""

    name: Name = Field(description="Its principal id.")
    key_hash: str | None = Field(
        default=None,
        pattern=r"^(sha256:)?[0-9a-f]{64}$",
        description="SHA-256 of the key in hex; `passerelle key NAME` makes both.",
    )
    key_until: AwareDatetime | None = Field(
        default=None,
        description="Expiry of the key, such as 2027-01-31T00:00:00Z; absent: none.",
    )
    old_key_hash: str | None = Field(
        default=None,
        pattern=r"^(sha256:)?[0-9a-f]{64}$",
        description="SHA-256 of the previous key, which is accepted as well until `old_key_until`.",
    )
    old_key_until: AwareDatetime | None = Field(
        default=None, description="Expiry of the previous key; required with `old_key_hash`."
    )
    certificate: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="Identity of its client certificate as the proxy writes it, such as CN=orchestrator or "
        "spiffe://example.com/orchestrator; requires `proxy`.",
    )


class ClaimSettings(Section):
    """The claims to read from a token. Its scopes and agents can narrow those of the issuer, never widen them."""

    principal: str = Field(default="sub", min_length=1, description="Claim with the principal.")
    tenant: str | None = Field(
        default=None,
        min_length=1,
        description="Claim with the tenant; absent: the tenant of the issuer.",
    )
    scopes: str | None = Field(
        default=None,
        min_length=1,
        description="Claim with scopes, as a list or separated by spaces; absent: all of the issuer's.",
    )
    agents: str | None = Field(
        default=None,
        min_length=1,
        description="Claim with names of agents, in the same form; absent: all of the issuer's.",
    )


class IssuerSettings(CallerSettings):
    """An identity provider whose signed tokens (JWT) are accepted as bearer tokens."""

    name: Name = Field(
        description="Principal ids are this name, a colon, and the token's principal."
    )
    issuer: str = Field(min_length=1, description="The exact `iss` of its tokens.")
    audience: tuple[str, ...] = Field(
        min_length=1, description="Accepted audiences: one of these must be in `aud`."
    )
    jwks_url: WebUrl | None = Field(
        default=None,
        description="Address of its keys; absent: from its OpenID configuration below `issuer`.",
    )
    algorithms: tuple[SignatureAlgorithm, ...] = Field(
        default=("RS256", "PS256", "ES256", "EdDSA"), min_length=1
    )
    clock_skew: Duration = Field(
        default=parse_duration("30s"),
        json_schema_extra={"default": "30s"},
        description="Tolerated difference between its clock and the gateway's.",
    )
    tenant: str = Field(default="default", min_length=1, description="Tenant of its callers.")
    claims: ClaimSettings = Field(default=ClaimSettings())


def _read_network(given: object) -> IPv4Network | IPv6Network:
    if isinstance(given, IPv4Network | IPv6Network):
        return given
    try:
        # A number would be the address with this value.
        return ip_network(given if isinstance(given, str) else "")
    except ValueError:
        raise ValueError("should be an IP address or network, such as 10.0.0.0/8") from None


ProxyNetwork: TypeAlias = Annotated[IPv4Network | IPv6Network, BeforeValidator(_read_network)]


class ProxySettings(Section):
    """A proxy in front of the gateway that terminates TLS and verifies client certificates."""

    addresses: tuple[ProxyNetwork, ...] = Field(
        min_length=1,
        description="Addresses of the proxy. On other connections the header is ignored.",
    )
    certificate_header: str = Field(
        default="X-Forwarded-Client-Cert",
        pattern=r"^[A-Za-z0-9-]{1,64}$",
        description="The header with the identity. In X-Forwarded-Client-Cert the URI and the subject are read, in "
        "any other header the whole text. The proxy must remove this header from requests of callers.",
    )
    address_header: AddressHeader | None = Field(
        default=None,
        description="The header to which the proxy adds the address of its client, for `connections.per_address`: "
        "Forwarded or X-Forwarded-For. Set it only if the proxy adds it to every request. Absent: requests through "
        "the proxy are not counted.",
    )
