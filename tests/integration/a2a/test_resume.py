"""The resume extension (docs/protocol/resume.md): exactly the missed events, or an explicit gap."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import httpx
import pytest

from passerelle.a2a_mapping.extensions import RESUME
from passerelle.core.commands import GetRecord
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import OWNER
from passerelle.gateway.a2a.face import FaceSettings
from passerelle.protocol.cursor import parse_cursor
from passerelle.store.retention import Archived, Trimmed
from passerelle.store.store import Store, StoreSettings
from tests.integration.a2a.rig import Event, Rig, read_events, run_rig
from tests.integration.a2a.test_streaming import begin
from tests.support.engine import Server
from tests.support.stored_events import rewrite_stream

pytestmark = pytest.mark.anyio

ACTIVE: Final = {"A2A-Extensions": RESUME}
FRAMES: Final = 6
"""Number of events that callers see of the task that ``begin`` starts."""


@dataclass
class Subscription:
    """An open stream: the response to its cursor, and its events as they arrive."""

    response: httpx.Response
    events: AsyncIterator[Event]

    @property
    def resumed(self) -> str | None:
        return cast("str | None", self.response.headers.get("A2A-Stream-Resumed"))

    async def rest(self) -> list[Event]:
        return [event async for event in self.events]


@asynccontextmanager
async def subscribe(
    rig: Rig, task_id: str, way: str = "GET", **asked: dict[str, str]
) -> AsyncGenerator[Subscription]:
    """Subscribes over JSON-RPC (``rpc``) or HTTP+JSON with a verb; ``asked`` holds headers and params."""
    if way == "rpc":
        params = {"jsonrpc": "2.0", "id": 7, "method": "SubscribeToTask", "params": {"id": task_id}}
        request = rig.http.build_request("POST", "/agents/echo", json=params, **cast("Any", asked))
    else:
        path = f"/agents/echo/tasks/{task_id}:subscribe"
        request = rig.http.build_request(way, path, **cast("Any", asked))
    response = await rig.http.send(request, stream=True)
    try:
        assert response.headers["content-type"] == "text/event-stream", await response.aread()
        yield Subscription(response, read_events(response))
    finally:
        await response.aclose()


def with_cursor(cursor: str, **more: str) -> dict[str, str]:
    """Returns the headers of a client that supports the extension."""
    return {**ACTIVE, "Last-Event-ID": cursor, **more}


def list_positions(events: list[Event]) -> list[tuple[str, str]]:
    """Returns what two readers of one binding must agree on."""
    return [(event.id, event.data) for event in events]


async def finish(rig: Rig) -> tuple[str, list[Event]]:
    """Runs a task to its end; returns its id and its events as an unbroken reader receives them."""
    async with rig.stream("SendStreamingMessage", rig.message("chunks 3")) as events:
        seen = [event async for event in events]
    return str(seen[0].result["task"]["id"]), seen


@pytest.mark.requirement("I3", "I8", "LT-7")
@pytest.mark.parametrize("way", ["rpc", "GET", "POST"])
async def test_r1_r6_each_cursor_of_a_live_stream_gets_exactly_the_missed_events(
    rig: Rig, way: str
) -> None:
    task_id = await begin(rig)
    async with subscribe(rig, task_id, way) as unbroken:
        first = await anext(unbroken.events)
        async with subscribe(rig, task_id, way, headers=with_cursor(first.id)) as early:
            assert early.resumed == "true"
            rig.peer.release(2)
            seen = [await anext(unbroken.events) for _ in range(2)]
            late = [subscribe(rig, task_id, way, headers=with_cursor(event.id)) for event in seen]
            async with late[0] as second, late[1] as third:
                rig.peer.release_all()
                seen += await unbroken.rest()
                assert len(seen) == FRAMES - 1
                answers = [await one.rest() for one in (early, second, third)]
    plain = [strip(event) for event in seen]
    assert [[strip(event) for event in answer] for answer in answers] == [
        plain,
        plain[1:],
        plain[2:],
    ]


def strip(event: Event) -> tuple[str, Any]:
    """Returns an event without its mark."""
    result = cast("dict[str, Any]", httpx.Response(200, text=event.data).json())
    frame = cast("dict[str, Any]", result.get("result", result))
    (holder,) = frame.values()
    metadata = holder.get("metadata", {})
    metadata.pop(RESUME, None)
    if not metadata:
        holder.pop("metadata", None)
    return event.id, frame


@pytest.mark.requirement("I3")
async def test_r2_cursor_is_valid_on_another_instance(rig: Rig, tmp_path: Path) -> None:
    task_id, seen = await finish(rig)
    async with run_rig(rig.engine, tmp_path / "other") as other:
        query = {"lastEventId": seen[1].id}
        async with subscribe(other, task_id, "rpc", params=query) as resumed:
            assert list_positions(await resumed.rest()) == list_positions(seen[2:])


@pytest.mark.parametrize("named", ["task", "cursor"])
async def test_r2_cursor_opens_no_task_of_another_caller(rig: Rig, named: str) -> None:
    task_id, seen = await finish(rig)
    stranger = {"Authorization": "Bearer other-key"}
    path = f"/agents/echo/tasks/{task_id}:subscribe"
    if named == "task":
        headers = with_cursor(seen[1].id, **stranger)
        response = await rig.http.get(path, headers=headers)
        assert response.status_code == 404
        assert "A2A-Stream-Resumed" not in response.headers
        return
    # The other caller's own task, with the cursor of a stream that it does not own.
    params = rig.message("chunks 3")
    theirs = (await rig.post("SendMessage", params, **stranger)).json()["result"]["task"]["id"]
    headers = with_cursor(seen[1].id, **stranger)
    async with subscribe(rig, theirs, headers=headers) as answered:
        assert answered.resumed == "gap"
        (only,) = await answered.rest()
    assert task_id not in only.data


async def test_r3_header_overrides_the_query_that_a_browser_repeats(rig: Rig) -> None:
    task_id, seen = await finish(rig)
    asked: dict[str, dict[str, str]] = {
        "params": {"lastEventId": seen[0].id},
        "headers": {"Last-Event-ID": seen[-2].id},
    }
    async with subscribe(rig, task_id, "rpc", **asked) as resumed:
        assert list_positions(await resumed.rest()) == list_positions(seen[-1:])


async def test_r4_header_without_the_extension_is_ignored(rig: Rig) -> None:
    task_id = await begin(rig)
    async with subscribe(rig, task_id) as plain:
        first = await anext(plain.events)
    async with subscribe(rig, task_id, headers={"Last-Event-ID": first.id}) as again:
        assert again.resumed is None
        assert (await anext(again.events)).data == first.data
    rig.peer.release_all()


async def test_r4_query_alone_requests_a_replay_without_marks(rig: Rig) -> None:
    task_id, seen = await finish(rig)
    async with subscribe(rig, task_id, "rpc", params={"lastEventId": seen[0].id}) as resumed:
        assert resumed.resumed == "true"
        assert "A2A-Extensions" not in resumed.response.headers
        assert list_positions(await resumed.rest()) == list_positions(seen[1:])


async def test_r5_cursor_is_ignored_with_a_message(rig: Rig) -> None:
    _, seen = await finish(rig)
    headers = with_cursor(seen[-1].id)
    async with rig.stream("SendStreamingMessage", rig.message("chunks 3"), **headers) as events:
        again = [event async for event in events]
    assert len(again) == len(seen)
    assert "task" in again[0].result


async def test_r6_stream_that_missed_nothing_opens_at_once(rig: Rig) -> None:
    task_id = await begin(rig)
    async with subscribe(rig, task_id) as plain:
        first = await anext(plain.events)
    # The peer sends nothing yet: without the opening comment the headers would not arrive.
    async with subscribe(rig, task_id, headers=with_cursor(first.id)) as resumed:
        assert resumed.resumed == "true"
        rig.peer.release_all()
        rest = await resumed.rest()
    assert len(rest) == FRAMES - 1
    assert rest[0].retry


def break_cursor(cursor: str, how: str) -> str:
    """Returns a cursor of another epoch, of another history, beyond the end, or malformed."""
    whole = parse_cursor(cursor)
    match how:
        case "epoch":
            return f"0a1b2c3d.{whole.sequence}.{whole.chain}"
        case "forked":
            return f"{whole.epoch}.{whole.sequence}.0a1b2c3d"
        case "ahead":
            return f"{whole.epoch}.{whole.sequence + 1000}.{whole.chain}"
        case _:
            return "no cursor at all"


@pytest.mark.requirement("I8")
@pytest.mark.parametrize("how", ["epoch", "forked", "ahead", "malformed"])
async def test_r7_invalid_cursor_is_a_gap_and_the_task_comes_first(rig: Rig, how: str) -> None:
    task_id = await begin(rig)
    async with subscribe(rig, task_id) as plain:
        first = await anext(plain.events)
        rig.peer.release(2)
        last = [await anext(plain.events) for _ in range(2)][-1]
    now = await rig.call("GetTask", {"id": task_id})
    broken = with_cursor(break_cursor(first.id, how))
    async with subscribe(rig, task_id, "rpc", headers=broken) as answered:
        assert answered.resumed == "gap"
        task = await anext(answered.events)
        assert strip(task) == (last.id, {"task": now})
        rig.peer.release_all()
        assert len(await answered.rest()) == FRAMES - 3


@pytest.mark.requirement("I8")
async def test_r7_archived_events_are_a_gap_without_the_remaining_ones(
    rig: Rig, tmp_path: Path
) -> None:
    task_id, seen = await finish(rig)
    record = cast("Any", await rig.service.read(OWNER, GetRecord(task_id)))
    async with await Store.open(StoreSettings(rig.engine.url, tmp_path / "blobs")) as store:
        upto = parse_cursor(seen[2].id).sequence
        archived = Archived("blob", "0" * 64, 100)
        rewrite_stream(rig.engine.url, StreamRef(StreamKind.SESSION, str(record["sessionId"])))
        assert isinstance(await store.retention.trim(record["sessionId"], upto, archived), Trimmed)
    headers = with_cursor(seen[0].id)
    async with subscribe(rig, task_id, "rpc", headers=headers) as answered:
        assert answered.resumed == "gap"
        (only,) = await answered.rest()
    assert list(only.result) == ["task"]
    async with subscribe(rig, task_id, "rpc", headers=with_cursor(seen[2].id)) as answered:
        assert answered.resumed == "true"
        assert len(await answered.rest()) == len(seen) - 3


async def test_r8_ended_task_replays_the_missed_events_and_ends(rig: Rig) -> None:
    task_id, seen = await finish(rig)
    for missed in range(len(seen)):
        cursor = seen[len(seen) - 1 - missed].id
        async with subscribe(rig, task_id, "rpc", params={"lastEventId": cursor}) as resumed:
            assert resumed.resumed == "true"
            assert list_positions(await resumed.rest()) == list_positions(
                seen[len(seen) - missed :]
            )


async def test_r8_ended_task_with_a_broken_cursor_is_its_only_event(rig: Rig) -> None:
    task_id, _ = await finish(rig)
    async with subscribe(rig, task_id, "rpc", headers=with_cursor("x")) as answered:
        assert answered.resumed == "gap"
        (only,) = await answered.rest()
    assert strip(only)[1] == {"task": await rig.call("GetTask", {"id": task_id})}


async def test_r8_ended_task_without_a_cursor_is_refused_with_or_without_the_extension(
    rig: Rig,
) -> None:
    task_id, _ = await finish(rig)
    for headers in ({}, ACTIVE):
        answer = (await rig.post("SubscribeToTask", {"id": task_id}, **headers)).json()
        assert answer["error"]["code"] == -32004


async def test_r9_snapshot_is_at_the_cursor_and_the_missed_events_follow(
    rig: Rig,
) -> None:
    task_id = await begin(rig)
    async with subscribe(rig, task_id) as plain:
        await anext(plain.events)
        rig.peer.release(2)
        cursor = [await anext(plain.events) for _ in range(2)][-1].id
        then = await rig.call("GetTask", {"id": task_id})
        rig.peer.release_all()
        missed = [strip(event) for event in await plain.rest()]
    headers = with_cursor(cursor, **{"A2A-Stream-Snapshot": "always"})
    async with subscribe(rig, task_id, headers=headers) as resumed:
        assert resumed.resumed == "true"
        first, *rest = await resumed.rest()
    assert strip(first) == (cursor, {"task": then})
    assert read_mark(first)["generation"] == str(FRAMES - 3)
    assert [strip(event) for event in rest] == missed


async def test_r9_cursor_from_before_the_task_needs_no_snapshot(rig: Rig) -> None:
    earlier, seen = await finish(rig)
    context = (await rig.call("GetTask", {"id": earlier}))["contextId"]
    later = await rig.send("chunks 3", contextId=context)
    headers = with_cursor(seen[-1].id, **{"A2A-Stream-Snapshot": "always"})
    async with subscribe(rig, later["id"], "rpc", headers=headers) as resumed:
        assert resumed.resumed == "true"
        events = await resumed.rest()
    assert [list(event.result) for event in events].count(["task"]) == 1
    assert list(events[0].result) == ["task"]
    assert read_mark(events[0])["generation"] == "1"


def read_mark(event: Event) -> dict[str, str]:
    """Returns the mark of a Task or an event."""
    (holder,) = strip_rpc(event).values()
    return cast("dict[str, str]", holder["metadata"][RESUME])


def strip_rpc(event: Event) -> dict[str, Any]:
    whole = cast("dict[str, Any]", httpx.Response(200, text=event.data).json())
    return cast("dict[str, Any]", whole.get("result", whole))


async def test_r10_r11_marks_count_from_one_and_name_the_cursor(rig: Rig) -> None:
    async with rig.stream("SendStreamingMessage", rig.message("chunks 3"), **ACTIVE) as events:
        seen = [event async for event in events]
    marks = [read_mark(event) for event in seen]
    assert [mark["generation"] for mark in marks] == [str(n + 1) for n in range(len(seen))]
    assert [mark["cursor"] for mark in marks] == [event.id for event in seen]


async def test_r11_marks_are_sent_only_on_request(rig: Rig) -> None:
    task_id, seen = await finish(rig)
    async with subscribe(rig, task_id, headers=with_cursor(seen[0].id)) as marked:
        assert all(RESUME in event.data for event in await marked.rest())
    async with subscribe(rig, task_id, params={"lastEventId": seen[0].id}) as plain:
        assert not any(RESUME in event.data for event in await plain.rest())


async def test_r11_bare_message_is_not_marked(rig: Rig) -> None:
    async with rig.stream("SendStreamingMessage", rig.message("message hi"), **ACTIVE) as events:
        (only,) = [event async for event in events]
    assert list(only.result) == ["message"]
    assert RESUME not in only.data


@pytest.mark.parametrize("method", ["SendMessage", "GetTask", "CancelTask"])
async def test_r11_r12_subscribing_at_the_cursor_of_a_task_misses_and_repeats_nothing(
    rig: Rig, method: str
) -> None:
    if method == "SendMessage":
        response = await rig.post(method, rig.message("ask which?"), **ACTIVE)
        task = response.json()["result"]["task"]
    else:
        waiting = await rig.send("ask which?")
        response = await rig.post(method, {"id": waiting["id"]}, **ACTIVE)
        task = response.json()["result"]
    assert response.headers["A2A-Extensions"] == RESUME
    mark = task["metadata"][RESUME]
    async with subscribe(rig, task["id"], headers=with_cursor(mark["cursor"])) as resumed:
        assert resumed.resumed == "true"
        if method != "CancelTask":
            await rig.send("blue", taskId=task["id"])
        rest = await resumed.rest()
    generations = [int(read_mark(event)["generation"]) for event in rest]
    first = int(mark["generation"]) + 1
    assert generations == list(range(first, first + len(rest)))
    assert (method == "CancelTask") or rest


async def test_r13_every_connection_gets_a_retry_time_with_jitter(
    rig: Rig,
) -> None:
    task_id, seen = await finish(rig)
    retry_times: set[int] = set()
    for _ in range(8):
        async with subscribe(rig, task_id, params={"lastEventId": seen[0].id}) as resumed:
            first, *rest = await resumed.rest()
        retry_times.add(int(first.retry))
        assert not any(event.retry for event in rest)
    assert all(750 <= retry_ms < 1300 for retry_ms in retry_times)
    assert len(retry_times) > 1


async def test_r14_silence_is_filled_with_comments_of_one_line(
    engine_server: Server, tmp_path: Path
) -> None:
    async with run_rig(engine_server, tmp_path, FaceSettings(keep_alive_s=0.02)) as rig:
        task_id = await begin(rig)
        async with rig.http.stream("GET", f"/agents/echo/tasks/{task_id}:subscribe") as response:
            lines: list[str] = []
            async for line in response.aiter_lines():
                lines.append(line)
                if lines.count(": keep-alive") == 2:
                    rig.peer.release_all()
    comments = [place for place, line in enumerate(lines) if line == ": keep-alive"]
    assert len(comments) >= 2
    assert all(lines[place + 1] for place in comments)


async def test_r15_stream_is_open_while_the_task_waits_and_ends_with_it(rig: Rig) -> None:
    task = await rig.send("ask which?")
    async with subscribe(rig, task["id"]) as waiting:
        first = await anext(waiting.events)
        assert "INPUT_REQUIRED" in first.data
        async with subscribe(rig, task["id"], headers=with_cursor(first.id)) as resumed:
            await rig.send("blue", taskId=task["id"])
            rest = [await one.rest() for one in (waiting, resumed)]
    assert all("TASK_STATE_COMPLETED" in events[-1].data for events in rest)
    assert [strip(event) for event in rest[0]] == [strip(event) for event in rest[1]]


def test_every_clause_of_the_page_has_a_test() -> None:
    root = Path(__file__).parents[3]
    page = (root / "docs" / "protocol" / "resume.md").read_text("utf-8")
    clauses = set(re.findall(r"^- \*\*R([0-9]+)\*\*", page, re.MULTILINE))
    shown = set(re.findall(r"_r([0-9]+)(?=_)", Path(__file__).read_text("utf-8")))
    assert clauses == shown == {str(number) for number in range(1, len(clauses) + 1)}


async def test_card_names_the_extension(rig: Rig) -> None:
    card = (await rig.http.get("/agents/echo/.well-known/agent-card.json")).json()
    named = {item["uri"]: item for item in card["capabilities"]["extensions"]}
    assert named[RESUME]["params"] == {"cursor": "sse-id"}
    assert named[RESUME].get("required", False) is False
