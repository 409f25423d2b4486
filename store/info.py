"""Reads INFO for the start-up check, instead of CONFIG, which managed servers often forbid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never

from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.store.failures import REASONS
from passerelle.store.server_version import OLDEST, EngineName, ServerVersion, parse_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.store.connection import RespValue


StoreDurability: TypeAlias = Literal["aof", "replicas", "service"]
"""What makes acknowledged writes durable: the append-only file, the memory of replicas, or the operator."""

_NO_EVICTION: Final = "noeviction"
_EXPIRING: Final = "volatile-"
_EVICTED: Final = "tasks and their history"
_EVICTED_EARLY: Final = "leases, and the rows that keep a message from being sent twice"


@frozen
class ServerFacts:
    """Facts reported by a primary. ``replication_id`` changes on a failover: a hint, no proof of a loss."""

    engine: EngineName
    version: ServerVersion
    loading: bool
    """It loads its data from disk. Until that is done it reports no append-only file, whatever its settings."""
    durable: bool
    policy: str
    role: str
    replicas: int
    replication_id: str
    used_bytes: int
    maxmemory_bytes: int


PRIMARY: Final = "master"


def parse_info(reply: RespValue) -> dict[str, str]:
    """The ``name:value`` lines."""
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
    lines = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in lines}


def is_cluster(info: Mapping[str, str]) -> bool:
    """Whether slots are spread over nodes."""
    return info.get("cluster_enabled") == "1"


def read_facts(info: Mapping[str, str]) -> ServerFacts:
    """The facts checked at start. Valkey reports ``redis_version`` 7.2.4 next to its own version."""
    valkey = info.get("valkey_version")
    return ServerFacts(
        engine="valkey" if valkey else "redis",
        version=parse_version(valkey or info.get("redis_version", "0")),
        loading=info.get("loading", "0") != "0",
        durable=info.get("aof_enabled") == "1",
        policy=info.get("maxmemory_policy", ""),
        role=info.get("role", ""),
        replicas=int(info.get("connected_slaves", "0")),
        replication_id=info.get("master_replid", ""),
        used_bytes=int(info.get("used_memory", "0")),
        maxmemory_bytes=int(info.get("maxmemory", "0")),
    )


def refuse_unfit(facts: ServerFacts, name: str, durability: StoreDurability) -> None:
    """Refuses a server that would lose, evict or not understand what is written.

    Raises:
        ConfigInvalid: names the server and what to change.
        StoreUnavailable: not known yet, because it loads its data; or a required replica is not connected yet.
    """
    if facts.loading:
        raise StoreUnavailable(REASONS["LOADING"], "no")
    if facts.version < OLDEST:
        found = ".".join(str(part) for part in facts.version)
        raise ConfigInvalid("redis_url", f"{name} is version {found}; 7.0 or newer is needed")
    if facts.role != PRIMARY:
        raise ConfigInvalid("redis_url", f"{name} is a replica; name the primary")
    if (risk := find_loss_risk(facts, name, durability)) is not None:
        raise ConfigInvalid("redis_url", risk)
    if durability == "replicas" and not facts.replicas:
        raise StoreUnavailable(f"{name} has no replica; store.durability requires one", "no")


def find_loss_risk(facts: ServerFacts, name: str, durability: StoreDurability) -> str | None:
    """Which setting of a server can lose acknowledged writes, and what to set; None: none.

    A server can get such a setting while it is used: an operator changes it, or a replica with another one is promoted.
    """
    if facts.loading:
        return None
    if facts.policy and facts.policy != _NO_EVICTION:
        what = _EVICTED_EARLY if facts.policy.startswith(_EXPIRING) else _EVICTED
        return (
            f"{name} evicts keys when its memory is full ({facts.policy}): {what}; "
            f"set maxmemory-policy {_NO_EVICTION}"
        )
    match durability:
        case "aof" if not facts.durable:
            return (
                f"{name} has no append-only file; set appendonly yes, "
                "or set store.durability to what keeps its data"
            )
        case "aof" | "replicas" | "service":
            return None
        case _:
            assert_never(durability)
