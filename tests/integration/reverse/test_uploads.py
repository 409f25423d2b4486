"""Content too large for the socket is uploaded separately, and reaches the task's callers with the artifact (I5)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

import httpx
import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import Message, Part, Task, TaskState, TaskStatus

from passerelle.client.agent import CallRefused, ReverseAgent
from passerelle.client.asgi_app import App
from passerelle.core.wire.json import JsonObject
from tests.integration.callers.rig import Instance
from tests.integration.reverse.rig import ASKER, KEY, NAME, Answer, Caller, Rig, find_url
from tests.support.sdk_agent import SdkExecutor, build_card, make_app

pytestmark = pytest.mark.anyio
PICTURE = bytes(range(256)) * 2_000


def name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Painter(SdkExecutor):
    """Produces one file at the URL that ``place`` returns."""

    place: Callable[[], Awaitable[str]] | None = None

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        assert self.place is not None
        opened = Task(
            id=context.task_id or "",
            context_id=context.context_id or "",
            status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED),
            history=[cast("Message", context.message)],
        )
        await event_queue.enqueue_event(opened)
        await task.add_artifact([Part(url=await self.place(), media_type="image/png")], "picture")
        await task.complete()


def make_painter(place: Callable[[], Awaitable[str]]) -> App:
    card = build_card("http://10.0.0.7:9000/", ("JSONRPC/1.0",))
    executor = Painter(place=place)
    return make_app(DefaultRequestHandler(executor, InMemoryTaskStore(), card), card)


def dial(instance: Instance, handler: App) -> ReverseAgent:
    return ReverseAgent(
        find_url(instance),
        token=f"{NAME}-key",
        name=NAME,
        handler=handler,
        jitter=lambda: 0.05,
    )


async def put(
    instance: Instance,
    content: bytes,
    *,
    who: str = NAME,
    agent: str = NAME,
    sha256: str | None = None,
    media_type: str = "image/png",
) -> httpx.Response:
    return await instance.http.put(
        f"/v1/blobs/{name(content) if sha256 is None else sha256}",
        params={"agent": agent},
        content=content,
        headers={"Authorization": f"Bearer {who}-key", "Content-Type": media_type},
    )


async def read_output(instance: Instance, task: Answer) -> JsonObject:
    """Returns the one stored output of the task."""
    headers = {"Authorization": f"Bearer {KEY}"}
    path = f"/v1/tasks/{task['id']}/outputs/{name(PICTURE)}"
    answer = await instance.http.get(path, params={"limit": 1_048_576}, headers=headers)
    return cast("JsonObject", answer.json())


@pytest.mark.requirement("I5", "ENV-10")
async def test_an_uploaded_file_reaches_the_caller_with_the_artifact_that_names_it(
    rig: Rig,
) -> None:
    instance = await rig.start()
    other = await rig.start()

    async def upload() -> str:
        return await agent.upload(PICTURE, "Image/PNG; Kept=As")

    async with dial(instance, make_painter(upload)) as agent:
        await agent.wait_served()
        task = await Caller(other).send("a picture, please")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    (part,) = task["artifacts"][0]["parts"]
    assert part["url"] == f"urn:passerelle:blob:sha256:{name(PICTURE)}"
    output = await read_output(other, task)
    assert base64.b64decode(str(output["content"])) == PICTURE
    assert (output["state"], output["size"], output["mediaType"]) == (
        "here",
        len(PICTURE),
        "image/png; Kept=As",
    )


@pytest.mark.requirement("I5")
async def test_a_file_uploaded_by_another_agent_is_not_readable(rig: Rig) -> None:
    instance = await rig.start_with_asker()
    uploaded = await put(instance, PICTURE, who=ASKER, agent=ASKER)
    assert uploaded.status_code == 201, uploaded.text

    async def steal() -> str:
        return str(uploaded.json()["url"])

    async with dial(instance, make_painter(steal)) as agent:
        await agent.wait_served()
        task = await Caller(instance).send("their picture, please")
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert (await read_output(instance, task))["code"] == "not_found"


async def test_an_upload_requires_the_right_to_the_name_and_a_matching_hash(rig: Rig) -> None:
    instance = await rig.start()
    taken = await put(instance, PICTURE)
    assert (taken.status_code, taken.json()["size"]) == (201, len(PICTURE))
    assert (await put(instance, PICTURE)).json() == taken.json()
    refusals = [
        (await put(instance, PICTURE, sha256=name(b"other")), 400, "invalid_input"),
        (await put(instance, PICTURE, sha256="0" * 63), 400, "invalid_input"),
        (await put(instance, PICTURE, agent="nobody"), 403, "forbidden"),
        (await put(instance, PICTURE, who="ada"), 403, "forbidden"),
        (await put(instance, PICTURE, who="stranger"), 403, "forbidden"),
        (await put(instance, PICTURE, who="nobody"), 401, "unauthenticated"),
        (await put(instance, PICTURE, media_type="x" * 129), 400, "invalid_input"),
    ]
    for answer, status, code in refusals:
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


async def test_uploads_are_limited_each_and_in_total(rig: Rig) -> None:
    instance = await rig.start(outputs={"max_bytes": 1_024, "upload_bytes": 2_048})

    async def nowhere() -> str:
        raise AssertionError("the picture was requested")

    async with dial(instance, make_painter(nowhere)) as agent:
        with pytest.raises(CallRefused) as large:
            await agent.upload(b"a" * 1_025)
        assert large.value.code == "too_large"
        for content in (b"a" * 1_024, b"a" * 1_024, b"b" * 1_024):
            await agent.upload(content)
        with pytest.raises(CallRefused) as full:
            await agent.upload(b"c")
        assert full.value.code == "quota_exceeded"


@dataclass
class SlowUpload:
    """An upload of the picture that was admitted and has sent no body yet."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def finish(self) -> bytes:
        """Sends the body; returns the response."""
        self.writer.write(PICTURE)
        answer = await self.reader.read()
        self.writer.close()
        return answer


async def begin(instance: Instance) -> SlowUpload:
    """Starts an upload with ``Expect: 100-continue`` and waits until it is admitted."""
    url = instance.http.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = [
        f"PUT /v1/blobs/{name(PICTURE)}?agent={NAME} HTTP/1.1",
        f"Host: {url.host}",
        f"Authorization: Bearer {NAME}-key",
        f"Content-Length: {len(PICTURE)}",
        "Expect: 100-continue",
        "Connection: close",
    ]
    writer.write(("\r\n".join(head) + "\r\n\r\n").encode())
    assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
    return SlowUpload(reader, writer)


async def test_slow_uploads_of_one_agent_leave_room_for_others(
    rig: Rig,
) -> None:
    instance = await rig.start_with_asker()
    slow = [await begin(instance) for _ in range(2)]
    refused = await put(instance, b"one more")
    assert (refused.status_code, refused.json()["code"]) == (429, "concurrency_limited")
    assert refused.headers["Retry-After"] == "1"
    others = await put(instance, PICTURE, who=ASKER, agent=ASKER)
    assert others.status_code == 201, others.text
    for one in slow:
        assert b" 201 " in await one.finish()
    assert (await put(instance, b"one more")).status_code == 201
