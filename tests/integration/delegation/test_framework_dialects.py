"""A peer asks in its framework's own form, a person decides, and the peer reads exactly what it waits for."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Final, cast

import pytest

from passerelle.core.json import JsonObject
from passerelle.core.status import Status
from tests.support.house import House
from tests.support.scripted_tasks import Script, Turn

pytestmark = pytest.mark.anyio

VECTORS: Final = [
    vector
    for vector in cast(
        "list[JsonObject]",
        json.loads((Path(__file__).parents[2] / "vectors" / "dialects.json").read_text("utf-8")),
    )
    if len(cast("list[object]", vector["asks"])) == 1
]


def play(vector: JsonObject) -> Script:
    """A peer whose task waits as the recorded one does, and completes with any answer."""
    recorded = cast("JsonObject", vector["task"])

    async def ask(turn: Turn) -> None:
        task = await turn.open()
        for artifact in cast("list[JsonObject]", recorded.get("artifacts", [])):
            parts = cast("list[object]", artifact["parts"])
            task.artifact(
                deepcopy(parts),  # type: ignore[arg-type]  # as recorded
                artifact_id=str(artifact["artifactId"]),
                name=str(artifact["name"]),
            )
        status = deepcopy(cast("JsonObject", recorded["status"])) | {
            "timestamp": "2026-01-01T00:00:09Z"
        }
        task.record["status"] = status
        update: JsonObject = {"taskId": task.id, "contextId": task.context_id, "status": status}
        task.tell({"statusUpdate": update})

    return ask


@pytest.mark.requirement("EVC-10", "CMD-14")
@pytest.mark.parametrize("decided", ["yes", "no"])
@pytest.mark.parametrize(
    "vector",
    [pytest.param(vector, id=f"{vector['dialect']}: {vector['says']}") for vector in VECTORS],
)
async def test_decision_reaches_the_peer_in_its_own_form(
    house: House, vector: JsonObject, decided: str
) -> None:
    if decided not in vector:
        decided = "words" if "words" in vector else "no"
    house.peer.next(play(vector))
    accepted, _ = await house.talk("go")
    view = await house.question(accepted)
    [asked] = cast("list[JsonObject]", vector["asks"])
    offered = [str(one["optionId"]) for one in cast("list[JsonObject]", view["options"])]
    assert offered == asked["options"]
    wanted = cast("JsonObject | None", vector[decided])
    if wanted is None:
        await house.respond(view, option_id="cancel")
        await house.until(accepted, Status.CANCELLED)
        assert len(house.peer.messages) == 1
        return
    content = {"text": "blue"} if decided == "words" else None
    option = {"yes": "approve", "no": "reject", "words": "reply"}[decided]
    await house.respond(view, option_id=option, content=content)
    await house.until(accepted, Status.COMPLETED)
    assert len(house.peer.messages) == 2
    sent = house.peer.messages[1]
    assert sent["parts"] == wanted["parts"]
    assert sent.get("metadata") == wanted.get("metadata")
