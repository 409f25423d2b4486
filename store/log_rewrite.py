"""Makes servers rewrite their append-only files from their current data, so that deleted data is in none of them."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.store.connection import pack
from passerelle.store.info import parse_info

if TYPE_CHECKING:
    from passerelle.store.nodes import Node, Nodes

_LOOK_S: Final = 0.05
_MOST_S: Final = 3600.0
"""Rewriting 100 GB takes a quarter of that."""


async def rewrite_logs(nodes: Nodes, most_s: float = _MOST_S) -> None:
    """Returns once the file of each primary is rewritten with data no older than this call.

    Raises:
        StoreUnavailable: a server does not answer, fails, or is not done within ``most_s``.
    """
    for node in nodes.all:
        until_s = monotonic() + most_s
        # A running rewrite started before this call.
        await _wait_rest(node, until_s)
        await node.writes.call(pack("BGREWRITEAOF"))
        said = await _wait_rest(node, until_s)
        if said.get("aof_last_bgrewrite_status") != "ok":
            reason = f"{node.endpoint.name} could not rewrite its append-only file"
            raise StoreUnavailable(reason, "no")


async def _wait_rest(node: Node, until_s: float) -> dict[str, str]:
    """Waits until a server runs no rewrite; returns its persistence fields of INFO."""
    while True:
        [reply] = await node.reads.call(pack("INFO", "persistence"))
        said = parse_info(reply)
        flags = (said.get("aof_rewrite_in_progress"), said.get("aof_rewrite_scheduled"))
        if "1" not in flags:
            return said
        if monotonic() > until_s:
            reason = f"{node.endpoint.name} takes too long to rewrite its append-only file"
            raise StoreUnavailable(reason, "no")
        await asyncio.sleep(_LOOK_S)
