"""What one instance tells another: heard by the one that it is for, and stored nowhere."""

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


async def test_nudge_is_heard_by_its_instance_alone_and_stored_nowhere(
    store: Store, server: Server
) -> None:
    mine, theirs = list[Nudge](), list[Nudge]()
    await store.nudges.listen("inst_mine", mine.append)
    await store.nudges.listen("inst_theirs", theirs.append)
    told = [
        Nudge("task_1", "act_1"),
        Nudge("task_2"),
        Nudge("task_3", called_back=True),
        Nudge("task_4", gives_way=True),
    ]
    for nudge in told:
        await store.nudges.nudge("inst_mine", nudge)
    await store.nudges.nudge("inst_nobody", told[0])
    await wait_until(lambda: len(mine) == len(told), 15, "every nudge")
    assert (mine, theirs) == (told, [])
    found = [ask(url, "KEYS", "*inst_mine*") for url in server.nodes]
    assert found == [[] for _ in server.nodes]


async def test_nudge_of_another_version_is_passed_over(store: Store) -> None:
    heard, shard = list[Nudge](), derive_shard("instance", "inst_new")
    await store.nudges.listen("inst_new", heard.append)
    for line in ("x task_1 -", "w task_1", b"\xff\xff"):
        await store.nodes.write(
            shard, pack("SPUBLISH", keys.instance_hints(shard, "inst_new"), line)
        )
    await store.nudges.nudge("inst_new", Nudge("task_2"))
    await wait_until(lambda: heard, 15, "the nudge after them")
    assert heard == [Nudge("task_2")]
