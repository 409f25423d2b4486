"""Streams: their first and last items, and that every reader gets the same (A2A 1.0 sections 3.1.2, 3.1.6, 3.5.2)."""

from __future__ import annotations

import asyncio

import pytest

from tests.conformance import errors
from tests.conformance.callers import GRPC, Caller, Json, Stream, make_params
from tests.conformance.shapes import COMPLETED, TERMINAL, check_item, find_state, name_items
from tests.conformance.site import Site, write
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def begin(caller: Caller) -> tuple[Json, str]:
    """A task that works until it is released, and the id of its message."""
    message = write("psl-hold")
    return await caller.make_task(message, returnImmediately=True), str(message["messageId"])


@pytest.mark.kit("CORE-STREAM-001", "JSONRPC-SSE-001", "HTTP_JSON-SSE-001", "GRPC-ERR-003")
async def test_stream_begins_as_one_and_its_items_are_stream_responses(caller: Caller) -> None:
    params = make_params(write("tck-stream-001"))
    async with caller.stream("SendStreamingMessage", params) as stream:
        assert caller.binding == GRPC or stream.media_type.startswith("text/event-stream")
        items = await stream.collect()
    for item in items:
        check_item(item)
    said = [item["artifactUpdate"] for item in items if "artifactUpdate" in item]
    assert said[0]["artifact"]["parts"] == [{"text": "Stream hello from TCK"}]


@pytest.mark.kit("CORE-STREAM-002")
async def test_message_is_the_only_item_of_its_stream(caller: Caller) -> None:
    items = await caller.collect(write("tck-message-response"))
    assert name_items(items) == ["message"]
    check_item(items[0])


@pytest.mark.kit("CORE-STREAM-002")
async def test_task_that_is_done_at_once_closes_its_stream(caller: Caller) -> None:
    items = await caller.collect(write("tck-stream-002"))
    assert name_items(items)[0] == "task"
    assert find_state(items[-1]) == COMPLETED


@pytest.mark.kit("CORE-STREAM-003", "STREAM-ORDER-001")
async def test_stream_begins_with_the_task_keeps_the_order_and_ends_with_the_final_state(
    caller: Caller,
) -> None:
    for prefix in ("tck-stream-003", "tck-stream-ordering-001", "tck-stream-artifact-file"):
        items = await caller.collect(write(prefix))
        assert name_items(items) == ["task", "statusUpdate", "artifactUpdate", "statusUpdate"]
        assert [find_state(item) for item in items[1::2]] == ["TASK_STATE_WORKING", COMPLETED]
        ids = {(value["taskId"], value["contextId"]) for one in items[1:] for value in one.values()}
        assert ids == {(items[0]["task"]["id"], items[0]["task"]["contextId"])}


@pytest.mark.kit("STREAM-ORDER-001")
async def test_chunks_come_in_order_and_make_one_artifact(caller: Caller) -> None:
    items = await caller.collect(write("tck-stream-artifact-chunked"))
    chunks = [item["artifactUpdate"] for item in items if "artifactUpdate" in item]
    assert [chunk["artifact"]["parts"][0]["text"] for chunk in chunks] == ["chunk-1 ", "chunk-2"]
    assert [bool(chunk.get("append")) for chunk in chunks] == [False, True]
    assert [bool(chunk.get("lastChunk")) for chunk in chunks] == [False, True]
    task = await caller.read_task(items[0]["task"]["id"])
    assert len(task["artifacts"]) == 1
    assert "".join(part["text"] for part in task["artifacts"][0]["parts"]) == "chunk-1 chunk-2"


@pytest.mark.kit("STREAM-SUB-001", "STREAM-SUB-002")
async def test_subscription_begins_with_the_task_and_ends_with_it(
    caller: Caller, site: Site
) -> None:
    task, message_id = await begin(caller)
    async with caller.stream("SubscribeToTask", {"id": task["id"]}) as stream:
        first = await anext(stream)
        assert first["task"]["id"] == task["id"]
        check_item(first)
        await site.agent.release(message_id, 2)
        rest = await stream.collect()
    assert "task" not in name_items(rest)
    assert find_state(rest[-1]) == COMPLETED
    assert sum(find_state(item) in TERMINAL for item in rest) == 1


@pytest.mark.kit("STREAM-SUB-002")
async def test_subscription_stays_open_while_the_task_waits(caller: Caller, site: Site) -> None:
    task = await caller.make_task(write("tck-input-required"))
    async with caller.stream("SubscribeToTask", {"id": task["id"]}) as stream:
        assert find_state(await anext(stream)) == "TASK_STATE_INPUT_REQUIRED"
        await caller.make_task(write("tck-complete-task", taskId=task["id"]))
        assert find_state((await stream.collect())[-1]) == COMPLETED


async def test_stream_of_a_message_ends_where_the_task_waits_for_its_caller(caller: Caller) -> None:
    items = await caller.collect(write("tck-input-required"))
    assert find_state(items[-1]) == "TASK_STATE_INPUT_REQUIRED"
    task_id = items[0]["task"]["id"]
    answered = await caller.collect(write("tck-complete-task", taskId=task_id))
    assert find_state(answered[-1]) == COMPLETED


@pytest.mark.kit("STREAM-SUB-003")
async def test_subscription_to_an_ended_task_is_refused(caller: Caller) -> None:
    task = await caller.make_task(write("tck-complete-task"))
    async with caller.stream("SubscribeToTask", {"id": task["id"]}) as stream:
        assert stream.refusal is not None
        errors.UNSUPPORTED.check(stream.refusal, caller.binding)


@pytest.mark.kit("STREAM-ORDER-002", "STREAM-ORDER-003")
async def test_every_reader_gets_the_same_items_in_the_same_order(
    caller: Caller, site: Site
) -> None:
    task, message_id = await begin(caller)
    readers: list[list[Json]] = [[], [], []]

    async def read(into: list[Json]) -> None:
        async with caller.stream("SubscribeToTask", {"id": task["id"]}) as stream:
            into.append(await anext(stream))
            into += await stream.collect()

    reading = [asyncio.create_task(read(into)) for into in readers]
    await wait_until(lambda: all(readers), 10, "all of them have the task")
    await site.agent.release(message_id, 2)
    await asyncio.gather(*reading)
    # A reader that subscribed earlier may have seen WORKING as an update, a later one as the state of the Task.
    updates = [
        [item for item in one if find_state(item) != "TASK_STATE_WORKING"] for one in readers
    ]
    assert name_items(updates[0])[-2:] == ["artifactUpdate", "statusUpdate"]
    assert [one[-2:] for one in updates[1:]] == [updates[0][-2:]] * 2


@pytest.mark.kit("STREAM-ORDER-004")
async def test_reader_that_disconnects_ends_no_other_stream(caller: Caller, site: Site) -> None:
    task, message_id = await begin(caller)
    params = {"id": task["id"]}
    async with caller.stream("SubscribeToTask", params) as stays:
        await anext(stays)
        async with caller.stream("SubscribeToTask", params) as leaves:
            await anext(leaves)
        await site.agent.release(message_id, 2)
        assert find_state((await stays.collect())[-1]) == COMPLETED


@pytest.mark.kit("JSONRPC-SSE-001", "HTTP_JSON-SSE-001")
async def test_event_is_one_line_of_data(rpc: Caller, rest: Caller) -> None:
    for caller in (rpc, rest):
        async with caller.stream(
            "SendStreamingMessage", make_params(write("tck-stream-001"))
        ) as stream:
            items = await stream.collect()
        assert len(stream.raw) == len(items)
        assert _is_wrapped(stream) is (caller is rpc)


def _is_wrapped(stream: Stream) -> bool:
    return all(
        event.startswith(b'{"jsonrpc"') or b'"jsonrpc":"2.0"' in event for event in stream.raw
    )
