"""Whether the user of ``redis_url`` may run what the store needs, asked before the first write.

A right that is missing would otherwise be noticed only where a command is needed: an instance would start, accept work,
and fail to list or archive it. Each command is sent for a key that does not exist, so none of them changes anything.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.core.ids import ALL_SHARDS
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.failures import REASONS, retry

if TYPE_CHECKING:
    from passerelle.core.ids import Shard
    from passerelle.store.nodes import Nodes

NEEDED: Final[tuple[tuple[str, ...], ...]] = (
    ("EXISTS",),
    ("GET",),
    ("HGET", "x"),
    ("PEXPIRE", "1"),
    ("PTTL",),
    ("SMEMBERS",),
    ("SPUBLISH", "x"),
    ("UNLINK",),
    ("XLEN",),
    ("ZSCORE", "x"),
)
"""Commands with what follows the key: each right that is granted by itself, and one of each group of commands."""


async def refuse_missing_rights(nodes: Nodes) -> None:
    """Asks each primary.

    Raises:
        ConfigInvalid: the user may not run a command.
        StoreUnavailable: a primary does not answer.
    """
    homes = {nodes.node(shard): shard for shard in ALL_SHARDS}
    await asyncio.gather(
        *(_ask(nodes, shard, *form) for shard in homes.values() for form in NEEDED)
    )


async def _ask(nodes: Nodes, shard: Shard, name: str, *rest: str) -> None:
    command = (name, f"{keys.probe(shard)}:none", *rest)
    try:
        await retry(partial(nodes.read, shard, pack(*command)))
    except StoreUnavailable as error:
        if not error.reason.startswith(REASONS["NOPERM"]):
            raise
        raise ConfigInvalid("redis_url", _advise(name, error.reason)) from None


def _advise(name: str, reason: str) -> str:
    """What is missing, in the words of Redis and Valkey of all versions: a command, a key or a channel."""
    if "access" not in reason:
        return f"its user may not run {name}: add +{name.lower()} to its ACL rules"
    pattern = "&*" if "channel" in reason else "~*"
    return f"its user may not use every key and channel: add {pattern} to its ACL rules"
