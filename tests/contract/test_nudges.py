"""Signals between instances: received by the addressed one, and not stored."""

from __future__ import annotations

import pytest

from passerelle.core.ids import derive_shard
from passerelle.core.ports.signals import Nudge
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.store import Store
from tests.support.engine import Server, ask
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_signal_is_received_by_its_instance_only_and_not_stored(
    store: Store, server: Server
) -> None:
    mine, theirs = list[Nudge](), list[Nudge]()
    await store.nudges.listen("inst_mine", mine.append)
    await store.nudges.listen("inst_theirs", theirs.append)
    reported = [
        Nudge("task_1", "act_1"),
        Nudge("task_2"),
        Nudge("task_3", called_back=True),
        Nudge("task_4", gives_way=True),
    ]
    for nudge in reported:
        await store.nudges.nudge("inst_mine", nudge)
    await store.nudges.nudge("inst_nobody", reported[0])
    await wait_until(lambda: len(mine) == len(reported), 15, "every nudge")
    assert (mine, theirs) == (reported, [])
    found = [ask(url, "KEYS", "*inst_mine*") for url in server.nodes]
    assert found == [[] for _ in server.nodes]


async def test_signal_of_another_version_is_skipped(store: Store) -> None:
    received, shard = list[Nudge](), derive_shard("instance", "inst_new")
    await store.nudges.listen("inst_new", received.append)
    for line in ("x task_1 -", "w task_1", b"\xff\xff"):
        await store.nodes.write(
            shard, pack("SPUBLISH", keys.instance_hints(shard, "inst_new"), line)
        )
    await store.nudges.nudge("inst_new", Nudge("task_2"))
    await wait_until(lambda: received, 15, "the nudge after them")
    assert received == [Nudge("task_2")]
