"""A summary stands for what came up to the end of a turn, and all of that is still there (EVC-13, PRS-5, SNAP-6)."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import cast

import pytest

from passerelle.core.commands import TurnAccepted
from passerelle.core.errors import InvalidInput, NotFound, StoreUnavailable
from passerelle.core.ids import shard_of
from passerelle.core.session.requests import SUMMARY_LENGTH
from passerelle.core.wire.json import Json, JsonObject
from passerelle.delegation.verification.walk import verify_store
from tests.integration.control.test_rollback import go_back, read_thread, read_types, say
from tests.support.control_client import ControlClient
from tests.support.harness import BOB
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio
TEXT = "Two boats were counted; the harbour is closed.\nNext: the third one."


async def sum_up(
    control: ControlClient, to: TurnAccepted, idem: str | None = None, **said: Json
) -> JsonObject:
    given = said or {"text": TEXT}
    return await control.do(
        "compact_thread", idem, threadId=to.thread_id, toTurn=to.turn_id, **given
    )


async def ask(turn: Turn) -> None:
    await turn.status("INPUT_REQUIRED", "which boat?")


@pytest.mark.requirement("EVC-13", "PRS-5", "CMD-30")
async def test_a_summary_stands_for_turns_while_what_is_asked_in_them_stays_open(
    control: ControlClient,
) -> None:
    # That an agent that waits is looked at is a fact as well.
    control.harness.timeouts = replace(
        control.harness.timeouts, parked_poll_s=30.0, parked_poll_max_s=30.0
    )
    one = (await say(control, "echo 1"))[0]
    control.harness.peer.next(ask)
    asked = await control.harness.send("a boat", context_id=one.context_id)
    await control.harness.await_answer(asked)
    before = await control.harness.entries(one.session_id)
    (action,) = (await control.harness.record(asked)).open_actions
    answer = await sum_up(control, asked, "once")
    assert (answer["toTurn"], answer["first"], answer["summarizedBy"]) == (asked.turn_id, 1, "ada")
    assert answer["sha256"] == hashlib.sha256(TEXT.encode()).hexdigest()
    assert answer["stillOpen"] == [asked.facade, action]
    assert await read_types(control, one, before[-1].sequence) == [
        "context.compaction.started",
        "context.compaction.completed",
        "snapshot.updated",
    ]
    assert (await control.harness.entries(one.session_id))[: len(before)] == before
    assert await sum_up(control, asked, "once") == {**answer, "repeated": True}
    assert (await control.do("get_action", actionId=action))["state"] == "pending"
    thread = await control.do("get_thread", threadId=one.thread_id)
    (compacted,) = cast("list[JsonObject]", thread["compactions"])
    assert (compacted["covers"], compacted["boundaryId"]) == (
        answer["covers"],
        answer["boundaryId"],
    )
    await control.harness.cancel(asked)
    assert (await verify_store(control.harness.store)).ok


@pytest.mark.requirement("EVC-13")
async def test_a_summary_that_cannot_be_stored_is_told_and_is_no_boundary(
    control: ControlClient,
) -> None:
    (one,) = await say(control, "echo 1")
    head = len(await control.harness.events(one))
    control.harness.blobs.away = True
    with pytest.raises(StoreUnavailable):
        await sum_up(control, one, "once")
    control.harness.blobs.away = False
    assert await read_types(control, one, head) == [
        "context.compaction.started",
        "context.compaction.failed",
    ]
    assert (await read_thread(control, one.thread_id)).compactions is None
    answer = await sum_up(control, one, "once")
    assert answer["repeated"] is False
    compactions = (await read_thread(control, one.thread_id)).compactions or ()
    assert [one.boundary_id for one in compactions] == [answer["boundaryId"]]


@pytest.mark.requirement("EVC-13")
async def test_words_of_an_agent_are_taken_from_its_artifact(control: ControlClient) -> None:
    one, two = await say(control, "echo 1", "echo boats in the harbour")
    (artifact,) = (await control.harness.record(two)).artifacts
    named: JsonObject = {"taskId": two.facade, "artifactId": artifact.artifact_id}
    answer = await sum_up(control, one, artifact=named)
    assert answer["summarizedBy"] == "echo"
    content = await control.harness.store.blobs.get(shard_of(one.session_id), str(answer["sha256"]))
    assert content is not None
    assert "boats in the harbour" in content.decode()
    streamed = (await say(control, "chunks 3"))[0]
    (artifact,) = (await control.harness.record(streamed)).artifacts
    pieces: JsonObject = {"taskId": streamed.facade, "artifactId": artifact.artifact_id}
    joined = await sum_up(control, streamed, artifact=pieces)
    content = await control.harness.store.blobs.get(
        shard_of(streamed.session_id), str(joined["sha256"])
    )
    assert content is not None
    assert "chunk-1 chunk-2 chunk-3 " in content.decode()
    for wrong in ({**named, "artifactId": "art_x"}, {**named, "taskId": one.facade}):
        with pytest.raises(InvalidInput, match=r"artifact\.artifactId"):
            await sum_up(control, two, artifact=wrong)
    with pytest.raises(NotFound):
        await sum_up(
            control, two, artifact={**named, "taskId": "task_00zzzzzzzzzzzzzzzzzzzzzzzzzz"}
        )


@pytest.mark.requirement("EVC-13", "PRS-5")
async def test_what_is_no_boundary_or_no_summary_is_refused_and_nothing_is_written(
    control: ControlClient,
) -> None:
    one, two = await say(control, "echo 1", "echo 2")
    await sum_up(control, one)
    head = len(await control.harness.events(one))
    for to, said, field in (
        (one, {"text": "again"}, "toTurn"),
        (two, {"text": " \n"}, "text"),
        (two, {"text": "x" * (SUMMARY_LENGTH + 1)}, "text"),
        (two, {"text": "x", "artifact": {"taskId": "t", "artifactId": "a"}}, "text"),
    ):
        with pytest.raises(InvalidInput) as refused:
            await sum_up(control, to, None, **cast("JsonObject", said))
        assert refused.value.field == field
    with pytest.raises(NotFound):
        await control.do(
            "compact_thread", None, BOB, threadId=one.thread_id, toTurn=two.turn_id, text="x"
        )
    assert await read_types(control, one, head) == []
    # A thread that goes back leaves summaries of what it leaves, and none of what it keeps.
    await sum_up(control, two)
    await go_back(control, one)
    compactions = (await read_thread(control, one.thread_id)).compactions or ()
    assert [one.to_turn for one in compactions] == [one.turn_id]
    with pytest.raises(InvalidInput, match=r"toTurn.*rolled back"):
        await sum_up(control, two)
    assert (await verify_store(control.harness.store)).ok


@pytest.mark.requirement("SNAP-6", "PRS-5")
async def test_the_context_of_a_thread_begins_at_its_last_boundary(control: ControlClient) -> None:
    one, two = await say(control, "echo 1", "message 2")
    nothing = await control.do("get_thread_context", threadId=one.thread_id)
    marks = cast("dict[str, JsonObject]", nothing["marks"])
    assert (nothing["first"], nothing["summaries"], marks["summaries"]["state"]) == (
        1,
        [],
        "not_applicable",
    )
    assert len(cast("list[Json]", nothing["selected"])) == 2
    answer = await sum_up(control, two)
    message: JsonObject = {
        **control.harness.message("echo 3"),
        "referenceTaskIds": ["task_of_nobody"],
    }
    three = await control.harness.send("", context_id=one.context_id, message=message)
    await control.harness.await_answer(three)
    four = await control.harness.send("message 4", context_id=one.context_id)
    await control.harness.await_answer(four)
    await control.do("roll_back_thread", threadId=one.thread_id, toTurn=three.turn_id)
    shown = await control.do("get_thread_context", threadId=one.thread_id)
    events = await control.harness.events(one)
    sent = {
        event.fact.scope.turn_id: event.sequence
        for event in events
        if event.type == "turn.submitted"
    }
    assert shown["first"] == cast("int", answer["covers"]) + 1
    assert shown["selected"] == [{"sequence": sent[three.turn_id]}]
    (summary,) = cast("list[JsonObject]", shown["summaries"])
    assert (summary["text"], summary["summarizedBy"], summary["toTurn"]) == (
        TEXT,
        "ada",
        two.turn_id,
    )
    (warning,) = cast("list[JsonObject]", shown["warnings"])
    assert (warning["code"], warning["taskId"]) == ("reference_unknown", three.task_id)
    assert shown["missing"] == [
        f"turn {four.turn_id} is rolled back",
        "task task_of_nobody was not sent to echo: missing",
    ]
    window = await control.do("get_session", sessionId=one.session_id, after=answer["covers"])
    history = cast("JsonObject", window["history"])
    assert (history["first"], "before" in history) == (shown["first"], False)
    with pytest.raises(NotFound):
        await control.do("get_thread_context", None, BOB, threadId=one.thread_id)
