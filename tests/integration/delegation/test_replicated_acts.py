"""Nothing is sent to an agent on a write that a failover would lose: it waits for a replica, and is never refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from passerelle.core.commands import GetAction
from passerelle.core.status import Status
from tests.support.failover import run_pair
from tests.support.house import ADA, House, open_house, task_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def until_missed(house: House) -> None:
    """Until somebody waits for the replica."""
    await wait_until(lambda: house.store.replicas.are_missing, 15, "the replica is missed")


async def test_messages_and_answers_wait_for_the_replica_and_are_sent_once_it_has_them(
    tmp_path: Path, anyio_backend: str
) -> None:
    async with run_pair() as pair, open_house(pair.url, tmp_path) as house:
        asked, _ = await house.talk("ask Which colour?")
        pair.cut_replication()
        told = await house.send("hello")
        await until_missed(house)
        view = await house.question(asked)
        await house.respond(view, option_id="reply", content={"text": "blue"})

        async def is_on_its_way() -> bool:
            shown = await house.service.read(ADA, GetAction(str(view["actionId"])))
            return shown["returnState"] == "returning"

        await wait_until(is_on_its_way, 15, "the intent to tell the agent is stored")
        assert house.peer.texts == ["ask Which colour?"]
        assert (await house.record(told)).status is Status.RUNNING, "it is accepted all the same"
        pair.mend_replication()
        await house.hear(told)
        await house.until(asked, Status.COMPLETED)
        assert sorted(house.peer.texts) == ["ask Which colour?", "blue", "hello"]
        assert not house.store.replicas.are_missing


async def test_message_whose_acceptance_a_failover_loses_has_reached_no_agent(
    tmp_path: Path, anyio_backend: str
) -> None:
    async with run_pair() as pair, open_house(pair.url, tmp_path) as house:
        await house.talk("hello")
        await pair.await_replicated()
        pair.cut_replication()
        lost = await house.send("again")
        await until_missed(house)
        pair.promote()

        async def is_gone() -> bool:
            return (await house.store.log.load([task_of(lost)]))[0].stamp.version == 0

        await wait_until(is_gone, 10, "the new primary knows nothing of it")
        assert house.peer.texts == ["hello"]
        house.forget_sessions()
