"""No internal detail of an agent reaches a caller: no id of its tasks and contexts, no address, no error text.

The agent puts one marker into all of them. No byte that a caller receives may contain it, whatever fails and over any
binding; nor may the origin of the agent, which its card names.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.conformance.callers import Caller, Json, make_params
from tests.conformance.site import LEAKY, MARKER, VANISHING, Site, find_origin, write
from tests.support.scripted_peer import ScriptedPeer, ScriptedResponse
from tests.support.scripted_tasks import Turn, TurnScript
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import WebhookReceiver

pytestmark = pytest.mark.anyio

CODES = (-32001, -32002, -32003, -32004, -32005, -32006, -32007, -32008, -32009, -32602, -32603, -1)
TEXT = f"Task {MARKER}-task-9 of http://{MARKER}.example:9/a failed in /srv/{MARKER}/agent.py"


class RecordingCaller:
    """A caller of the leaky agent that keeps every received byte."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.received: list[str] = []

    async def call(self, operation: str, params: Json) -> Json:
        """A call, refused or not; returns the result, empty for a refusal."""
        answer = await self._caller.call(operation, params)
        self.received += [str(answer), repr(answer.raw)]
        return answer.result or {}

    async def send(self, text: str, **members: object) -> Json:
        """A message; returns its Task or Message, empty for a refusal."""
        said = await self.call("SendMessage", make_params(write("leak", text, **members)))
        return next(iter(said.values()), Json())

    async def stream(self, operation: str, params: Json) -> None:
        """A whole stream."""
        async with self._caller.stream(operation, params) as stream:
            self.received += [str(await stream.collect()), str(stream.refusal), repr(stream.raw)]

    def check(self, site: Site) -> None:
        """Checks that the received bytes contain nothing of the agent."""
        marks = [MARKER, *(find_origin(peer.url)[7:] for peer in (site.leaky, site.vanishing))]
        assert self.received
        assert not [text for text in self.received if any(mark in text.lower() for mark in marks)]


@pytest.fixture
async def leaky(site: Site) -> AsyncGenerator[ScriptedPeer]:
    async with site.leaky:
        yield site.leaky
        site.leaky.release_all()


@pytest.fixture
async def recorder(
    site: Site, leaky: ScriptedPeer, binding: str
) -> AsyncGenerator[RecordingCaller]:
    async with site.open_caller(binding, agent=LEAKY) as caller:
        received = RecordingCaller(caller)
        yield received
        received.check(site)


async def test_answers_name_nothing_of_the_agent(recorder: RecordingCaller) -> None:
    for text in (
        "echo",
        "message hello",
        "chunks 2",
        "ask which?",
        "auth",
        "numbers",
        "two-artifacts",
    ):
        said = await recorder.send(text)
        assert said
        await recorder.call("GetTask", {"id": said.get("id", "none")})
        await recorder.call("ListTasks", {"contextId": said["contextId"], "includeArtifacts": True})
    asked = await recorder.send("ask which?")
    await recorder.send("blue", taskId=asked["id"])
    other = await recorder.send("ask which?")
    await recorder.call("CancelTask", {"id": other["id"]})
    await recorder.send("after the end", taskId=asked["id"])


async def test_streams_name_nothing_of_the_agent(recorder: RecordingCaller) -> None:
    for text in (
        "chunks 3",
        "message hello",
        "malformed",
        "nonsense",
        "twice",
        "message-after-task",
    ):
        await recorder.stream("SendStreamingMessage", make_params(write("leak", text)))
    asked = await recorder.send("ask which?")
    await recorder.stream("SubscribeToTask", {"id": "unknown"})
    await recorder.send("blue", taskId=asked["id"])
    await recorder.stream("SubscribeToTask", {"id": asked["id"]})


async def test_status_texts_contain_the_gateways_ids_instead_of_the_agents(
    recorder: RecordingCaller, leaky: ScriptedPeer
) -> None:
    async def fail(turn: Turn) -> None:
        task = await turn.open()
        await turn.status("FAILED", f"Task {task.id} of {task.context_id} is broken")

    leaky.next(fail, fail)
    task = await recorder.send("go")
    assert task["id"] in task["status"]["message"]["parts"][0]["text"]
    await recorder.stream("SendStreamingMessage", make_params(write("leak", "go")))


@pytest.mark.parametrize("code", CODES)
async def test_errors_of_the_agent_are_replaced_by_the_gateways(
    recorder: RecordingCaller, leaky: ScriptedPeer, code: int
) -> None:
    leaky.next(_refuse(code), _refuse(code))
    assert not await recorder.send("go")
    await recorder.stream("SendStreamingMessage", make_params(write("leak", "go")))


@pytest.mark.parametrize(
    "answer",
    [
        ScriptedResponse(404, TEXT.encode()),
        ScriptedResponse(302, b"", {"Location": f"http://{MARKER}.example/"}),
        ScriptedResponse(401, TEXT.encode(), {"WWW-Authenticate": f"Bearer realm={MARKER}"}),
        ScriptedResponse(200, TEXT.encode(), {"Content-Type": "application/json"}),
        ScriptedResponse(200, f'{{"{MARKER}": 1}}'.encode(), {"Content-Type": "application/json"}),
        ScriptedResponse(200, b"", {"Content-Type": f"text/{MARKER}"}),
    ],
    ids=lambda answer: f"{answer.status}-{len(answer.body)}",
)
async def test_invalid_answers_are_replaced_by_the_gateways_errors(
    recorder: RecordingCaller, leaky: ScriptedPeer, answer: ScriptedResponse
) -> None:
    leaky.answer_next(answer)
    await recorder.send("go")


async def test_unknown_state_is_not_shown(recorder: RecordingCaller, leaky: ScriptedPeer) -> None:
    async def dream(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.status(f"TASK_STATE_{MARKER.upper()}")
        await turn.status("COMPLETED")

    leaky.next(dream)
    await recorder.stream("SendStreamingMessage", make_params(write("leak", "go")))


async def test_unreachable_agent_is_not_named(site: Site, binding: str) -> None:
    async with site.open_caller(binding, agent=VANISHING) as caller:
        recorder = RecordingCaller(caller)
        async with site.vanishing:
            await recorder.call("GetTask", {"id": "unknown"})
        assert not await recorder.send("go")
        await recorder.stream("SendStreamingMessage", make_params(write("leak", "go")))
        recorder.check(site)


async def test_card_and_webhooks_name_nothing_of_the_agent(
    recorder: RecordingCaller, site: Site
) -> None:
    recorder.received.append((await site.read_card(LEAKY)).text)
    await recorder.call("GetExtendedAgentCard", {})
    async with WebhookReceiver() as receiver:
        config = {"id": "mine", "url": f"{receiver.url}/hook"}
        params = make_params(write("leak", "chunks 2"), taskPushNotificationConfig=config)
        await recorder.call("SendMessage", params)
        await wait_until(lambda: _is_delivered(receiver), 10, "the receiver has the end")
        recorder.received += [f"{notice.headers} {notice.raw!r}" for notice in receiver.notices]


def _is_delivered(receiver: WebhookReceiver) -> bool:
    return any(b"COMPLETED" in notice.raw for notice in receiver.notices)


def _refuse(code: int) -> TurnScript:
    async def refuse(turn: Turn) -> None:
        await turn.refuse(code, TEXT)

    return refuse
