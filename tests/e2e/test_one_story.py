"""One story over HTTP, over a channel and on the command line: the same answers, and the same log (CMD-27)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, TypeAlias, cast

import httpx
import pytest

from passerelle.client.channel import ChannelClient
from passerelle.core.wire.json import Json, JsonObject
from passerelle.demo.processes import GatewayProcess
from passerelle.gateway.http.v1 import OPERATIONS
from tests.support.command import run_command
from tests.support.processes import AGENT, Caller, open_caller, read_stored
from tests.support.scripted_peer import ScriptedPeer
from tests.support.symbols import normalize
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

Speak: TypeAlias = Callable[[str, JsonObject], Awaitable[JsonObject]]
"""Executes one call by its name."""

EDGE: Final = frozenset({"source", "traceparent", "traceId", "spanId"})
"""Members that name the edge, or belong to one request."""
WORDS: Final[dict[str, tuple[str, ...]]] = {
    "open_session": ("sessions", "open", "title"),
    "update_session": ("sessions", "rename", "sessionId", "title"),
    "create_task": ("tasks", "create", "agent", "objective"),
    "start_task": ("tasks", "start", "taskId"),
    "update_task": ("tasks", "update", "taskId"),
    "append_task_progress": ("tasks", "progress", "taskId"),
    "pause_task": ("tasks", "pause", "taskId"),
    "resume_task": ("tasks", "resume", "taskId"),
    "link_tasks": ("tasks", "link", "taskId", "kind", "target"),
    "unlink_tasks": ("tasks", "unlink", "taskId", "kind", "target"),
    "fail_task": ("tasks", "fail", "taskId"),
    "submit_turn": ("tasks", "send", "agent", "text"),
    "get_task": ("tasks", "show", "taskId"),
    "explain_task": ("tasks", "explain", "taskId"),
    "get_session": ("sessions", "show", "sessionId"),
    "list_tasks": ("tasks", "list"),
}
"""The command line form of a call: its verb, then the members that are arguments. Others are flags."""
FLAGS: Final = {"sessionId": "session", "contextId": "context", "pageSize": "limit"}


@asynccontextmanager
async def open_http(gateway: GatewayProcess) -> AsyncGenerator[Speak]:
    operations = {one.call.name: one for one in OPERATIONS}
    async with httpx.AsyncClient(
        base_url=gateway.url, headers=gateway.authorization, trust_env=False, timeout=20
    ) as http:

        async def speak(method: str, params: JsonObject) -> JsonObject:
            operation = operations[method]
            rest = {name: one for name, one in params.items() if name not in operation.path_params}
            path = operation.path.format(**params)
            if operation.method == "GET":
                answer = await http.get(path, params=cast("dict[str, str]", rest))
            else:
                answer = await http.request(operation.method, path, json=rest)
            assert answer.is_success, answer.text
            return cast("JsonObject", answer.json())

        yield speak


@asynccontextmanager
async def open_channel_calls(gateway: GatewayProcess) -> AsyncGenerator[Speak]:
    url = f"{gateway.url.replace('http', 'ws', 1)}/v1/channel"
    keys = iter(range(1000))
    async with ChannelClient(url, device="dev_story", token=gateway.token) as channel:

        async def speak(method: str, params: JsonObject) -> JsonObject:
            # A channel message takes its id from the key; over HTTP the gateway mints one.
            idem = f"story-{next(keys)}" if method in {"start_task", "submit_turn"} else None
            return await channel.call(method, params, idem=idem)

        yield speak


@asynccontextmanager
async def open_commands(gateway: GatewayProcess) -> AsyncGenerator[Speak]:
    async def speak(method: str, params: JsonObject) -> JsonObject:
        group, verb, *names = WORDS[method]
        words = [group, verb, *(str(params[name]) for name in names)]
        for name, value in params.items():
            if name not in names:
                words += [f"--{FLAGS.get(name, name)}", str(value)]
        return cast("JsonObject", (await run_command(gateway, *words, "--json")).answer)

    yield speak


SPEAKERS: Final = {"http": open_http, "channel": open_channel_calls, "command line": open_commands}


async def play(speak: Speak, caller: Caller) -> str:
    """Runs the story; returns its session."""

    def name(answer: JsonObject, member: str) -> str:
        return str(cast("JsonObject", answer[member])[f"{member}Id"])

    session = name(await speak("open_session", {"title": "A story"}), "session")
    await speak("update_session", {"sessionId": session, "title": "Another story"})
    given: JsonObject = {"agent": AGENT, "objective": "chunks 2", "sessionId": session}
    task = name(await speak("create_task", {**given, "title": "Boats", "priority": 3}), "task")
    other = name(await speak("create_task", given), "task")
    at: JsonObject = {"taskId": task}
    edges: JsonObject = {**at, "kind": "blocks", "target": other}
    for method, params in (
        ("update_task", {**at, "title": "Ships", "priority": 4}),
        ("link_tasks", edges),
        ("unlink_tasks", {**edges, "reason": "not any more"}),
        ("pause_task", {**at, "reason": "lunch"}),
        ("resume_task", at),
        ("append_task_progress", {**at, "percent": 10, "step": "1 of 9"}),
        ("fail_task", {"taskId": other, "code": "no_budget", "reason": "too dear"}),
        ("start_task", at),
    ):
        await speak(method, cast("JsonObject", params))
    await await_rest(caller, task)
    sent = await speak("submit_turn", {"agent": AGENT, "text": "message hi", "sessionId": session})
    await await_rest(caller, str(sent["taskId"]))
    return session


async def await_rest(caller: Caller, task_id: str) -> None:
    """A bare Message is not shown to a caller as a task; its record still ends."""

    async def has_ended() -> bool:
        return bool((await caller.read_record(task_id))["status"] == "completed")

    await wait_until(has_ended, 15, f"{task_id} ends")


@pytest.mark.requirement("CMD-27")
async def test_one_story_has_the_same_log_over_every_edge(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    peer.use_task_ids(*(f"remote-{number}" for number in (1, 1, 1)))
    logs: dict[str, list[JsonObject]] = {}
    async with open_caller(gateway) as caller:
        # The first task of an agent is shown while the card is read: none of the three may be the first.
        await caller.call("SendMessage", caller.write("message hi"))
        for edge, open_edge in SPEAKERS.items():
            async with open_edge(gateway) as speak:
                session = await play(speak, caller)
            logs[edge] = cast(
                "list[JsonObject]", normalize(cast("Json", read_stored(gateway, session)), EDGE)
            )
    reported = [str(event["type"]) for event in logs["http"]]
    assert {"session.updated", "task.paused", "task.failed", "task.completed"} <= set(reported)
    for edge, log in logs.items():
        assert [event["type"] for event in log] == reported, edge
        for event, first in zip(log, logs["http"], strict=True):
            assert event == first, edge


@pytest.mark.requirement("CMD-12", "CMD-16")
async def test_one_query_has_the_same_answer_over_every_edge(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    async with AsyncExitStack() as stack:
        caller = await stack.enter_async_context(open_caller(gateway))
        edges = [await stack.enter_async_context(one(gateway)) for one in SPEAKERS.values()]
        session = await play(edges[0], caller)
        task = (await caller.read(f"/v1/tasks?sessionId={session}"))["tasks"][-1]["taskId"]
        del peer
        for method, params in (
            ("get_task", {"taskId": task}),
            ("explain_task", {"taskId": task}),
            ("get_session", {"sessionId": session, "limit": 50}),
            ("list_tasks", {"sessionId": session, "pageSize": 2}),
        ):
            first, *others = [await speak(method, cast("JsonObject", params)) for speak in edges]
            assert first
            assert all(answer == first for answer in others), method


def test_two_logs_may_differ_in_ids_and_times_only() -> None:
    first: Json = [
        {"taskId": "task_2f01m7zc8t6dek8hk8m2zd6ekmgn", "at": "2026-11-21T15:40:47.196Z", "n": 1}
    ]
    again: Json = [
        {"taskId": "task_3301m7zd9t6dek8hk8m2zd6ekmgn", "at": "2026-11-21T16:40:47.196Z", "n": 1}
    ]
    other: Json = [
        {"taskId": "task_3301m7zd9t6dek8hk8m2zd6ekmgn", "at": "2026-11-21T16:40:47.196Z", "n": 2}
    ]
    assert normalize(first) == normalize(again) != normalize(other)
