"""Announcements of edited rules: received by subscribers of the same home, and not stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from passerelle.store import keys
from tests.support.batches import make_place
from tests.support.engine import ask
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.store.store import Store
    from tests.support.engine import Server

pytestmark = pytest.mark.anyio


async def test_rule_changes_are_received_for_their_home_only_and_not_stored(
    store: Store, server: Server
) -> None:
    mine, other = make_place(), make_place()
    received = list[str]()
    await store.rule_news.listen(mine.session, lambda: received.append("mine"))
    await store.rule_news.listen(other.session, lambda: received.append("other"))
    await store.rule_news.publish(mine.session)
    await wait_until(lambda: "mine" in received, 15, "the news")
    await store.rule_news.publish(other.session)
    await wait_until(lambda: "other" in received, 15, "the change of the other home")
    assert received == ["mine", "other"]
    channel = keys.rule_hints(mine.shard, mine.session)
    assert [ask(url, "KEYS", f"*{channel[4:]}*") for url in server.nodes] == [
        [] for _ in server.nodes
    ]
