"""An unmodified client of the official SDK against the gateway: discovery and six operations, over both bindings."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx
import pytest
from a2a.client import Client, ClientConfig, create_client
from a2a.helpers import new_text_message
from a2a.types import a2a_pb2 as a2a
from a2a.utils.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.core.wire.json import JsonObject
from tests.integration.a2a.rig import OWNER, Rig
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["JSONRPC", "HTTP+JSON"])
async def client(rig: Rig, request: pytest.FixtureRequest) -> AsyncGenerator[Client]:
    headers = {"Authorization": f"Bearer {OWNER}"}
    async with httpx.AsyncClient(headers=headers, timeout=20) as http:
        config = ClientConfig(
            streaming=False, httpx_client=http, supported_protocol_bindings=[request.param]
        )
        async with await create_client(f"{rig.url}/agents/echo", config) as made:
            yield made


@pytest.fixture(params=["JSONRPC", "HTTP+JSON"])
async def streaming(rig: Rig, request: pytest.FixtureRequest) -> AsyncGenerator[Client]:
    headers = {"Authorization": f"Bearer {OWNER}"}
    async with httpx.AsyncClient(headers=headers, timeout=20) as http:
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[request.param])
        async with await create_client(f"{rig.url}/agents/echo", config) as made:
            yield made


def ask(text: str, **ids: str) -> a2a.SendMessageRequest:
    message = new_text_message(text, role=a2a.Role.ROLE_USER)
    for name, value in ids.items():
        setattr(message, name, value)
    return a2a.SendMessageRequest(message=message)


def read_texts(message: JsonObject) -> list[str]:
    return [text_at(part, "text") for part in objects_at(message, "parts")]


async def send(client: Client, text: str, **ids: str) -> a2a.StreamResponse:
    answers = [answer async for answer in client.send_message(ask(text, **ids))]
    assert len(answers) == 1
    return answers[0]


@pytest.mark.requirement("LT-1", "LT-3", "LT-4", "LT-5", "LT-12")
async def test_client_talks_in_turns(rig: Rig, client: Client) -> None:
    asked = (await send(client, "ask which?")).task
    assert asked.status.state == a2a.TaskState.TASK_STATE_INPUT_REQUIRED
    done = (await send(client, "blue", task_id=asked.id)).task
    assert done.status.state == a2a.TaskState.TASK_STATE_COMPLETED
    assert done.artifacts[0].parts[0].text == "answer: blue"
    again = (await send(client, "hello", context_id=asked.context_id)).task
    assert (again.context_id, again.id != asked.id) == (asked.context_id, True)
    with pytest.raises(UnsupportedOperationError):
        await send(client, "more", task_id=asked.id)
    message = (await send(client, "message hi", context_id=asked.context_id)).message
    assert message.parts[0].text == "hi"


async def test_client_reads_lists_and_cancels(rig: Rig, client: Client) -> None:
    done = (await send(client, "hello")).task
    request = ask("silent")
    request.configuration.return_immediately = True
    open_ = (await anext(client.send_message(request))).task
    assert await client.get_task(a2a.GetTaskRequest(id=done.id)) == done
    page = await client.list_tasks(a2a.ListTasksRequest(include_artifacts=True))
    assert {task.id for task in page.tasks} == {done.id, open_.id}
    assert done in page.tasks
    cancelled = await client.cancel_task(a2a.CancelTaskRequest(id=open_.id))
    assert cancelled.id == open_.id
    with pytest.raises(TaskNotCancelableError):
        await client.cancel_task(a2a.CancelTaskRequest(id=done.id))
    with pytest.raises(TaskNotFoundError):
        await client.get_task(a2a.GetTaskRequest(id="task_of_nobody"))
    with pytest.raises(InvalidParamsError):
        await send(client, "hello", task_id=done.id, context_id="another")


async def test_client_streams(rig: Rig, streaming: Client) -> None:
    events = [event async for event in streaming.send_message(ask("chunks 3"))]
    kinds = [event.WhichOneof("payload") for event in events]
    assert kinds == ["task", "status_update", *["artifact_update"] * 3, "status_update"]
    assert events[-1].status_update.status.state == a2a.TaskState.TASK_STATE_COMPLETED
    with pytest.raises(UnsupportedOperationError):
        await anext(aiter(streaming.subscribe(a2a.SubscribeToTaskRequest(id=events[0].task.id))))


async def test_client_reads_texts_with_every_unicode_line_separator_from_a_stream(
    rig: Rig, streaming: Client
) -> None:
    """The SDK's reader ends a line at each of these, like ``str.splitlines``."""
    text = "a\u2028b\u2029c\x85d\x0b\x0c\x1c\x1d\x1e\r\n\\\u2028e"

    async def story(turn: Turn) -> None:
        await turn.status("WORKING", text)
        await turn.artifact(text)
        await turn.status("COMPLETED")

    rig.peer.next(story)
    events = [event async for event in streaming.send_message(ask("hello"))]
    texts = [
        part.text
        for event in events
        for part in (
            *event.status_update.status.message.parts,
            *event.artifact_update.artifact.parts,
        )
    ]
    assert texts == [text, text]


async def test_client_that_reads_its_streams_to_their_end_can_answer(
    rig: Rig, streaming: Client
) -> None:
    asked = [event async for event in streaming.send_message(ask("ask which?"))]
    assert asked[-1].status_update.status.state == a2a.TaskState.TASK_STATE_INPUT_REQUIRED
    task = asked[0].task
    answer = ask("blue", task_id=task.id, context_id=task.context_id)
    answered = [event async for event in streaming.send_message(answer)]
    assert answered[-1].status_update.status.state == a2a.TaskState.TASK_STATE_COMPLETED
    assert [read_texts(message) for message in rig.peer.messages] == [["ask which?"], ["blue"]]


async def test_client_resubscribes_to_a_stream(rig: Rig, streaming: Client) -> None:
    rig.peer.hold()
    rig.peer.release(2)
    task_id = (await anext(streaming.send_message(ask("chunks 2")))).task.id
    following = streaming.subscribe(a2a.SubscribeToTaskRequest(id=task_id))
    first = await anext(following)
    assert first.task.id == task_id
    rig.peer.release_all()
    rest = [event async for event in following]
    assert rest[-1].status_update.status.state == a2a.TaskState.TASK_STATE_COMPLETED
    assert len(rig.peer.messages) == 1
