"""Commands at another instance than the driver's: they reach the run, whichever instance takes them or has its duties.

The polling intervals are ages here, so a driver that acts was notified.
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
class Cluster:
    """Three instances over one engine: ``keeper`` has the duties of all shards, ``driver`` drives the runs."""

    rig: Rig
    keeper: Instance
    driver: Instance
    third: Instance

    def find(self, task_id: str) -> ActiveRun | None:
        """Returns the active run of a task at the driver."""
        return self.driver.gateway.parts.dispatch.find(task_id)

    async def ask(self) -> JsonObject:
        """Opens an approval in a run of ``driver``, and waits until the driver rests."""
        view = await ask(self.driver)
        await self.until_at_rest(task_of(view))
        return view

    async def send(self, text: str, at: Instance, task: str | None = None) -> TurnAccepted:
        """Sends a message at one of the instances."""
        message: JsonObject = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
        command = SubmitTurn("echo", message, "a2a", "stream", task=task)
        return cast("TurnAccepted", await at.gateway.parts.service.execute(OWNER, command, None))

    async def until_at_rest(self, task_id: str) -> None:
        """Waits until the driver rests: it polls no more by itself."""

        def rests() -> bool:
            dispatch = self.driver.gateway.parts.dispatch
            return self.find(task_id) is not None and dispatch.throttle.resting > 0

        await wait_until(rests, _WITHIN_S, "the driver rests")

    async def until_sent(self, sent: int) -> None:
        """Waits until the agent has more than ``sent`` messages."""
        await wait_until(lambda: self.rig.counted() > sent, _WITHIN_S, "the agent has the answer")

    async def until(self, view: JsonObject, status: Status) -> None:
        """Waits until the stored task of an approval has a status."""
        ref = EntityRef(EntityKind.TASK, task_of(view))

        async def has_come() -> bool:
            record = (await self.third.gateway.parts.writes.load_one(ref)).record
            return isinstance(record, TaskRecord) and record.status is status

        await wait_until(has_come, _WITHIN_S, f"the task is {status}")


def task_of(view: JsonObject) -> str:
    return str(view["taskId"]).partition(".")[0]


@pytest.fixture
async def cluster(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    first: list[str] = []

    def choose(instance: str, _living: object) -> frozenset[Shard]:
        if not first:
            first.append(instance)
        return frozenset(ALL_SHARDS) if first == [instance] else frozenset()

    monkeypatch.setattr("passerelle.delegation.duties.leases.choose_duties", choose)
    monkeypatch.setattr("passerelle.gateway.assembly.Timeouts", lambda: _UNHURRIED)
    started = [await rig.start(clients=[ADA]) for _ in range(3)]
    cluster = Cluster(rig, *started)
    await wait_until(
        lambda: len(cluster.keeper.gateway.duties.keeper.duties) == len(ALL_SHARDS),
        _WITHIN_S,
        "the duties of all shards are with one",
    )
    name = cluster.driver.gateway.duties.keeper.instance
    channel = keys.instance_hints(derive_shard("instance", name), name)
    await wait_until(
        lambda: ask_engine(rig.url, "PUBSUB", "SHARDNUMSUB", channel) == [channel.encode(), 1],
        _WITHIN_S,
        "the driver is subscribed",
    )
    return cluster


def silence(instance: Instance) -> None:
    """Drops the instance's signals to others."""
    instance.gateway.parts.dispatch.signals = None


@pytest.mark.parametrize("who", ["keeper", "third", "driver"])
async def test_answer_at_any_instance_reaches_the_agent_at_once(cluster: Cluster, who: str) -> None:
    view = await cluster.ask()
    sent = cluster.rig.counted()
    at = cast("Instance", getattr(cluster, who))
    for other in {"keeper", "third", "driver"} - {who}:
        silence(cast("Instance", getattr(cluster, other)))
    won = await say(at, bearer("ada"), make_answer(view))
    assert won.json()["outcome"] == "won", won.text
    await cluster.until_sent(sent)
    await cluster.until(view, Status.COMPLETED)


@pytest.mark.requirement("I9")
async def test_answer_without_its_signal_reaches_the_agent_by_its_due_row(cluster: Cluster) -> None:
    view = await cluster.ask()
    sent = cluster.rig.counted()
    silence(cluster.third)
    won = await say(cluster.third, bearer("ada"), make_answer(view))
    assert won.json()["outcome"] == "won", won.text
    await cluster.until_sent(sent)
    await cluster.until(view, Status.COMPLETED)


async def test_cancel_at_another_instance_reaches_the_driver(cluster: Cluster) -> None:
    view = await cluster.ask()
    await cluster.third.gateway.parts.service.execute(OWNER, CancelTask(str(view["taskId"])), None)
    await cluster.until(view, Status.CANCELLED)


async def test_pause_and_resume_at_another_instance_reach_the_driver(cluster: Cluster) -> None:
    view = await cluster.ask()
    driver = cluster.find(task_of(view))
    assert driver is not None
    pause, go_on = PauseTask(str(view["taskId"])), ResumeTask(str(view["taskId"]))
    await cluster.third.gateway.parts.service.execute(OWNER, pause, None)
    await wait_until(driver.run.is_held, _WITHIN_S, "the driver knows of the pause")
    await cluster.keeper.gateway.parts.service.execute(OWNER, go_on, None)
    await wait_until(lambda: not driver.run.is_held(), _WITHIN_S, "the driver goes on")


async def test_callback_at_another_instance_makes_the_driver_poll(cluster: Cluster) -> None:
    view = await cluster.ask()
    asked = cluster.rig.peer.count("GetTask")
    assert not cluster.third.gateway.parts.dispatch.hint(task_of(view))
    await wait_until(lambda: cluster.rig.peer.count("GetTask") > asked, _WITHIN_S, "it was asked")


@pytest.mark.requirement("LT-9")
async def test_bare_message_to_another_instances_send_is_stored_and_seen_by_the_driver(
    cluster: Cluster,
) -> None:
    cluster.rig.peer.subscribes = False
    accepted = await cluster.send("close", cluster.driver)
    await cluster.until_at_rest(accepted.task_id)
    driver = cluster.find(accepted.task_id)
    assert driver is not None
    await cluster.send("message noted by the agent", cluster.third, accepted.facade)
    await wait_until(
        lambda: "ROLE_AGENT" in str(driver.run.content),
        _WITHIN_S,
        "the driver knows what the agent said",
    )
    events = await cluster.third.read_session(accepted.session_id)
    warned = [event["payload"]["code"] for event in events if event["type"] == "runtime.warning"]
    assert warned == ["message_after_task"]
    said = [event["payload"].get("text") for event in events if event["type"] == "run.status"]
    assert said.count("noted by the agent") == 1
