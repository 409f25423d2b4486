"""Ids that a test spells itself: of a time and of numbers that it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.ids import compose_stem, encode_base32

if TYPE_CHECKING:
    from passerelle.core.ids import Shard


def compose_id(prefix: str, shard: Shard, now_ms: int, entropy: int) -> str:
    """A minted id out of a time and 80 bits, both given."""
    return f"{prefix}{compose_stem(shard, now_ms, encode_base32(entropy, 16))}"
