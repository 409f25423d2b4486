"""The rows of the owner token: each generation is written once, the highest counts, and changes are announced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from passerelle.core.ids import Shard
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.sealed_values import SealedToken
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.store.store import Store

pytestmark = pytest.mark.anyio


async def test_a_generation_is_written_once_and_the_highest_counts(store: Store) -> None:
    rows = store.owner_tokens
    assert await rows.read() is None
    first, tenth = SealedToken(1, b"first"), SealedToken(10, b"tenth")
    assert await rows.keep(first) == first
    assert await rows.keep(SealedToken(1, b"slower")) == first
    await rows.keep(SealedToken(9, b"ninth"))
    assert await rows.keep(tenth) == tenth
    assert await rows.keep(SealedToken(9, b"late")) == tenth
    await rows.seal_anew(SealedToken(10, b"again"))
    assert await rows.read() == SealedToken(10, b"again")


async def test_earlier_generations_are_removed(store: Store) -> None:
    rows = store.owner_tokens
    for generation in (1, 2, 3):
        await rows.keep(SealedToken(generation, b"any"))
    await rows.forget_before(3)
    [left] = await store.nodes.read(Shard(0), pack("HKEYS", keys.owner_token()))
    assert left == [b"3"]
    await rows.forget_before(1)
    assert await rows.read() == SealedToken(3, b"any")


async def test_changes_are_received(store: Store) -> None:
    received = list[str]()
    await store.owner_tokens.listen(lambda: received.append("news"))
    await store.owner_tokens.tell()
    await wait_until(lambda: received == ["news"], 15, "the news")
