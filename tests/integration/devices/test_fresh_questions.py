"""A question is listed as soon as its caller is told of it, before anything was carried to an inbox (CHN-6)."""

import asyncio
from typing import cast

import pytest

from passerelle.core.json import JsonObject
from passerelle.gateway.duties.relay import Relay
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import (
    ADA,
    BOB,
    asks,
    bearer,
    list_pending,
    make_answer,
    read,
    say,
)


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is carried to any inbox."""

    async def stand(_relay: Relay, _shard: object) -> float:
        await asyncio.Event().wait()
        return 0.0

    monkeypatch.setattr(Relay, "pass_on", stand)


async def ask(at: Instance, who: str, number: int) -> str:
    """The id of the question, as its caller is told of it."""
    answered = await at.send(f"{who}-key", asks(action=f"act_peer_{number}"))
    task = cast("JsonObject", answered.json()["result"])["task"]
    status = cast("JsonObject", cast("JsonObject", task)["status"])
    assert status["state"] == "TASK_STATE_INPUT_REQUIRED"
    found = await at.http.get(f"/v1/tasks/{cast('JsonObject', task)['id']}", headers=bearer(who))
    (action,) = found.json()["openActions"]
    return str(action)


@pytest.mark.requirement("CHN-6")
@pytest.mark.usefixtures("standing")
async def test_own_question_is_listed_at_once_and_only_to_whom_it_concerns(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB])
    asked = [await ask(at, "ada", number) for number in range(3)]
    listed = [one["actionId"] for one in await list_pending(at, "ada")]
    assert listed == asked[::-1]
    assert await list_pending(at, "bob") == []
    first = await at.http.get("/v1/approvals?limit=2", headers=bearer("ada"))
    page = first.json()
    rest = await at.http.get(
        "/v1/approvals", params={"pageToken": page["nextPageToken"]}, headers=bearer("ada")
    )
    assert [one["actionId"] for one in rest.json()["pending"]] == asked[:1]
    view = await read(at, "ada", asked[1])
    assert (await say(at, bearer("ada"), make_answer(view))).status_code == 200
    listed = [one["actionId"] for one in await list_pending(at, "ada")]
    assert listed == [asked[2], asked[0]]
