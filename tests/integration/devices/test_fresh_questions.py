"""Whatever goes by an inbox knows a question as soon as its caller was told of it (CHN-6)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.commands import SubmitTurn, TurnAccepted
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.json import Json, JsonObject
from passerelle.delegation.duties.relay import Relay
from passerelle.gateway.duties_proxy import DutiesProxy
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import (
    ADA,
    BOB,
    CLEO,
    asks,
    bearer,
    list_pending,
    make_answer,
    read,
    say,
)
from tests.support.paired_device import PairedDevice, sign_decision
from tests.support.waiting import wait_until

TIERS: list[dict[str, object]] = [{"risk": "high", "who": ["ada", "bob", "cleo"], "need": 2}]
WHO = Principal("ada", kind="person", scopes=frozenset(AccessScope))


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> list[Shard]:
    """Shards whose relay somebody waited for; none is relayed before."""
    asked: list[Shard] = []
    awaited = asyncio.Event()
    pass_on, wake_relay = Relay.pass_on, DutiesProxy.wake_relay

    async def stand(relay: Relay, shard: Shard) -> float:
        await awaited.wait()
        return await pass_on(relay, shard)

    def go_on(late: DutiesProxy, shard: Shard) -> None:
        asked.append(shard)
        awaited.set()
        wake_relay(late, shard)

    monkeypatch.setattr(Relay, "pass_on", stand)
    monkeypatch.setattr(DutiesProxy, "wake_relay", go_on)
    return asked


@pytest.fixture
def first_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The instance that starts first has the duties of all shards."""
    first: list[str] = []

    def choose(instance: str, _living: object) -> frozenset[Shard]:
        if not first:
            first.append(instance)
        return frozenset(ALL_SHARDS) if first == [instance] else frozenset()

    monkeypatch.setattr("passerelle.delegation.duties.leases.choose_duties", choose)


async def start(rig: Rig, **settings: object) -> Instance:
    return await rig.start(clients=[ADA, BOB, CLEO], **settings)


async def have_asked(at: Instance, risk: str = "medium", number: int = 0) -> tuple[str, str]:
    """The facade id of a task whose caller was told of a question, and the id of that; nothing reads it on the way."""
    answered = await at.send("ada-key", asks(risk, f"act_peer_{number}"))
    task = cast("JsonObject", cast("JsonObject", answered.json()["result"])["task"])
    assert cast("JsonObject", task["status"])["state"] == "TASK_STATE_INPUT_REQUIRED"
    return str(task["id"]), await find_question(at, str(task["id"]).partition(".")[0])


async def find_question(at: Instance, task: str) -> str:
    ref = EntityRef(EntityKind.TASK, task)
    record = (await at.gateway.parts.writes.load([ref]))[ref].record
    assert isinstance(record, TaskRecord)
    (action,) = record.open_actions
    return action


@pytest.mark.requirement("CHN-6")
async def test_an_own_question_is_listed_at_once_and_others_wait_for_nothing(
    rig: Rig, hurried: list[Shard]
) -> None:
    at = await start(rig)
    asked = [(await have_asked(at, number=number))[1] for number in range(3)]
    assert await list_pending(at, "bob") == []
    assert hurried == []
    first = await at.http.get("/v1/approvals?limit=2", headers=bearer("ada"))
    assert [one["actionId"] for one in first.json()["pending"]] == asked[:0:-1]
    assert [one["actionId"] for one in await list_pending(at, "ada")] == asked[::-1]
    view = await read(at, "ada", asked[1])
    assert (await say(at, bearer("ada"), make_answer(view))).status_code == 200
    listed = [one["actionId"] for one in await list_pending(at, "ada")]
    assert listed == [asked[2], asked[0]]


@pytest.mark.requirement("CHN-6")
@pytest.mark.usefixtures("hurried")
async def test_the_inbox_stream_begins_with_a_question_that_was_just_asked(rig: Rig) -> None:
    at = await start(rig)
    _, action = await have_asked(at)
    found = await at.http.get("/v1/streams/inbox/snapshot", headers=bearer("ada"))
    assert found.status_code == 200, found.text
    assert action in found.text


@pytest.mark.requirement("CHN-6")
@pytest.mark.usefixtures("hurried")
async def test_votes_of_a_device_that_is_revoked_at_once_are_taken_back(rig: Rig) -> None:
    at = await start(rig, policy={"approvers": TIERS})
    phone = PairedDevice(at.http)
    await phone.pair("ada-key")
    _, action = await have_asked(at, "high")
    view = await read(at, "ada", action)
    voted = await say(at, phone.headers, sign_decision(phone, make_answer(view)))
    assert voted.status_code == 202, voted.text
    gone = await at.http.delete(f"/v1/devices/{phone.device_id}", headers=bearer("ada"))
    assert gone.json()["withdrawn"] == 1
    assert "votes" not in await read(at, "ada", action)


@pytest.mark.requirement("CHN-6")
@pytest.mark.usefixtures("hurried")
async def test_a_question_that_was_just_asked_leaves_the_sight_of_who_may_not_see_it(
    rig: Rig,
) -> None:
    at = await start(rig)
    _, action = await have_asked(at)
    lists = at.gateway.parts.permissions.question_lists
    found = await lists.find_withdrawn(WHO, replace(WHO, scopes=frozenset()))
    assert found == [(action, "scope")]


@pytest.mark.requirement("CHN-6")
@pytest.mark.usefixtures("first_relays")
async def test_a_question_is_listed_at_once_where_another_instance_relays_it(rig: Rig) -> None:
    relaying, other = await start(rig), await start(rig)
    await own_everything(relaying)
    _, action = await have_asked(other)
    assert [one["actionId"] for one in await list_pending(other, "ada")] == [action]


@pytest.mark.requirement("CHN-6")
@pytest.mark.usefixtures("first_relays")
@pytest.mark.parametrize("told", ["task", "question", "stream"])
async def test_an_instance_lists_a_question_of_another_once_it_has_told_of_it(
    rig: Rig, told: str, hurried: list[Shard]
) -> None:
    relaying, other = await start(rig), await start(rig)
    await own_everything(relaying)
    match told:
        case "task":
            task, action = await have_asked(other)
            await relaying.call("ada-key", "GetTask", {"id": task})
        case "question":
            _, action = await have_asked(other)
            await read(relaying, "ada", action)
        case _:
            action = await follow_to_question(relaying, await send(other))
    assert [one["actionId"] for one in await list_pending(relaying, "ada")] == [action]
    assert len(hurried) == 1


@pytest.mark.requirement("CHN-6")
async def test_a_list_does_not_wait_for_a_relay_that_stands_still(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stand(_relay: Relay, _shard: Shard) -> float:
        await asyncio.Event().wait()
        return 0.0

    monkeypatch.setattr(Relay, "pass_on", stand)
    monkeypatch.setattr("passerelle.runtime.records.inbox_arrivals.WAIT_S", 0.05)
    at = await start(rig)
    await have_asked(at)
    assert await list_pending(at, "ada") == []


async def own_everything(keeper: Instance) -> None:
    await wait_until(
        lambda: len(keeper.gateway.duties.keeper.duties) == len(ALL_SHARDS),
        30,
        "the duties of all shards are with one",
    )


async def send(at: Instance) -> TurnAccepted:
    """A message after which the agent asks."""
    parts: list[Json] = [{"text": asks()}]
    message: JsonObject = {"messageId": "m-ask", "role": "ROLE_USER", "parts": parts}
    command = SubmitTurn("echo", message, "a2a", "stream")
    return cast("TurnAccepted", await at.gateway.parts.service.execute(WHO, command, None))


async def follow_to_question(at: Instance, accepted: TurnAccepted) -> str:
    """Follows a turn until its caller is shown that something is asked; the id of the question."""
    service = at.gateway.parts.service
    async with service.follow(WHO, accepted) as followed:
        async for frame in followed.frames:
            if b"INPUT_REQUIRED" in (await frame.load()).data:
                break
    return await find_question(at, accepted.task_id)
