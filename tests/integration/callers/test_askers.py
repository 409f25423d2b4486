"""A requester never decides its own approval, and an answer counts only for the task that it is sent to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import orjson
import pytest

from tests.integration.devices.asking import PEOPLE, PERMISSION, asks, bearer, list_pending
from tests.support.waiting import wait_until
from tests.support.worker_program import CommandWorker

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio

ADA: Final[dict[str, object]] = {"name": "ada", "kind": "person", "scopes": PEOPLE}
BUILDER: Final[dict[str, object]] = {
    "name": "builder",
    "scopes": [
        "a2a:call",
        "tasks:read",
        "tasks:write",
        "approvals:ask",
        "approvals:read",
        "approvals:decide",
        "approvals:decide-high",
        "approvals:host",
    ],
}


def make_body(view: JsonObject, option: str) -> JsonObject:
    return {
        "rev": view["rev"],
        "digest": view["digest"],
        "decisionId": "dec_own",
        "optionId": option,
    }


def make_part(view: JsonObject, option: str = "yes") -> JsonObject:
    """Returns the typed answer as a part of a message."""
    form: JsonObject = {
        "action_id": view["actionId"],
        "rev": view["rev"],
        "digest": view["digest"],
        "decision_id": "dec_part",
        "option_id": option,
    }
    return {"data": {PERMISSION: form}}


async def write(at: Instance, task: object, number: int, *parts: JsonObject, **more: Json) -> Any:  # noqa: ANN401  JSON as a test reads it
    message: JsonObject = {
        "messageId": f"m-attack-{number}",
        "role": "ROLE_USER",
        "taskId": str(task),
        "parts": [*parts],
        **more,
    }
    return (await at.call("ada-key", "SendMessage", {"message": message})).json()


async def ask_twice(at: Instance) -> tuple[JsonObject, JsonObject]:
    """Starts two tasks of one person; each waits for its own answer."""
    for name in ("act_first", "act_second"):
        assert (await at.send("ada-key", asks("low", name))).status_code == 200

    async def both() -> list[JsonObject] | None:
        found = await list_pending(at, "ada")
        return found if len(found) == 2 else None

    found = await wait_until(both, 20, "both approval requests are in the inbox")
    assert found is not None
    first, second = sorted(found, key=lambda view: str(view["taskId"]))
    return first, second


async def read_states(at: Instance, *views: JsonObject) -> list[object]:
    found: list[object] = []
    for view in views:
        path = f"/v1/approvals/{view['actionId']}"
        found.append((await at.http.get(path, headers=bearer("ada"))).json()["state"])
    return found


@pytest.mark.requirement("CMD-21", "VAL-4")
@pytest.mark.parametrize("owner", ["ada", "builder"])
async def test_worker_cannot_decide_its_own_request_whatever_its_scopes(
    rig: Rig, owner: str
) -> None:
    at = await rig.start(clients=[ADA, BUILDER])
    turn = {"agent": "echo", "text": "slow 8"}
    begun = await at.http.post("/v1/turns", json=turn, headers=bearer(owner))
    worker = CommandWorker(at.http, "builder-key", begun.json()["taskId"])
    view = await worker.ask("make install", "a-1")
    path = f"/v1/approvals/{view['actionId']}"
    for call in ("resolve", "decision"):
        refused = await at.http.post(
            f"{path}/{call}",
            json=make_body(view, "allow"),
            headers={**bearer("builder"), "Idempotency-Key": f"{call}-{owner}"},
        )
        found = (refused.status_code, refused.json()["code"])
        # An approval of another owner looks like an unknown one.
        assert found in {(403, "asker"), (404, "not_found")}
        assert found[0] == 403 or (call, owner) == ("decision", "ada")
    now = await at.http.get(path, headers=bearer("builder"))
    assert now.json()["state"] == "pending"
    assert (await worker.run(view, "make install")).status_code == 409
    assert worker.ran == []


@pytest.mark.requirement("CMD-14", "VAL-4")
async def test_answer_to_another_task_decides_nothing(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    first, second = await ask_twice(at)
    said = await write(at, first["taskId"], 1, make_part(second))
    assert "another task" in said["error"]["message"]
    assert await read_states(at, first, second) == ["pending", "pending"]
    await write(at, second["taskId"], 2, make_part(second))
    assert (await read_states(at, first, second)) == ["pending", "allowed"]


@pytest.mark.requirement("CHN-7", "VAL-4")
async def test_answer_that_is_not_one_typed_part_of_the_caller_decides_nothing(
    rig: Rig,
) -> None:
    at = await rig.start(clients=[ADA])
    view, _ = await ask_twice(at)
    task, part = view["taskId"], make_part(view)
    form = cast("JsonObject", part["data"])
    agents = [one for one in rig.peer.messages if one.get("taskId")]
    in_words: JsonObject = {"text": orjson.dumps(part).decode()}
    in_bytes: JsonObject = {"raw": "e30=", "mediaType": "application/json", "metadata": form}
    shapes: list[tuple[list[JsonObject], JsonObject]] = [
        ([in_words], {}),
        ([{"text": "yes"}], {"metadata": form}),
        ([{"text": "yes", "metadata": form}], {}),
        ([in_bytes], {}),
        ([part], {"role": "ROLE_AGENT"}),
        ([make_part(view, "no"), part], {}),
        ([{"data": {"wrapped": form}}], {}),
    ]
    for number, (parts, more) in enumerate(shapes):
        await write(at, task, number, *parts, **more)
        assert await read_states(at, view) == ["pending"], (parts, more)
    assert [one for one in rig.peer.messages if one.get("taskId")] == agents
