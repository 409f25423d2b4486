"""Every read of an inbox includes an approval as soon as its caller has been notified of it (CHN-6)."""

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
def awaited_relays(monkeypatch: pytest.MonkeyPatch) -> list[Shard]:
    """The shards whose relay a reader waited for; the relay starts only then."""
    asked: list[Shard] = []
    awaited = asyncio.Event()
    pass_on, wake_relay = Relay.pass_on, DutiesProxy.wake_relay

    async def never_pass_on(relay: Relay, shard: Shard) -> float:
        await awaited.wait()
        return await pass_on(relay, shard)

    def record_wake(late: DutiesProxy, shard: Shard) -> None:
        asked.append(shard)
        awaited.set()
        wake_relay(late, shard)

    monkeypatch.setattr(Relay, "pass_on", never_pass_on)
    monkeypatch.setattr(DutiesProxy, "wake_relay", record_wake)
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


async def open_question(at: Instance, risk: str = "medium", number: int = 0) -> tuple[str, str]:
    """Opens an approval and does not read it; returns the facade id of its task and its action id."""
    answered = await at.send("ada-key", asks(risk, f"act_peer_{number}"))
    task = cast("JsonObject", cast("JsonObject", answered.json()["result"])["task"])
    assert cast("JsonObject", task["status"])["state"] == "TASK_STATE_INPUT_REQUIRED"
    return str(task["id"]), await find_question(at, str(task["id"]).partition(".")[0])


async def find_question(at: Instance, task: str) -> str:
    ref = EntityRef(EntityKind.TASK, task)
    record = (await at.gateway.parts.writes.load_one(ref)).record
    assert isinstance(record, TaskRecord)
    (action,) = record.open_actions
    return action


@pytest.mark.requirement("CHN-6")
async def test_a_new_approval_is_listed_at_once_and_other_callers_wait_for_nothing(
    rig: Rig, awaited_relays: list[Shard]
) -> None:
    at = await start(rig)
    asked = [(await open_question(at, number=number))[1] for number in range(3)]
    assert await list_pending(at, "bob") == []
    assert awaited_relays == []
    first = await at.http.get("/v1/approvals?limit=2", headers=bearer("ada"))
    assert [one["actionId"] for one in first.json()["pending"]] == asked[:0:-1]
    assert [one["actionId"] for one in await list_pending(at, "ada")] == asked[::-1]
    view = await read(at, "ada", asked[1])
    assert (await say(at, bearer("ada"), make_answer(view))).status_code == 200
    listed = [one["actionId"] for one in await list_pending(at, "ada")]
    assert listed == [asked[2], asked[0]]


@pytest.mark.requirement("CHN-6")
@pytest.mark.usefixtures("awaited_relays")
async def test_the_inbox_snapshot_contains_a_new_approval(rig: Rig) -> None:
    at = await start(rig)
    _, action = await open_question(at)
    found = await at.http.get("/v1/streams/inbox/snapshot", headers=bearer("ada"))
    assert found.status_code == 200, found.text
    assert action in found.text


@pytest.mark.requirement("CHN-6")
@pytest.mark.usefixtures("awaited_relays")
async def test_votes_of_a_device_revoked_at_once_are_withdrawn(rig: Rig) -> None:
    at = await start(rig, policy={"approvers": TIERS})
    phone = PairedDevice(at.http)
    await phone.pair("ada-key")
    _, action = await open_question(at, "high")
    view = await read(at, "ada", action)
    voted = await say(at, phone.headers, sign_decision(phone, make_answer(view)))
    assert voted.status_code == 202, voted.text
    gone = await at.http.delete(f"/v1/devices/{phone.device_id}", headers=bearer("ada"))
    assert gone.json()["withdrawn"] == 1
    assert "votes" not in await read(at, "ada", action)


@pytest.mark.requirement("CHN-6")
@pytest.mark.usefixtures("awaited_relays")
async def test_a_new_approval_is_withdrawn_from_a_caller_that_loses_its_scopes(
    rig: Rig,
) -> None:
    at = await start(rig)
    _, action = await open_question(at)
    lists = at.gateway.parts.permissions.question_lists
    found = await lists.find_withdrawn(WHO, replace(WHO, scopes=frozenset()))
    assert found == [(action, "scope")]


@pytest.mark.requirement("CHN-6")
@pytest.mark.usefixtures("first_relays")
async def test_a_new_approval_is_listed_at_once_when_another_instance_relays_it(rig: Rig) -> None:
    relaying, other = await start(rig), await start(rig)
    await own_everything(relaying)
    _, action = await open_question(other)
    assert [one["actionId"] for one in await list_pending(other, "ada")] == [action]


@pytest.mark.requirement("CHN-6")
@pytest.mark.usefixtures("first_relays")
@pytest.mark.parametrize("shown_as", ["task", "question", "stream"])
async def test_an_instance_lists_an_approval_of_another_once_it_has_shown_it(
    rig: Rig, shown_as: str, awaited_relays: list[Shard]
) -> None:
    relaying, other = await start(rig), await start(rig)
    await own_everything(relaying)
    match shown_as:
        case "task":
            task, action = await open_question(other)
            await relaying.call("ada-key", "GetTask", {"id": task})
        case "question":
            _, action = await open_question(other)
            await read(relaying, "ada", action)
        case _:
            action = await follow_to_question(relaying, await send(other))
    assert [one["actionId"] for one in await list_pending(relaying, "ada")] == [action]
    assert len(awaited_relays) == 1


@pytest.mark.requirement("CHN-6")
async def test_a_list_does_not_wait_for_a_stopped_relay(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never_pass_on(_relay: Relay, _shard: Shard) -> float:
        await asyncio.Event().wait()
        return 0.0

    monkeypatch.setattr(Relay, "pass_on", never_pass_on)
    monkeypatch.setattr("passerelle.runtime.records.inbox_arrivals.WAIT_S", 0.05)
    at = await start(rig)
    await open_question(at)
    assert await list_pending(at, "ada") == []


async def own_everything(keeper: Instance) -> None:
    await wait_until(
        lambda: len(keeper.gateway.duties.keeper.duties) == len(ALL_SHARDS),
        30,
        "the duties of all shards are with one",
    )


async def send(at: Instance) -> TurnAccepted:
    """Sends a message that makes the agent ask."""
    parts: list[Json] = [{"text": asks()}]
    message: JsonObject = {"messageId": "m-ask", "role": "ROLE_USER", "parts": parts}
    command = SubmitTurn("echo", message, "a2a", "stream")
    return cast("TurnAccepted", await at.gateway.parts.service.execute(WHO, command, None))


async def follow_to_question(at: Instance, accepted: TurnAccepted) -> str:
    """Follows a turn until the approval is shown; returns its action id."""
    service = at.gateway.parts.service
    async with service.follow(WHO, accepted) as followed:
        async for frame in followed.frames:
            if b"INPUT_REQUIRED" in (await frame.load()).data:
                break
    return await find_question(at, accepted.task_id)
