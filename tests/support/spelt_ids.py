"""Ids composed from a given time and given numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.ids import compose_stem, encode_base32

if TYPE_CHECKING:
    from passerelle.core.ids import Shard


def compose_id(prefix: str, shard: Shard, now_ms: int, entropy: int) -> str:
    """A minted id with a given time and 80 given bits."""
    return f"{prefix}{compose_stem(shard, now_ms, encode_base32(entropy, 16))}"
