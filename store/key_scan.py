"""Lists key names by pattern with SCAN, for duties that walk a whole primary, at lower priority than callers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, cast

from passerelle.store.connection import pack
from passerelle.store.failures import retry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from passerelle.store.nodes import Node

_COUNT: Final = 1000
"""Keys per call."""


async def scan_keys(node: Node, pattern: str) -> AsyncIterator[list[bytes]]:
    """The keys of a primary that match, in parts; a key may occur twice, and one created meanwhile may be missing.

    Raises:
        StoreUnavailable: the node does not answer.
    """
    cursor = b"0"
    while True:
        command = pack("SCAN", cursor, "MATCH", pattern, "COUNT", _COUNT)
        async with node.background:
            [reply] = await retry(partial(node.reads.call, command))
        cursor, names = cast("tuple[bytes, list[bytes]]", reply)
        yield names
        if cursor == b"0":
            return
