"""The whole configuration as one model, and the checks between settings, which no single field can make.

Each section of ``passerelle.yaml`` has one frozen model. The sources of the values, and the texts of faults, are in
``gateway/settings/source.py``. The models know nothing about files. A setting is added once its feature exists.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, field_validator

from passerelle.channels.limits import ChannelLimits
from passerelle.core.agent_name import ROUTER, is_served
from passerelle.core.principal import EVERY_AGENT, AccessScope
from passerelle.gateway.settings.agents import AgentSettings
from passerelle.gateway.settings.approvals import ApprovalSettings
from passerelle.gateway.settings.callers import (
    CallerSettings,
    ClientSettings,
    ConnectionSettings,
    IssuerSettings,
    ProxySettings,
    RequestSettings,
)
from passerelle.gateway.settings.file import KeyPath
from passerelle.gateway.settings.policy import DeciderSettings, PolicySettings
from passerelle.gateway.settings.retention import RetentionSettings
from passerelle.gateway.settings.section import (
    MemorySettings,
    Name,
    OutputSettings,
    Section,
    SigningSettings,
    SpanSettings,
    StoreSection,
    StoreUrl,
    TlsSettings,
    WebhookSettings,
    WebUrl,
)
from passerelle.permission_bridge.approvers import ROLE_MARK
from passerelle.runtime.common.durations import Duration, parse_duration
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.observability.logs import LogFormat, LogLevel
from passerelle.store.engine_process import Durability

HEARTBEAT_SLACK_S: Final = 10.0
_LEAST_HEARTBEAT_MS: Final = 1_000

AuthMode: TypeAlias = Literal["keys", "open"]

BucketUrl: TypeAlias = Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]*[a-z0-9](/.*)?$")]
Port: TypeAlias = Annotated[int, Field(ge=0, le=65535)]


class ChannelSettings(Section):
    """Limits of WebSocket connections, the web origins that may open one, and an additional port."""

    port: Port | None = Field(
        default=None,
        description="An additional port for `/v1/channel` only, 0 for a free one; needs the extra `fast`. Channels "
        "are always available on `port`.",
    )
    origins: tuple[str, ...] = Field(
        default=(),
        description="Origins of web pages in addition to the gateway's own, with their scheme.",
    )
    inbound_bytes: int = Field(default=65_536, ge=1_024, le=16_777_216)
    subscriptions: int = Field(default=128, ge=1, le=10_000)
    replay_events: int = Field(default=1_000, ge=1, le=10_000)
    connections: int = Field(
        default=20_000,
        ge=1,
        le=1_000_000,
        description="WebSockets of channels, and the same number of event streams, on each instance; further ones get "
        "503 with `Retry-After`.",
    )
    device_connections: int = Field(
        default=8, ge=1, le=1_000, description="Of one device, on each instance: its tabs."
    )
    principal_connections: int = Field(
        default=64, ge=1, le=100_000, description="Of one caller, on each instance."
    )
    replays: int = Field(
        default=100, ge=1, le=10_000, description="Replays and snapshots at once, on each instance."
    )
    heartbeat: Duration = Field(
        default=parse_duration("25s"),
        json_schema_extra={"default": "25s"},
        description="Time between heartbeats; after 10 s more the connection is closed.",
    )

    @field_validator("heartbeat")
    @classmethod
    def _check_heartbeat(cls, heartbeat: Duration) -> Duration:
        if heartbeat.ms < _LEAST_HEARTBEAT_MS:
            raise ValueError("should be 1s or more: clients send a heartbeat in each of them")
        return heartbeat

    def limits(self) -> ChannelLimits:
        """The limits as the channel protocol uses them."""
        return ChannelLimits(
            inbound_bytes=self.inbound_bytes,
            subscriptions=self.subscriptions,
            replay_events=self.replay_events,
            connections=self.connections,
            device_connections=self.device_connections,
            principal_connections=self.principal_connections,
            replays=self.replays,
            heartbeat_s=self.heartbeat.seconds,
            idle_s=self.heartbeat.seconds + HEARTBEAT_SLACK_S,
        )


class CardSettings(Section):
    """The cards that the gateway serves."""

    interfaces: tuple[Literal["JSONRPC", "HTTP+JSON", "GRPC", "WEBSOCKET"], ...] | None = Field(
        default=None,
        min_length=1,
        description="Interfaces that cards list. Absent: those at the origin of the card, because some clients refuse "
        "a card with others. Further interfaces are in the params of the extension urn:passerelle:ext:interfaces:1, "
        "and on the card of readers that activate it.",
    )


class GrpcSettings(Section):
    """A2A over gRPC; needs the extra ``grpc``."""

    port: Port | None = Field(
        default=None, description="Port to listen on, 0 for a free one; absent: no gRPC."
    )
    address: str | None = Field(
        default=None,
        pattern=r"^[^\s/]+:[0-9]{1,5}$",
        description="host:port under which callers reach it, for agent cards; absent: host and port.",
    )
    default_agent: Name | None = Field(
        default=None,
        description="The agent for requests without a tenant; absent: the gateway's own.",
    )


class Settings(Section):
    """The whole configuration; immutable: a reload creates a new one."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: Port = Field(default=8080, description="Port to listen on; 0 takes a free one.")
    tls: TlsSettings | None = Field(
        default=None,
        description="The gateway's certificate. Absent: plain text, for loopback, or behind a proxy that terminates "
        "TLS.",
    )
    public_url: WebUrl | None = Field(
        default=None, description="Address by which callers reach the gateway; agent cards show it."
    )
    card_shape: Literal["merged", "v1"] | None = Field(
        default=None,
        description="Cards for readers that request no version: `merged` also has the members of 0.3, `v1` does not. "
        "Absent: `merged`, or `v1` if cards are signed.",
    )
    card: CardSettings = Field(default=CardSettings())
    card_links: Literal["keep", "drop"] = Field(
        default="keep",
        description="Links of an agent's card (documentation, icon, provider, extensions with its address): kept on "
        "the served card, or dropped so that nothing reveals the agent's address.",
    )
    redis_url: StoreUrl | None = Field(
        default=None,
        description="redis://, rediss:// or unix:// of a server or cluster, or redis+sentinel://host:26379/service; "
        "several of one kind as a list, or separated by commas. Absent: embedded engine.",
    )
    store: StoreSection = Field(default=StoreSection())
    replicated_acts: bool = Field(
        default=True,
        description="If the server has replicas, messages to agents and webhooks wait until one of them has the "
        "writes before them. False: after a failover such a message may be sent twice.",
    )
    replicated_acts_after: Duration | None = Field(
        default=parse_duration("30s"),
        json_schema_extra={"default": "30s"},
        description="How long messages to agents and webhooks wait at a server that was promoted in a failover and "
        "has no replica; null: until it has one. At a server whose promotion was not observed they always wait.",
    )
    data_dir: Path = Field(
        default=Path("~/.local/state/passerelle"),
        description="Folder of the embedded engine and of the owner token, mode 0700; "
        "by default $XDG_STATE_HOME/passerelle.",
    )
    blobs: BucketUrl | Path | None = Field(
        default=None,
        description="Where content over 16 KiB is stored: a folder that all instances over one server share, or "
        "`s3://bucket/prefix`, with the AWS_* variables of the environment; by default `blobs` in data_dir.",
    )
    secret_key: Secret | None = Field(
        default=None,
        description="32 bytes in base64 or hex that encrypt stored secrets. Several, separated by commas: the first "
        "one encrypts, all of them decrypt. Needed with redis_url; otherwise created in data_dir.",
    )
    secret_key_file: Path | None = Field(
        default=None, description="A file that holds `secret_key`, one key a line."
    )
    engine_path: Path | None = Field(
        default=None, description="The valkey-server or redis-server to embed; absent: found."
    )
    durability: Durability = Field(
        default="everysec", description="When the embedded engine syncs its log to disk."
    )
    auth: AuthMode = Field(
        default="keys", description="`open`: every caller is the owner; on loopback only."
    )
    log_level: LogLevel = "info"
    access_log: bool = Field(
        default=False,
        description="Logs a line for each request to an agent: caller, operation, result.",
    )
    log_format: LogFormat = Field(
        default="auto", description="`auto` is console on a terminal, else JSON."
    )
    agents: tuple[AgentSettings, ...] = ()
    clients: tuple[ClientSettings, ...] = ()
    issuers: tuple[IssuerSettings, ...] = Field(
        default=(), description="Identity providers whose tokens are accepted."
    )
    proxy: ProxySettings | None = Field(
        default=None, description="Absent: no header is trusted to identify a client certificate."
    )
    channels: ChannelSettings = Field(default=ChannelSettings())
    connections: ConnectionSettings = Field(default=ConnectionSettings())
    requests: RequestSettings = Field(default=RequestSettings())
    memory: MemorySettings = Field(default=MemorySettings())
    retention: RetentionSettings = Field(default=RetentionSettings())
    grpc: GrpcSettings = Field(default=GrpcSettings())
    spans: SpanSettings = Field(default=SpanSettings())
    signing: SigningSettings = Field(default=SigningSettings())
    policy: PolicySettings = Field(default=PolicySettings())
    approvals: ApprovalSettings = Field(default=ApprovalSettings())
    webhooks: WebhookSettings = Field(default=WebhookSettings())
    outputs: OutputSettings = Field(default=OutputSettings())

    @field_validator("blobs")
    @classmethod
    def _check_blobs(cls, blobs: str | Path | None) -> str | Path | None:
        if isinstance(blobs, Path) and str(blobs).startswith("s3:"):
            raise ValueError("should read s3://bucket or s3://bucket/prefix")
        return blobs

    @property
    def blob_place(self) -> str | Path:
        """Where content over 16 KiB is stored: a folder, or the address of a bucket."""
        return self.blobs or self.data_dir / "blobs"


OWNER = "owner"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``. A name other than localhost may be any address."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def find_contradictions(
    settings: Settings, environ: Mapping[str, str]
) -> Iterator[tuple[KeyPath, str]]:
    """Path and reason of every setting that conflicts with another one or with the environment."""
    if settings.auth == "open" and not is_loopback(settings.host):
        yield ("auth",), f"open is for loopback addresses only, and host is {settings.host}"
    if settings.redis_url and not settings.redis_url.get_secret_value().startswith(
        ("redis://", "rediss://", "unix://")
    ):
        yield ("redis_url",), "must begin with redis://, rediss:// or unix://"
    if settings.secret_key and settings.secret_key_file:
        yield ("secret_key_file",), "is given together with secret_key; give one of them"
    yield from _find_signing_faults(settings)
    if (reason := settings.retention.find_fault()) is not None:
        yield ("retention", "forget"), reason
    yield from _find_repeats(("agents",), (agent.name for agent in settings.agents))
    yield from _find_repeats(("policy", "rules"), (rule.name for rule in settings.policy.rules))
    yield from _find_repeats(("clients",), (client.name for client in settings.clients))
    yield from _find_agent_faults(settings, environ)
    yield from _find_client_faults(settings)
    names = {one.name for one in settings.agents}
    if (name := settings.grpc.default_agent) and not is_served(name, names):
        yield ("grpc", "default_agent"), f"there is no agent {name!r}"
    yield from _find_issuer_faults(settings)
    yield from _find_unknown_approvers(settings)


def _find_agent_faults(
    settings: Settings, environ: Mapping[str, str]
) -> Iterator[tuple[KeyPath, str]]:
    for index, agent in enumerate(settings.agents):
        if agent.name == ROUTER:
            yield ("agents", index, "name"), f"{ROUTER} is the gateway's own agent"
        for path, reason in agent.auth.find_faults(environ) if agent.auth else ():
            yield ("agents", index, "auth", *path), reason
        if agent.timeout.idle > agent.timeout.total:
            yield ("agents", index, "timeout", "idle"), "is longer than timeout.total"
        for setting, fault in settings.retention.find_faults(agent.forget, agent.memory):
            yield ("agents", index, setting), fault
        yield from _find_retry_faults(settings, index, agent)


def find_notices(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """What cannot be checked: principals of an identity provider are only known once they sign in."""
    prefixes = tuple(f"{issuer.name}:" for issuer in settings.issuers)
    for path, name in _list_approvers(settings):
        if prefixes and name.startswith(prefixes):
            yield path, f"{name!r} is not checked: only the identity provider knows its principals"


def _find_unknown_approvers(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    known = {OWNER, *(client.name for client in settings.clients)}
    prefixes = tuple(f"{issuer.name}:" for issuer in settings.issuers)
    for path, name in _list_approvers(settings):
        if name not in known and not (prefixes and name.startswith(prefixes)):
            yield (
                path,
                f"no principal is named {name!r}: give a client, {OWNER}, <issuer>:<subject>, or @ and a role",
            )


def _list_approvers(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Yields every principal that a section names as an approver."""
    policy = settings.policy
    for role, people in policy.roles.items():
        yield from _list_names(("policy", "roles", role), people)
    for index, tier in enumerate(policy.approvers):
        yield from _list_deciders(("policy", "approvers", index), tier)
    for index, rule in enumerate(policy.rules):
        if rule.approvers is not None:
            yield from _list_deciders(("policy", "rules", index, "approvers"), rule.approvers)
    for owner, section in policy.owners.items():
        for index, rule in enumerate(section.rules):
            if rule.approvers is not None:
                place: KeyPath = ("policy", "owners", owner, "rules", index, "approvers")
                yield from _list_deciders(place, rule.approvers)


def _list_deciders(place: KeyPath, deciders: DeciderSettings) -> Iterator[tuple[KeyPath, str]]:
    yield from _list_names((*place, "who"), deciders.who)
    for index, step in enumerate(deciders.escalate):
        yield from _list_names((*place, "escalate", index, "to"), step.to)


def _list_names(place: KeyPath, names: Iterable[str]) -> Iterator[tuple[KeyPath, str]]:
    for index, name in enumerate(names):
        if not name.startswith(ROLE_MARK):
            yield (*place, index), name


def _find_retry_faults(
    settings: Settings, index: int, agent: AgentSettings
) -> Iterator[tuple[KeyPath, str]]:
    if agent.retry.initial > agent.retry.max:
        yield ("agents", index, "retry", "initial"), "is longer than retry.max"
    known = {one.name for one in settings.agents}
    for name in agent.fallback:
        if name == agent.name:
            yield ("agents", index, "fallback"), "names the agent itself"
        elif name not in known:
            yield ("agents", index, "fallback"), f"there is no agent {name!r}"
    if len(set(agent.fallback)) < len(agent.fallback):
        yield ("agents", index, "fallback"), "names an agent twice"


def _find_signing_faults(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    signing = settings.signing
    if signing.keys and not any(key.signs for key in signing.keys):
        yield ("signing", "keys"), "at least one key has to sign"
    if signing.signs_cards and settings.public_url is None:
        # Without it the caller's Host header would be on a signed card.
        yield ("public_url",), "is required if cards are signed"
    if signing.signs_cards and settings.card_shape == "merged":
        yield ("card_shape",), "merged cannot be signed: strict readers would find no signature"


def _find_client_faults(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    seen: dict[str, str] = {}
    for index, client in enumerate(settings.clients):
        place: KeyPath = ("clients", index)
        if client.name == OWNER:
            yield (*place, "name"), f"{OWNER} is the holder of the owner token"
        if client.key_hash is None and client.certificate is None:
            yield (
                place,
                "has neither key_hash nor certificate, so no caller could authenticate as it",
            )
        if client.certificate is not None and settings.proxy is None:
            yield (
                (*place, "certificate"),
                "requires `proxy`, which names the proxy whose header is trusted",
            )
        for key in ("key_hash", "old_key_hash", "certificate"):
            value = getattr(client, key)
            known = str(value).removeprefix("sha256:")
            if value is not None and seen.setdefault(known, client.name) != client.name:
                yield (*place, key), f"is also that of {seen[known]}"
        yield from _find_rotation_faults(place, client)
        yield from _find_grant_faults(settings, place, client)


def _find_rotation_faults(place: KeyPath, client: ClientSettings) -> Iterator[tuple[KeyPath, str]]:
    if client.key_until is not None and client.key_hash is None:
        yield (*place, "key_until"), "requires key_hash"
    if client.old_key_until is not None and client.old_key_hash is None:
        yield (*place, "old_key_until"), "requires old_key_hash"
    if client.old_key_hash is None:
        return
    if client.key_hash is None:
        yield (*place, "old_key_hash"), "requires key_hash, the key that replaces it"
    elif client.old_key_hash.removeprefix("sha256:") == client.key_hash.removeprefix("sha256:"):
        yield (*place, "old_key_hash"), "equals key_hash; make a new key with `passerelle key NAME`"
    if client.old_key_until is None:
        yield (*place, "old_key_until"), "is required with old_key_hash: a replaced key must expire"


def _find_issuer_faults(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    yield from _find_repeats(("issuers",), (issuer.name for issuer in settings.issuers))
    for index, issuer in enumerate(settings.issuers):
        place: KeyPath = ("issuers", index)
        if issuer.jwks_url is None and not issuer.issuer.startswith(("https://", "http://")):
            yield (
                (*place, "jwks_url"),
                "is required: issuer is not a URL at which keys could be found",
            )
        yield from _find_grant_faults(settings, place, issuer)


def _find_grant_faults(
    settings: Settings, place: KeyPath, caller: CallerSettings
) -> Iterator[tuple[KeyPath, str]]:
    agents = {agent.name for agent in settings.agents} | {EVERY_AGENT, ROUTER}
    seen: set[str] = set()
    for position, grant in enumerate(caller.may_call):
        if grant.agent not in agents:
            yield (*place, "may_call", position), f"there is no agent {grant.agent!r}"
        if grant.agent in seen:
            yield (*place, "may_call", position), f"{grant.agent!r} is a duplicate name"
        seen.add(grant.agent)
    yield from _find_serving_faults(settings, place, caller)
    if caller.kind == "agent":
        for scope in (
            AccessScope.DECIDE,
            AccessScope.DECIDE_HIGH,
            AccessScope.GRANT,
            AccessScope.HOST,
            AccessScope.WRITE_POLICY,
            AccessScope.OVERSEE_TASKS,
            AccessScope.OPERATE_TASKS,
            AccessScope.OVERSEE_APPROVALS,
        ):
            if scope in caller.scopes:
                yield (*place, "scopes"), f"an agent cannot have {scope}"


def _find_serving_faults(
    settings: Settings, place: KeyPath, caller: CallerSettings
) -> Iterator[tuple[KeyPath, str]]:
    dial_in = {agent.name for agent in settings.agents if agent.dials_in} | {EVERY_AGENT}
    for position, name in enumerate(caller.serves):
        if name not in dial_in:
            yield (*place, "serves", position), f"there is no agent {name!r} with transport channel"
    lacking = [
        scope for scope in (AccessScope.CONNECT, AccessScope.SERVE) if scope not in caller.scopes
    ]
    if caller.serves and lacking:
        yield (*place, "scopes"), f"a caller that serves agents also needs {' and '.join(lacking)}"


def _find_repeats(section: KeyPath, names: Iterable[str]) -> Iterator[tuple[KeyPath, str]]:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield (*section, index, "name"), f"{name!r} is a duplicate name"
        seen.add(name)
