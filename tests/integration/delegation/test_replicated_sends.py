"""Nothing is sent to an agent on a write that a failover would lose: sends wait for a replica, and still happen."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from passerelle.core.commands import GetAction
from passerelle.core.ids import Shard
from passerelle.core.task.status import Status
from passerelle.runtime.common.replica_watch import ReplicaWatch, describe_replicas
from passerelle.store.engine_binary import find_engine
from passerelle.store.replicas import RedisReplicas
from passerelle.store.replication import ReplicationView
from tests.support.engine import ask, link, run_server
from tests.support.failover import run_pair
from tests.support.harness import ADA, Harness, open_harness, task_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def until_missed(harness: Harness) -> None:
    """Waits until a write has missed the replica."""
    await wait_until(lambda: harness.store.replicas.are_missing, 15, "the replica is missed")


async def test_messages_and_answers_are_sent_after_the_replica_confirms(
    tmp_path: Path, anyio_backend: str
) -> None:
    async with run_pair() as pair, open_harness(pair.url, tmp_path) as harness:
        asked, _ = await harness.talk("ask Which colour?")
        pair.cut_replication()
        sent = await harness.send("hello")
        await until_missed(harness)
        view = await harness.question(asked)
        await harness.respond(view, option_id="reply", content={"text": "blue"})

        async def is_on_its_way() -> bool:
            shown = await harness.service.read(ADA, GetAction(str(view["actionId"])))
            return shown["returnState"] == "returning"

        await wait_until(is_on_its_way, 15, "the intent to deliver the answer is stored")
        assert harness.peer.texts == ["ask Which colour?"]
        assert (await harness.record(sent)).status is Status.RUNNING, "it is accepted all the same"
        pair.mend_replication()
        await harness.await_answer(sent)
        await harness.until(asked, Status.COMPLETED)
        assert sorted(harness.peer.texts) == ["ask Which colour?", "blue", "hello"]
        assert not harness.store.replicas.are_missing


@asynccontextmanager
async def watched(harness: Harness) -> AsyncGenerator[RedisReplicas]:
    """Watches the store's replicas as the gateway does; a promoted server counts as alone after 0.5 s."""
    replicas = harness.store.replicas
    replicas.alone_after_s = 0.5
    log = structlog.get_logger("passerelle")
    async with ReplicaWatch(replicas, log, round_s=0.1).watch():
        yield replicas


def record_checks(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> list[ReplicationView]:
    """The replication state after each check from now on."""
    replicas, checks = harness.store.replicas, list[ReplicationView]()
    look = replicas.look

    async def look_and_record() -> None:
        await look()
        checks.append(harness.store.nodes.all[0].replication)

    monkeypatch.setattr(replicas, "look", look_and_record)
    return checks


async def test_promoted_server_without_a_replica_keeps_sending(
    tmp_path: Path, anyio_backend: str
) -> None:
    async with (
        run_pair() as pair,
        open_harness(pair.url, tmp_path) as harness,
        watched(harness) as seen,
    ):
        asked, _ = await harness.talk("ask Which colour?")
        await wait_until(lambda: pair.replica_uptime_s > 3, 15, "the replica is no new server")
        await pair.await_replicated()
        await seen.look()
        pair.promote()
        sent = await harness.send("hello")
        view = await harness.question(asked)
        await harness.respond(view, option_id="reply", content={"text": "blue"})
        await harness.await_answer(sent)
        await harness.until(asked, Status.COMPLETED)
        assert sorted(harness.peer.texts) == ["ask Which colour?", "blue", "hello"]
        assert (len(seen.alone), seen.are_missing) == (1, False)
        assert "has no replica" in (describe_replicas(seen) or "")
        # A replica that attaches is waited for, and the warning ends.
        with run_server(find_engine(None)) as next_replica:
            link(pair.replica, next_replica)
            await wait_until(lambda: not seen.alone, 15, "the new replica is seen")
            await wait_until(lambda: seen.have_all(Shard(0)), 15, "the new replica confirms")
            assert describe_replicas(seen) is None
            await harness.talk("again")
        await until_missed_again(harness)
        assert not seen.alone, "it may be the isolated one now"


async def until_missed_again(harness: Harness) -> None:
    """Waits until the gateway misses the store's only replica."""
    missing = harness.store.replicas

    async def is_missed() -> bool:
        await missing.have_all(Shard(0))
        return missing.are_missing

    await wait_until(is_missed, 15, "the replica is missed")


@pytest.mark.parametrize("change", ["promoted elsewhere", "backlog freed", "restarted"])
async def test_isolated_old_primary_sends_nothing(
    tmp_path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """An isolated primary also changes its replication id: when it restarts, and when its backlog is freed."""
    async with (
        run_pair() as pair,
        open_harness(pair.url, tmp_path) as harness,
        watched(harness) as seen,
    ):
        await harness.talk("hello")
        await pair.await_replicated()
        if change == "backlog freed":
            ask(pair.primary.url, "CONFIG", "SET", "repl-backlog-ttl", 1)
        first = harness.store.nodes.all[0].replication
        ask(pair.replica.url, "REPLICAOF", "NO", "ONE")
        if change == "restarted":
            pair.restart_primary()
        lost = await harness.send("again")
        await until_missed(harness)
        checks = record_checks(harness, monkeypatch)
        if change != "promoted elsewhere":
            await wait_until(
                lambda: checks and checks[-1].replication_id != first.replication_id,
                20,
                "the primary has another replication id",
            )
        enough = len(checks) + 3
        await wait_until(lambda: len(checks) >= enough, 20, "it is checked repeatedly")
        assert harness.peer.texts == ["hello"]
        assert (seen.alone, seen.are_missing) == ((), True)
        assert (await harness.record(lost)).status is Status.RUNNING
        assert describe_replicas(seen) == "no replica confirms writes; messages and webhooks wait"
        # The promoted server continues; what this primary accepted is lost.
        pair.promote()
        harness.forget_sessions()


async def test_message_lost_in_a_failover_has_not_been_sent(
    tmp_path: Path, anyio_backend: str
) -> None:
    async with run_pair() as pair, open_harness(pair.url, tmp_path) as harness:
        await harness.talk("hello")
        await pair.await_replicated()
        pair.cut_replication()
        lost = await harness.send("again")
        await until_missed(harness)
        pair.promote()

        async def is_gone() -> bool:
            return (await harness.store.log.load([task_of(lost)]))[0].stamp.version == 0

        await wait_until(is_gone, 10, "the new primary does not have it")
        assert harness.peer.texts == ["hello"]
        harness.forget_sessions()
