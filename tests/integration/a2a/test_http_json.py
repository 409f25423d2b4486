"""The HTTP+JSON binding: the six operations and the content types of their responses."""

from __future__ import annotations

import pytest

from tests.integration.a2a.rig import Rig

pytestmark = pytest.mark.anyio
A2A = "application/a2a+json"


@pytest.mark.requirement("LT-1", "LT-5")
async def test_the_operations_answer_bare_objects(rig: Rig) -> None:
    sent = await rig.http.post("/agents/echo/message:send", json=rig.message("ask which?"))
    task = sent.json()["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    found = await rig.http.get(f"/agents/echo/tasks/{task['id']}", params={"historyLength": 0})
    assert found.json() == {name: task[name] for name in task if name != "history"}
    page = (await rig.http.get("/agents/echo/tasks", params={"pageSize": "100"})).json()
    assert [item["id"] for item in page["tasks"]] == [task["id"]]
    assert (page["nextPageToken"], page["pageSize"], page["totalSize"]) == ("", 100, 1)
    cancelled = await rig.http.post(f"/agents/echo/tasks/{task['id']}:cancel")
    assert (cancelled.status_code, cancelled.json()["id"]) == (200, task["id"])


async def test_bare_message_is_answered_as_a_message(rig: Rig) -> None:
    sent = await rig.http.post("/agents/echo/message:send", json=rig.message("message hi"))
    assert set(sent.json()) == {"message"}


async def test_pages_hold_every_task_once_newest_first(rig: Rig) -> None:
    made = [(await rig.send("hello", contextId="c"))["id"] for _ in range(5)]
    for query in ({}, {"contextId": "c"}):
        seen: list[str] = []
        token = ""
        while True:
            asked = {"pageSize": "2", "pageToken": token, **query}
            page = (await rig.http.get("/agents/echo/tasks", params=asked)).json()
            seen += [task["id"] for task in page["tasks"]]
            token = page["nextPageToken"]
            if not token:
                break
        assert sorted(seen) == sorted(made)
        times = [(await rig.call("GetTask", {"id": one}))["status"]["timestamp"] for one in seen]
        assert times == sorted(times, reverse=True)


async def test_list_applies_filters_and_omits_artifacts_by_default(rig: Rig) -> None:
    done, waiting = await rig.send("hello"), await rig.send("ask which?")
    for state, expected in (("COMPLETED", done), ("INPUT_REQUIRED", waiting)):
        query = {"status": f"TASK_STATE_{state}"}
        page = (await rig.http.get("/agents/echo/tasks", params=query)).json()
        assert [task["id"] for task in page["tasks"]] == [expected["id"]]
        assert all("artifacts" not in task for task in page["tasks"])
    query = {"includeArtifacts": "true", "status": "TASK_STATE_COMPLETED"}
    page = (await rig.http.get("/agents/echo/tasks", params=query)).json()
    assert page["tasks"][0]["artifacts"] == done["artifacts"]
    unknown = (await rig.http.get("/agents/echo/tasks", params={"contextId": "nowhere"})).json()
    assert unknown == {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}


@pytest.mark.parametrize(
    ("sent", "accept", "answered"),
    [
        ("application/json", "*/*", "application/json"),
        ("application/json; charset=utf-8", A2A, "application/json"),
        (A2A, "application/json", A2A),
        (None, "application/json", "application/json"),
        (None, "*/*", A2A),
        (None, f"application/json, {A2A}", A2A),
    ],
)
async def test_response_has_the_request_content_type_or_an_accepted_one(
    rig: Rig, sent: str | None, accept: str, answered: str
) -> None:
    headers = {"Accept": accept} | ({"Content-Type": sent} if sent else {})
    response = await rig.http.get("/agents/echo/tasks", headers=headers)
    assert response.headers["content-type"] == answered


async def test_both_bindings_show_the_same_task(rig: Rig) -> None:
    task = await rig.send("chunks 3")
    assert (await rig.http.get(f"/agents/echo/tasks/{task['id']}")).json() == task
