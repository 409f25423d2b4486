"""Settings of who may call: keys, tokens of an identity provider, certificates that a proxy has checked, and grants."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.principal import Scope
from passerelle.gateway.forwarding import AddressHeader
from passerelle.gateway.settings_limits import LimitSettings, QuotaSettings
from passerelle.gateway.settings_section import Name, Section, WebUrl
from passerelle.runtime.common.durations import Duration, parse_duration

DEFAULT_SCOPES: Final = (Scope.CALL, Scope.READ_TASKS)
GRANT_PATTERN: Final = r"^(\*|[a-z0-9][a-z0-9_-]{0,62})$"

ServedName: TypeAlias = Annotated[str, Field(pattern=GRANT_PATTERN)]
Kind: TypeAlias = Literal["person", "service", "agent"]
SignatureAlgorithm: TypeAlias = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Never ``none``, and none with a shared secret: a public key taken for one would let everybody sign."""


class GrantSettings(Section):
    """An agent that may be called. The name alone stands for the agent with all operations."""

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
        """A name, or a mapping."""
        mapping = handler.resolve_ref_schema(handler(schema))
        name = cast("dict[str, Any]", {"type": "string", "pattern": GRANT_PATTERN})
        description = mapping.pop("description", "")
        return {"description": description, "anyOf": [name, mapping]}


class CallerSettings(Section):
    """What every kind of caller has."""

    may_call: tuple[GrantSettings, ...] = Field(
        description="Names of agents it may call, or `{agent: …, operations: […]}`; `*` for every one."
    )
    scopes: tuple[Scope, ...] = Field(default=DEFAULT_SCOPES, description="Its rights.")
    serves: tuple[ServedName, ...] = Field(
        default=(),
        description="Names of agents that it may be when it dials in, which takes the scopes `channels:connect` and "
        "`agents:serve`; `*` for every one. It decides nothing that these ask.",
    )
    kind: Kind = Field(default="service", description="Agents never decide approvals.")
    limits: LimitSettings = Field(default=LimitSettings())
    quotas: tuple[QuotaSettings, ...] = Field(
        default=(), description="What it may use up over periods; each of them binds."
    )


class ClientSettings(CallerSettings):
    """A program, or a person, that may call with an API key or a client certificate."""

    name: Name = Field(description="Its principal id.")
    key_hash: str | None = Field(
        default=None,
        pattern=r"^(sha256:)?[0-9a-f]{64}$",
        description="SHA-256 of the key in hex; `passerelle key NAME` makes both.",
    )
    certificate: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="Identity of its client certificate as the proxy writes it, such as CN=orchestrator "
        "or spiffe://example.com/orchestrator; wants `proxy`.",
    )


class ClaimSettings(Section):
    """Which claims of a token say what. Its scopes and agents narrow what the issuer may give, and never widen it."""

    principal: str = Field(default="sub", min_length=1, description="Who it is.")
    tenant: str | None = Field(
        default=None, min_length=1, description="The tenant; absent: the tenant of the issuer."
    )
    scopes: str | None = Field(
        default=None,
        min_length=1,
        description="Scopes, a list or words with spaces between; absent: all of the issuer's.",
    )
    agents: str | None = Field(
        default=None,
        min_length=1,
        description="Names of agents, in the same form; absent: all that the issuer may give.",
    )


class IssuerSettings(CallerSettings):
    """An identity provider whose signed tokens (JWT) are taken as bearers."""

    name: Name = Field(
        description="Principal ids are this name, a colon, and the token's principal."
    )
    issuer: str = Field(min_length=1, description="The `iss` of its tokens, to the letter.")
    audience: tuple[str, ...] = Field(
        min_length=1, description="Who we are to it: one of these must be in `aud`."
    )
    jwks_url: WebUrl | None = Field(
        default=None,
        description="Where its keys are; absent: what its OpenID configuration below `issuer` says.",
    )
    algorithms: tuple[SignatureAlgorithm, ...] = Field(
        default=("RS256", "PS256", "ES256", "EdDSA"), min_length=1
    )
    clock_skew: Duration = Field(
        default=parse_duration("30s"),
        json_schema_extra={"default": "30s"},
        description="How far its clock and ours may be apart.",
    )
    tenant: str = Field(default="default", min_length=1, description="Tenant of its callers.")
    claims: ClaimSettings = Field(default=ClaimSettings())


class ProxySettings(Section):
    """A proxy before us that ends TLS and checks client certificates."""

    addresses: tuple[IPv4Network | IPv6Network, ...] = Field(
        min_length=1,
        description="Where it connects from. From anywhere else the header is not believed.",
    )
    certificate_header: str = Field(
        default="X-Forwarded-Client-Cert",
        pattern=r"^[A-Za-z0-9-]{1,64}$",
        description="The header with the identity. Of X-Forwarded-Client-Cert the URI and the subject count, "
        "of any other one the whole text. The proxy must remove what callers send in it.",
    )
    address_header: AddressHeader | None = Field(
        default=None,
        description="Forwarded or X-Forwarded-For: the header to which the proxy adds the address of its client, for "
        "`connections.per_address`. Only if it does so with every request. None: its requests are not counted.",
    )
