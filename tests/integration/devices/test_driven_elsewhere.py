"""SendOptions towards a run that another instance drives: they reach it whoever takes them, and whoever has its shard.

Nobody here looks at an agent in its own time, so what moves was told to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, cast

import pytest

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.commands import CancelTask, SubmitTurn, TurnAccepted
from passerelle.core.ids import ALL_SHARDS, Shard, derive_shard
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.requests import PauseTask, ResumeTask
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.active_run import ActiveRun
from passerelle.delegation.runs.follow_strategy import Timeouts
from passerelle.store import keys
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import ADA, ask, bearer, make_answer, say
from tests.support.engine import ask as ask_engine
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

OWNER: Final = Principal("ada", kind="person", scopes=frozenset(AccessScope))
_AGES_S: Final = 3600.0
_UNHURRIED: Final = replace(
    Timeouts(),
    poll_s=_AGES_S,
    poll_max_s=_AGES_S,
    parked_poll_s=_AGES_S,
    parked_poll_max_s=_AGES_S,
    look_s=_AGES_S,
)
_WITHIN_S: Final = 30.0


@dataclass
class Town:
    """Three instances over one engine: ``keeper`` has the duties of all shards, ``driver`` drives runs."""

    rig: Rig
    keeper: Instance
    driver: Instance
    third: Instance

    def find(self, task_id: str) -> ActiveRun | None:
        """The driver of a task, where it is expected."""
        return self.driver.gateway.parts.dispatch.find(task_id)

    async def ask(self) -> JsonObject:
        """A question of an agent whose run ``driver`` drives, and looks at no more."""
        view = await ask(self.driver)
        await self.until_at_rest(task_of(view))
        return view

    async def send(self, text: str, at: Instance, task: str | None = None) -> TurnAccepted:
        """A message that one of the instances takes."""
        message: JsonObject = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
        command = SubmitTurn("echo", message, "a2a", "stream", task=task)
        return cast("TurnAccepted", await at.gateway.parts.service.execute(OWNER, command, None))

    async def until_at_rest(self, task_id: str) -> None:
        """The driver looks at the agent no more by itself."""

        def rests() -> bool:
            dispatch = self.driver.gateway.parts.dispatch
            return self.find(task_id) is not None and dispatch.throttle.resting > 0

        await wait_until(rests, _WITHIN_S, "the driver rests")

    async def until_sent(self, sent: int) -> None:
        """The agent has got another message than so many."""
        await wait_until(lambda: self.rig.counted() > sent, _WITHIN_S, "the agent has the answer")

    async def until(self, view: JsonObject, status: Status) -> None:
        """The task of a question has come to a status, in the store."""
        ref = EntityRef(EntityKind.TASK, task_of(view))

        async def has_come() -> bool:
            record = (await self.third.gateway.parts.writes.load([ref]))[ref].record
            return isinstance(record, TaskRecord) and record.status is status

        await wait_until(has_come, _WITHIN_S, f"the task is {status}")


def task_of(view: JsonObject) -> str:
    return str(view["taskId"]).partition(".")[0]


@pytest.fixture
async def town(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Town:
    first: list[str] = []

    def choose(instance: str, _living: object) -> frozenset[Shard]:
        if not first:
            first.append(instance)
        return frozenset(ALL_SHARDS) if first == [instance] else frozenset()

    monkeypatch.setattr("passerelle.delegation.duties.leases.choose_duties", choose)
    monkeypatch.setattr("passerelle.gateway.assembly.Timeouts", lambda: _UNHURRIED)
    started = [await rig.start(clients=[ADA]) for _ in range(3)]
    town = Town(rig, *started)
    await wait_until(
        lambda: len(town.keeper.gateway.duties.keeper.duties) == len(ALL_SHARDS),
        _WITHIN_S,
        "the duties of all shards are with one",
    )
    name = town.driver.gateway.duties.keeper.instance
    channel = keys.instance_hints(derive_shard("instance", name), name)
    await wait_until(
        lambda: ask_engine(rig.url, "PUBSUB", "SHARDNUMSUB", channel) == [channel.encode(), 1],
        _WITHIN_S,
        "whoever drives listens",
    )
    return town


def silence(instance: Instance) -> None:
    """Nothing that it tells others arrives."""
    instance.gateway.parts.dispatch.signals = None


@pytest.mark.parametrize("who", ["keeper", "third", "driver"])
async def test_answer_taken_by_any_instance_is_at_the_agent_at_once(town: Town, who: str) -> None:
    view = await town.ask()
    sent = town.rig.counted()
    at = cast("Instance", getattr(town, who))
    for other in {"keeper", "third", "driver"} - {who}:
        silence(cast("Instance", getattr(town, other)))
    won = await say(at, bearer("ada"), make_answer(view))
    assert won.json()["outcome"] == "won", won.text
    await town.until_sent(sent)
    await town.until(view, Status.COMPLETED)


@pytest.mark.requirement("I9")
async def test_answer_whose_news_are_lost_reaches_the_agent_by_its_row(town: Town) -> None:
    view = await town.ask()
    sent = town.rig.counted()
    silence(town.third)
    won = await say(town.third, bearer("ada"), make_answer(view))
    assert won.json()["outcome"] == "won", won.text
    await town.until_sent(sent)
    await town.until(view, Status.COMPLETED)


async def test_cancel_taken_elsewhere_is_seen_by_who_drives(town: Town) -> None:
    view = await town.ask()
    await town.third.gateway.parts.service.execute(OWNER, CancelTask(str(view["taskId"])), None)
    await town.until(view, Status.CANCELLED)


async def test_pause_and_way_on_taken_elsewhere_are_seen_by_who_drives(town: Town) -> None:
    view = await town.ask()
    driver = town.find(task_of(view))
    assert driver is not None
    pause, go_on = PauseTask(str(view["taskId"])), ResumeTask(str(view["taskId"]))
    await town.third.gateway.parts.service.execute(OWNER, pause, None)
    await wait_until(driver.run.is_held, _WITHIN_S, "the driver knows of the pause")
    await town.keeper.gateway.parts.service.execute(OWNER, go_on, None)
    await wait_until(lambda: not driver.run.is_held(), _WITHIN_S, "the driver goes on")


async def test_call_of_an_agent_taken_elsewhere_has_the_driver_ask(town: Town) -> None:
    view = await town.ask()
    asked = town.rig.peer.count("GetTask")
    assert not town.third.gateway.parts.dispatch.hint(task_of(view))
    await wait_until(lambda: town.rig.peer.count("GetTask") > asked, _WITHIN_S, "it was asked")


@pytest.mark.requirement("LT-9")
async def test_bare_message_to_what_another_instance_sent_is_kept_and_seen_by_who_drives(
    town: Town,
) -> None:
    town.rig.peer.subscribes = False
    accepted = await town.send("close", town.driver)
    await town.until_at_rest(accepted.task_id)
    driver = town.find(accepted.task_id)
    assert driver is not None
    await town.send("message noted by the agent", town.third, accepted.facade)
    await wait_until(
        lambda: "ROLE_AGENT" in str(driver.run.content),
        _WITHIN_S,
        "the driver knows what the agent said",
    )
    told = await town.third.read_session(accepted.session_id)
    warned = [event["payload"]["code"] for event in told if event["type"] == "runtime.warning"]
    assert warned == ["message_after_task"]
    said = [event["payload"].get("text") for event in told if event["type"] == "run.status"]
    assert said.count("noted by the agent") == 1
