"""What can be configured: one frozen model per section of ``passerelle.yaml``.

Where the values come from, and what is said about a wrong one, is in ``settings_source``. The models know
nothing of files. A setting exists once the thing that it sets is built.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, field_validator

from passerelle.channels.limits import Limits
from passerelle.gateway.settings_agents import AgentSettings
from passerelle.gateway.settings_approvals import ApprovalSettings
from passerelle.gateway.settings_callers import ClientSettings, IssuerSettings, ProxySettings
from passerelle.gateway.settings_limits import ConnectionSettings, RequestSettings
from passerelle.gateway.settings_memory import MemorySettings
from passerelle.gateway.settings_outputs import OutputSettings
from passerelle.gateway.settings_policy import PolicySettings
from passerelle.gateway.settings_section import Name, Section, WebUrl
from passerelle.gateway.settings_signing import SigningSettings
from passerelle.gateway.settings_spans import SpanSettings
from passerelle.gateway.settings_store import StoreSection, StoreUrl
from passerelle.gateway.settings_tls import TlsSettings
from passerelle.gateway.settings_webhooks import WebhookSettings
from passerelle.runtime.common.durations import Duration, parse_duration
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.observability.logs import LogFormat, LogLevel

HEARTBEAT_SLACK_S: Final = 10.0

Durability: TypeAlias = Literal["everysec", "always"]
AuthMode: TypeAlias = Literal["keys", "open"]

BucketUrl: TypeAlias = Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]*[a-z0-9](/.*)?$")]
Port: TypeAlias = Annotated[int, Field(ge=0, le=65535)]


class ChannelSettings(Section):
    """Limits of one WebSocket connection, who may open one, and a port for them alone."""

    port: Port | None = Field(
        default=None,
        description="A port that has `/v1/channel` alone, 0 for a free one; it takes the extra `fast`. "
        "Absent: channels are on `port`, where they are in any case.",
    )
    origins: tuple[str, ...] = Field(
        default=(), description="Origins of web pages beside the gateway's own, scheme included."
    )
    inbound_bytes: int = Field(default=65_536, ge=1_024, le=16_777_216)
    subscriptions: int = Field(default=128, ge=1, le=10_000)
    replay_events: int = Field(default=1_000, ge=1, le=10_000)
    connections: int = Field(
        default=20_000,
        ge=1,
        le=1_000_000,
        description="WebSockets of channels, and event streams beside them, on each instance; "
        "who comes then gets 503 with `Retry-After`.",
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
        description="Time between signs of life; 10 s more is given up on.",
    )

    def limits(self) -> Limits:
        """The limits as the channel protocol takes them."""
        return Limits(
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
        description="Interfaces that stand on cards. Absent: those at the origin of the card, since some clients "
        "refuse a card with any other. What is served beside them stands in the params of the extension "
        "urn:passerelle:ext:interfaces:1, and on the card of readers that activate it.",
    )


class GrpcSettings(Section):
    """A2A over gRPC; it takes the extra ``grpc``."""

    port: Port | None = Field(
        default=None, description="Port to listen on, 0 for a free one; absent: no gRPC."
    )
    address: str | None = Field(
        default=None,
        pattern=r"^[^\s/]+:[0-9]{1,5}$",
        description="host:port under which callers reach it, for agent cards; absent: host and port.",
    )
    default_agent: Name | None = Field(
        default=None, description="The agent of requests that name none as their tenant."
    )


class Settings(Section):
    """The whole of it; immutable, so that a reload builds another one."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: Port = Field(default=8080, description="Port to listen on; 0 takes a free one.")
    tls: TlsSettings | None = Field(
        default=None,
        description="Our certificate. None: plain text, for this machine, or for a proxy that ends TLS.",
    )
    public_url: WebUrl | None = Field(
        default=None, description="How callers reach the gateway; it stands on agent cards."
    )
    card_shape: Literal["merged", "v1"] | None = Field(
        default=None,
        description="Cards for readers that name no version: `merged` has the addresses of 0.3 too, `v1` is pure. "
        "Absent: `merged`, or `v1` where cards are signed.",
    )
    card: CardSettings = Field(default=CardSettings())
    card_links: Literal["keep", "drop"] = Field(
        default="keep",
        description="Documentation, icon and provider of an agent, and extensions named by its address: on our card, "
        "or left out so that nothing leads to the agent.",
    )
    redis_url: StoreUrl | None = Field(
        default=None,
        description="redis://, rediss:// or unix:// of a server or cluster, or redis+sentinel://host:26379/service; "
        "several of one kind as a list, or separated by commas. Absent: embedded engine.",
    )
    store: StoreSection = Field(default=StoreSection())
    replicated_acts: bool = Field(
        default=True,
        description="Where the server has replicas, nothing is sent to an agent or a webhook before one of them has "
        "what stands before it. False: a failover may lose that, and it may be sent again.",
    )
    replicated_acts_after: Duration | None = Field(
        default=parse_duration("30s"),
        json_schema_extra={"default": "30s"},
        description="For how long nothing is sent at a server that was promoted in a failover and that has no replica; "
        "null: until it has one. A server that was not seen to be promoted is always waited for.",
    )
    data_dir: Path = Field(
        default=Path("~/.local/state/passerelle"),
        description="Folder of the embedded engine and of the owner token, mode 0700; "
        "by default $XDG_STATE_HOME/passerelle.",
    )
    blobs: BucketUrl | Path | None = Field(
        default=None,
        description="Where content over 16 KiB stands: a folder that all instances over one server share, or "
        "`s3://bucket/prefix`, with the AWS_* variables of the environment; by default `blobs` in data_dir.",
    )
    secret_key: Secret | None = Field(
        default=None,
        description="32 bytes in base64 or hex that seal stored secrets; several, separated by commas: "
        "the first one seals, all of them open. Wanted with redis_url; else made in data_dir.",
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
        default="keys", description="`open` takes everybody for the owner; on loopback only."
    )
    log_level: LogLevel = "info"
    access_log: bool = Field(
        default=False,
        description="A line for each request to an agent: who asked for what, how it went.",
    )
    log_format: LogFormat = Field(
        default="auto", description="`auto` is console on a terminal, else JSON."
    )
    agents: tuple[AgentSettings, ...] = ()
    clients: tuple[ClientSettings, ...] = ()
    issuers: tuple[IssuerSettings, ...] = Field(
        default=(), description="Identity providers whose tokens are taken."
    )
    proxy: ProxySettings | None = Field(
        default=None, description="None: no header says whose certificate a caller has."
    )
    channels: ChannelSettings = Field(default=ChannelSettings())
    connections: ConnectionSettings = Field(default=ConnectionSettings())
    requests: RequestSettings = Field(default=RequestSettings())
    memory: MemorySettings = Field(default=MemorySettings())
    grpc: GrpcSettings = Field(default=GrpcSettings())
    spans: SpanSettings = Field(default=SpanSettings())
    signing: SigningSettings = Field(default=SigningSettings())
    policy: PolicySettings = Field(default=PolicySettings())
    approvals: ApprovalSettings = Field(default=ApprovalSettings())
    webhooks: WebhookSettings = Field(default=WebhookSettings())
    outputs: OutputSettings = Field(default=OutputSettings())

    @field_validator("blobs")
    @classmethod
    def _judge_blobs(cls, blobs: str | Path | None) -> str | Path | None:
        if isinstance(blobs, Path) and str(blobs).startswith("s3:"):
            raise ValueError("should read s3://bucket or s3://bucket/prefix")
        return blobs

    @property
    def blob_place(self) -> str | Path:
        """Where content over 16 KiB stands: a folder, or the address of a bucket."""
        return self.blobs or self.data_dir / "blobs"
