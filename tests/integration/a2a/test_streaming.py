"""Streams: the form of events, who receives which, and the effect of a disconnect."""

from __future__ import annotations

import asyncio
import signal

import orjson
import pytest

from passerelle.a2a_mapping.extensions import RESUME
from passerelle.protocol.cursor import parse_cursor
from passerelle.runtime.limits.gate import SEATS
from tests.integration.a2a.rig import Event, Rig, read_events
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def story(turn: Turn) -> None:
    """A task in five frames."""
    await turn.status("WORKING")
    for number in range(3):
        await turn.artifact(f"part {number} ", append=number > 0, last=number == 2)
    await turn.status("COMPLETED")


async def begin(rig: Rig) -> str:
    """Starts a task that waits for the test; returns its id."""
    rig.peer.next(story)
    rig.peer.hold()
    rig.peer.release(1)
    params = rig.message("go", configuration={"returnImmediately": True})
    return str((await rig.call("SendMessage", params))["task"]["id"])


@pytest.mark.requirement("I3")
async def test_events_carry_rising_cursors_and_the_first_a_retry_time(rig: Rig) -> None:
    events = await rig.collect("SendStreamingMessage", rig.message("chunks 5"))
    assert [next(iter(event.result)) for event in events] == [
        "task",
        "statusUpdate",
        *["artifactUpdate"] * 5,
        "statusUpdate",
    ]
    sequences = [parse_cursor(event.id).sequence for event in events]
    assert sequences == sorted(set(sequences))
    assert 750 <= int(events[0].retry) < 1300
    assert not any(event.retry for event in events[1:])


@pytest.mark.requirement("I3")
async def test_two_readers_get_equal_bytes_in_equal_order(rig: Rig) -> None:
    task_id = await begin(rig)
    params = {"id": task_id}
    readers: list[list[Event]] = [[], []]

    async def read(into: list[Event]) -> None:
        async with rig.stream("SubscribeToTask", params) as events:
            into.append(await anext(events))
            into += [event async for event in events]

    reading = [asyncio.create_task(read(into)) for into in readers]
    await wait_until(lambda: all(readers), 15, "both have the task")
    rig.peer.release_all()
    await asyncio.gather(*reading)
    assert [(event.data, event.id) for event in readers[0]] == [
        (event.data, event.id) for event in readers[1]
    ]
    assert list(readers[0][0].result) == ["task"]
    assert readers[0][-1].result["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("I1")
async def test_event_is_stored_before_a_reader_has_it(rig: Rig) -> None:
    rig.peer.next(story)
    rig.peer.hold()
    rig.peer.release(1)
    async with rig.stream("SendStreamingMessage", rig.message("go")) as events:
        task_id = (await anext(events)).result["task"]["id"]
        for _ in range(4):
            rig.peer.release(1)
            event = await anext(events)
            stored = await rig.call("GetTask", {"id": task_id})
            if "artifactUpdate" in event.result:
                said = event.result["artifactUpdate"]["artifact"]["parts"][0]
                assert said in stored["artifacts"][0]["parts"]
            else:
                assert stored["status"] == event.result["statusUpdate"]["status"]
        rig.peer.release_all()
        assert len([event async for event in events]) == 1


@pytest.mark.requirement("I6")
async def test_reader_that_disconnects_does_not_end_the_run(rig: Rig) -> None:
    rig.peer.next(story)
    rig.peer.hold()
    rig.peer.release(1)
    async with rig.stream("SendStreamingMessage", rig.message("go")) as events:
        task_id = (await anext(events)).result["task"]["id"]
    await wait_until(
        lambda: b'operation="SendStreamingMessage",outcome="left"' in rig.metrics.render(),
        15,
        "the reader is seen to be gone",
    )
    rig.peer.release_all()

    async def is_done() -> bool:
        task = await rig.call("GetTask", {"id": task_id})
        return bool(task["status"]["state"] == "TASK_STATE_COMPLETED")

    await wait_until(is_done, 15, "the run has gone on to its end")
    assert len(rig.peer.messages) == 1


@pytest.mark.requirement("I1", "I6")
async def test_store_outage_costs_a_reader_no_event(rig: Rig) -> None:
    rig.peer.next(story)
    rig.peer.hold()
    rig.peer.release(1)
    (engine,) = rig.engine.processes
    async with rig.stream("SendStreamingMessage", rig.message("go")) as events:
        task_id = (await anext(events)).result["task"]["id"]
        engine.send_signal(signal.SIGSTOP)
        try:
            rig.peer.release_all()
            await wait_until(lambda: "unavailable" in rig.appends, 20, "an append has failed")
        finally:
            engine.send_signal(signal.SIGCONT)
        rest = [event.result async for event in events]
    assert [next(iter(result)) for result in rest] == [
        "statusUpdate",
        *["artifactUpdate"] * 3,
        "statusUpdate",
    ]
    stored = await rig.call("GetTask", {"id": task_id})
    assert stored["status"] == rest[-1]["statusUpdate"]["status"]


async def test_repeat_under_the_same_key_streams_the_same_events(rig: Rig) -> None:
    params = rig.message("chunks 2")
    streams: list[list[str]] = []
    for _ in range(2):
        async with rig.stream("SendStreamingMessage", params, **{"Idempotency-Key": "k"}) as events:
            streams.append([event.data async for event in events])
    assert streams[0] == streams[1]
    assert len(rig.peer.messages) == 1


async def test_subscription_stays_open_while_the_task_waits_for_input(rig: Rig) -> None:
    task_id = (await rig.send("ask which?"))["id"]
    async with rig.stream("SubscribeToTask", {"id": task_id}) as events:
        assert "INPUT_REQUIRED" in (await anext(events)).data
        await rig.send("blue", taskId=task_id)
        last = [event async for event in events][-1]
    assert last.result["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_error_before_the_first_event_is_a_plain_response(rig: Rig) -> None:
    response = await rig.post("SendStreamingMessage", rig.message("refuse"))
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["code"] == -32602


async def test_integers_and_unknown_members_come_through_a_stream(rig: Rig) -> None:
    events = await rig.collect("SendStreamingMessage", rig.message("numbers"))
    assert any('"count":9007199254740993' in event.data for event in events)
    assert any('"newInSomeLaterVersion":true' in event.data for event in events)


async def test_drain_ends_streams_cleanly_and_a_reader_can_resume(rig: Rig) -> None:
    task_id = await begin(rig)
    async with rig.stream("SubscribeToTask", {"id": task_id}) as events:
        await anext(events)
        await asyncio.wait_for(rig.face.drain(), 15)
        assert [event async for event in events] == []
    rig.peer.release_all()


async def test_drain_releases_a_waiting_caller(rig: Rig) -> None:
    rig.peer.next(story)
    rig.peer.hold()
    asking = asyncio.create_task(rig.post("SendMessage", rig.message("go")))
    await wait_until(lambda: rig.peer.messages, 15, "the peer has the message")
    await asyncio.wait_for(rig.face.drain(), 15)
    response = await asking
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["message"].endswith("the message was accepted")
    rig.peer.release_all()


async def test_drain_answers_a_caller_waiting_on_a_known_task_with_the_task(rig: Rig) -> None:
    task = await rig.send("ask which?")
    rig.peer.hold()
    asking = asyncio.create_task(rig.post("SendMessage", rig.message("blue", taskId=task["id"])))
    await wait_until(lambda: len(rig.peer.messages) == 2, 15, "the peer has the answer")
    await asyncio.wait_for(rig.face.drain(), 15)
    shown = (await asking).json()["result"]["task"]
    assert (shown["id"], shown["contextId"]) == (task["id"], task["contextId"])
    rig.peer.release_all()


async def test_http_json_events_are_bare_stream_responses(rig: Rig) -> None:
    async with rig.http.stream(
        "POST", "/agents/echo/message:stream", json=rig.message("hello")
    ) as response:
        events = [event async for event in read_events(response)]
    assert '{"task":{"id":"task_' in events[0].data
    assert "TASK_STATE_COMPLETED" in events[-1].data


@pytest.mark.parametrize("verb", ["GET", "POST"])
async def test_http_json_subscribes_with_either_verb(rig: Rig, verb: str) -> None:
    task_id = await begin(rig)
    async with rig.http.stream(verb, f"/agents/echo/tasks/{task_id}:subscribe") as response:
        assert response.status_code == 200
        events = read_events(response)
        assert (await anext(events)).data.startswith('{"task":')
        rig.peer.release_all()
        rest = [event async for event in events]
    assert "TASK_STATE_COMPLETED" in rest[-1].data


@pytest.mark.parametrize("headers", [{}, {"A2A-Extensions": RESUME}], ids=["plain", "marked"])
@pytest.mark.parametrize("size", [10_000, 65_000, 200_000, 3_000_000])
async def test_an_artifact_chunk_of_any_size_reaches_its_reader_unchanged(
    rig: Rig, size: int, headers: dict[str, str]
) -> None:
    texts = [f"{number}" * size for number in range(3)]

    async def bring(turn: Turn) -> None:
        for number, text in enumerate(texts):
            await turn.artifact(text, append=number > 0, last=number == 2)
        await turn.status("COMPLETED")

    rig.peer.next(bring)
    async with rig.stream("SendStreamingMessage", rig.message("go"), **headers) as events:
        seen = [event.result async for event in events]
    pieces = [one["artifactUpdate"] for one in seen if "artifactUpdate" in one]
    assert [piece["artifact"]["parts"][0]["text"] for piece in pieces] == texts
    assert all((RESUME in piece.get("metadata", {})) is bool(headers) for piece in pieces)


async def test_streams_of_one_caller_are_limited(rig: Rig) -> None:
    seats = rig.face.operations.seats
    assert seats.most == SEATS
    seats.most = 2
    task_id = await begin(rig)
    params = {"id": task_id}
    async with rig.stream("SubscribeToTask", params) as first:
        await anext(first)
        async with rig.stream("SubscribeToTask", params) as second:
            await anext(second)
            refused = await rig.post("SubscribeToTask", params)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
            (detail, *_) = orjson.loads(refused.content)["error"]["data"]
            assert detail["reason"] == "RATE_LIMITED"
            # Unary calls are served as before.
            assert (await rig.call("GetTask", params))["id"] == task_id
        await wait_until(lambda: seats.taken == 1, 10, "a seat is free")
        async with rig.stream("SubscribeToTask", params) as third:
            await anext(third)
