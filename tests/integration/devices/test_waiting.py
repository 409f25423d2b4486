"""Long polling: a reader without a channel waits for the outcome of an approval and gets it at once."""

import asyncio
from typing import cast

import httpx

from passerelle.core.wire.json import JsonObject
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import ADA, BOB, ask, bearer, make_answer, say
from tests.support.waiting import wait_until

_LONG_S = 25


def wait_for(
    at: Instance, action: object, who: str = "ada", **params: int
) -> asyncio.Task[httpx.Response]:
    """Starts a long poll."""
    asked = {"wait": _LONG_S, **params}
    reading = at.http.get(
        f"/v1/approvals/{action}", params=asked, headers=bearer(who), timeout=2 * _LONG_S
    )
    return asyncio.create_task(reading)


async def until_waiting() -> None:
    async def is_waiting() -> bool:
        return any(task.get_name() == "question.wait" for task in asyncio.all_tasks())

    await wait_until(is_waiting, 10, "the reader waits for the question")


async def test_a_waiting_reader_is_answered_when_the_approval_is_decided(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB])
    view = await ask(at)
    reading = wait_for(at, view["actionId"])
    await until_waiting()
    assert (await say(at, bearer("ada"), make_answer(view))).status_code == 200
    answer = await reading
    assert answer.status_code == 200, answer.text
    read = cast("JsonObject", answer.json())
    assert (read["state"], answer.headers["ETag"]) == ("allowed", f'"{read["rev"]}"')
    assert answer.elapsed.total_seconds() < _LONG_S


async def test_a_closed_or_changed_approval_is_answered_without_a_wait(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB])
    view = await ask(at)
    answer = await wait_for(at, view["actionId"], rev=7)
    assert answer.json()["state"] == "pending", "it is at another revision than the reader knows"
    assert (await say(at, bearer("ada"), make_answer(view, "no"))).status_code == 200
    answer = await wait_for(at, view["actionId"])
    assert answer.json()["state"] == "rejected"
    assert answer.elapsed.total_seconds() < _LONG_S


async def test_a_wait_that_times_out_decides_nothing_and_a_stranger_cannot_wait(
    rig: Rig,
) -> None:
    at = await rig.start(clients=[ADA, BOB])
    view = await ask(at)
    answer = await wait_for(at, view["actionId"], wait=1)
    assert (answer.status_code, answer.json()["state"]) == (200, "pending")
    assert (await wait_for(at, view["actionId"], "bob")).status_code == 404
    assert (await wait_for(at, view["actionId"], wait=26)).status_code == 400


async def test_a_stopping_gateway_answers_its_waiting_readers(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB])
    view = await ask(at)
    reading = wait_for(at, view["actionId"])
    await until_waiting()
    at.gateway.parts.permissions.question_waits.drain()
    answer = await reading
    assert answer.json()["state"] == "pending"
    assert answer.elapsed.total_seconds() < _LONG_S


async def test_list_of_approvals_is_filtered_by_kind_risk_and_task(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB])
    medium, high = await ask(at), await ask(at, "high")

    async def find(**params: str) -> list[object]:
        answer = await at.http.get("/v1/approvals", params=params, headers=bearer("ada"))
        assert answer.status_code == 200, answer.text
        return [one["actionId"] for one in answer.json()["pending"]]

    both = [high["actionId"], medium["actionId"]]
    assert await find() == await find(kind="permission") == await find(risk="low") == both
    assert await find(risk="high") == await find(taskId=str(high["taskId"])) == both[:1]
    assert await find(kind="input") == await find(taskId="task_none") == []
    assert await find(risk="medium", limit="1") == both[:1]
    refused = await at.http.get("/v1/approvals?risk=grave", headers=bearer("ada"))
    assert (refused.status_code, refused.json()["field"]) == (400, "risk")


async def test_pages_of_approvals_are_stable_while_others_open_and_close(
    rig: Rig,
) -> None:
    at = await rig.start(clients=[ADA, BOB])
    views = [await ask(at, risk) for risk in ("low", "high", "low", "high", "low")]
    oldest_first = [str(view["actionId"]) for view in views]

    async def read(**params: str) -> tuple[list[str], str]:
        answer = await at.http.get("/v1/approvals", params=params, headers=bearer("ada"))
        assert answer.status_code == 200, answer.text
        page = answer.json()
        return [one["actionId"] for one in page["pending"]], page["nextPageToken"]

    whole, token = await read()
    assert (whole, token) == (oldest_first[::-1], "")
    first, token = await read(limit="2")
    assert first == whole[:2]
    # One that was shown is decided, one that was not shown is, and another opens.
    for view in (views[4], views[2]):
        assert (await say(at, bearer("ada"), make_answer(view))).status_code == 200
    late = await ask(at)
    second, token = await read(limit="2", pageToken=token)
    assert (second, token) == ([whole[3], whole[4]], "")
    high, token = await read(limit="1", risk="high")
    assert high == [whole[1]]
    high, token = await read(limit="1", risk="high", pageToken=token)
    assert high == [whole[3]]
    assert (await read(limit="1", risk="high", pageToken=token))[0] == []
    newest, _ = await read(limit="1")
    assert newest == [late["actionId"]]
    for wrong in ("!", "bm9wZQ", "x" * 513):
        refused = await at.http.get(
            "/v1/approvals", params={"pageToken": wrong}, headers=bearer("ada")
        )
        assert (refused.status_code, refused.json()["field"]) == (400, "pageToken")
    stranger = await at.http.get("/v1/approvals", headers=bearer("bob"))
    assert stranger.json() == {"pending": [], "nextPageToken": ""}
