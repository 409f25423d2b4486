"""Closed approvals are listed by outcome, page by page, to those who could see them while open."""

from __future__ import annotations

from typing import cast

import pytest

from passerelle.core.ids import TaskId, expose
from passerelle.core.wire.json import JsonObject
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import (
    ADA,
    BOB,
    CLEO,
    ask,
    bearer,
    list_pending,
    make_answer,
    say,
)
from tests.integration.devices.test_audiences import PAIRED
from tests.support.paired_device import PairedDevice, sign_decision
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def list_closed(
    at: Instance, headers: dict[str, str], state: str = "closed", **params: str
) -> tuple[list[JsonObject], str]:
    answer = await at.http.get("/v1/approvals", params={"state": state, **params}, headers=headers)
    assert answer.status_code == 200, answer.text
    page = answer.json()
    return cast("list[JsonObject]", page["closed"]), page["nextPageToken"]


async def find(at: Instance, state: str, **params: str) -> list[str]:
    return [
        str(one["actionId"]) for one in (await list_closed(at, bearer("ada"), state, **params))[0]
    ]


async def close(at: Instance, view: JsonObject, option: str) -> str:
    """Answers an approval, and waits until it is listed as closed."""
    assert (await say(at, bearer("ada"), make_answer(view, option))).status_code == 200
    action = str(view["actionId"])

    async def is_listed() -> bool:
        return action in await find(at, "closed")

    await wait_until(is_listed, 20, "the approval is listed as closed")
    return action


async def test_closed_approvals_are_listed_by_outcome_newest_first(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB])
    views = [await ask(at, risk) for risk in ("low", "medium", "high", "low")]
    assert await find(at, "closed") == []
    # In another order than they were opened.
    no = await close(at, views[2], "no")
    yes = await close(at, views[0], "yes")
    withdrawn = str(views[1]["actionId"])
    task = expose(TaskId(str(views[1]["taskId"]).partition(".")[0]), 1)
    gone = await at.call("ada-key", "CancelTask", {"id": task})
    assert "error" not in gone.json(), gone.text

    async def is_listed() -> bool:
        return len(await find(at, "closed")) == 3

    await wait_until(is_listed, 20, "all closed approvals are listed")
    assert await find(at, "closed") == [withdrawn, yes, no]
    assert await find(at, "resolved") == [yes, no]
    assert [await find(at, state) for state in ("allowed", "rejected", "cancelled")] == [
        [yes],
        [no],
        [withdrawn],
    ]
    assert [await find(at, state) for state in ("answered", "expired", "superseded")] == [[]] * 3
    assert await find(at, "closed", risk="high") == [no]
    assert await find(at, "closed", taskId=str(views[0]["taskId"])) == [yes]
    (view,) = (await list_closed(at, bearer("ada"), "rejected"))[0]
    assert (view["state"], cast("JsonObject", view["decision"])["decidedBy"]) == ("rejected", "ada")
    assert [one["actionId"] for one in await list_pending(at, "ada")] == [views[3]["actionId"]]
    assert (await list_closed(at, bearer("bob")))[0] == [], "a stranger sees none"
    refused = await at.http.get("/v1/approvals?state=lost", headers=bearer("ada"))
    assert (refused.status_code, refused.json()["field"]) == (400, "state")


async def test_pages_of_closed_approvals_are_consistent_while_others_close(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    views = [await ask(at) for _ in range(6)]
    ended = [
        await close(at, view, option)
        for view, option in zip(views[:5], ("yes", "no", "no", "yes", "yes"), strict=True)
    ]
    first, token = await list_closed(at, bearer("ada"), limit="2")
    assert [one["actionId"] for one in first] == [ended[4], ended[3]]
    await close(at, views[5], "no")
    second, token = await list_closed(at, bearer("ada"), limit="2", pageToken=token)
    assert [one["actionId"] for one in second] == [ended[2], ended[1]]
    third, token = await list_closed(at, bearer("ada"), limit="2", pageToken=token)
    assert ([one["actionId"] for one in third], token) == ([ended[0]], "")


async def test_a_page_scans_a_limited_number_and_returns_a_token(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("passerelle.permission_bridge.answers.question_lists._MOST_LOOKED", 2)
    monkeypatch.setattr("passerelle.permission_bridge.answers.question_lists._AT_ONCE", 2)
    at = await rig.start(clients=[ADA])
    wanted = await ask(at, "high")
    ended = [await close(at, wanted, "no")]
    ended += [await close(at, await ask(at), "no") for _ in range(3)]
    page, token = await list_closed(at, bearer("ada"), risk="high")
    assert page == []
    page, token = await list_closed(at, bearer("ada"), risk="high", pageToken=token)
    assert ([one["actionId"] for one in page], token) == (ended[:1], "")


@pytest.mark.requirement("CHN-8")
async def test_closed_approval_is_visible_only_to_those_who_could_see_it_while_open(
    rig: Rig,
) -> None:
    at = await rig.start(clients=[ADA, BOB, CLEO], policy={"approvers": PAIRED})
    phone = PairedDevice(at.http)
    await phone.pair("bob-key")
    hidden, shown = await ask(at, "high"), await ask(at, "critical")
    for view in (hidden, shown):
        won = await say(at, phone.headers, sign_decision(phone, make_answer(view)))
        assert won.status_code == 200, won.text
    everything = {str(shown["actionId"]), str(hidden["actionId"])}

    async def names(headers: dict[str, str]) -> set[str]:
        return {str(one["actionId"]) for one in (await list_closed(at, headers))[0]}

    async def are_listed() -> bool:
        return await names(phone.headers) == everything == await names(bearer("ada"))

    await wait_until(are_listed, 20, "a paired device and the owner see both")
    assert await names(bearer("bob")) == {str(shown["actionId"])}, "without a paired device"
    assert await names(bearer("cleo")) == set()
