"""Agents that leave the id of an artifact out, as some that are written by hand do: its content reaches the caller."""

from __future__ import annotations

import pytest

from passerelle.core.wire.json import Json, JsonObject
from tests.integration.a2a.rig import Rig
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


async def tell_unnamed(turn: Turn, *pieces: tuple[str, bool], **members: Json) -> None:
    """Pieces of an artifact without an id: the text, and whether it is appended."""
    task = await turn.open()
    known: list[Json] = []
    for text, appends in pieces:
        known = [*known, {"text": text}] if appends else [{"text": text}]
        piece: JsonObject = {**members, "parts": [{"text": text}]}
        task.record["artifacts"] = [{**members, "parts": known}]
        event: JsonObject = {"taskId": task.id, "contextId": task.context_id, "artifact": piece}
        await turn.tell({"artifactUpdate": {**event, "append": appends}})
    await turn.status("COMPLETED")


@pytest.mark.parametrize("caller", ["unary", "stream"])
@pytest.mark.parametrize("members", [{}, {"artifactId": ""}, {"name": "plan"}])
@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ([("one", False)], ["one"]),
        ([("one", False), ("two", True)], ["one", "two"]),
        ([("one", True), ("two", True)], ["one", "two"]),
        ([("one", False), ("two", False)], ["two"]),
    ],
)
@pytest.mark.requirement("A2A-10")
async def test_its_content_is_told_and_kept(
    rig: Rig, caller: str, members: JsonObject, pieces: list[tuple[str, bool]], texts: list[str]
) -> None:
    async def story(turn: Turn) -> None:
        await tell_unnamed(turn, *pieces, **members)

    rig.peer.next(story)
    if caller == "unary":
        task = await rig.send("go")
    else:
        frames = [
            one.result for one in await rig.collect("SendStreamingMessage", rig.message("go"))
        ]
        told = [one["artifactUpdate"] for one in frames if "artifactUpdate" in one]
        assert [one["artifact"]["parts"] for one in told] == [
            [{"text": text}] for text, _ in pieces
        ]
        task = await rig.call("GetTask", {"id": frames[0]["task"]["id"]})
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    (artifact,) = task["artifacts"]
    assert artifact["parts"] == [{"text": text} for text in texts]
    assert artifact.get("name") == members.get("name")
