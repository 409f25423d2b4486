"""Messages over a connection with a cached head: started at once, and answered like every other message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson
import pytest

from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.peer_profile import PeerTerms
from passerelle.gateway.a2a.unary import UnaryCalls
from passerelle.runtime.observability.logs import REQUEST
from tests.integration.a2a.rig import OWNER, Answer, Rig
from tests.integration.a2a.test_revoked import quick, revoke
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

__all__ = ["quick"]
pytestmark = pytest.mark.anyio
LENGTH: Final = 1500
"""Length of each body, padded with spaces: the head contains it and must not change."""
WITHIN_S: Final = 15.0


@dataclass
class Connection:
    """One connection whose requests all have the same head."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    rig: Rig
    token: str
    version: str
    path: str = ""
    """Relative to the agent's path."""

    def write(self, params: JsonObject, method: str = "SendMessage") -> None:
        self.write_body(
            orjson.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        )

    def write_body(self, body: bytes) -> None:
        head = (
            f"POST /agents/echo{self.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self.token}\r\nA2A-Version: {self.version}\r\n"
            f"Content-Length: {LENGTH}\r\n\r\n"
        )
        assert len(body) <= LENGTH
        self.writer.write(head.encode() + body.ljust(LENGTH))

    async def read(self) -> tuple[int, Answer]:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WITHIN_S)
        lines = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:-2])
        body = await self.reader.readexactly(int(lines["content-length"]))
        return int(head.split()[1]), cast("Answer", orjson.loads(body))

    async def ask(self, params: JsonObject, method: str = "SendMessage") -> tuple[int, Answer]:
        self.write(params, method)
        return await self.read()

    async def send(self, text: str) -> Answer:
        status, answer = await self.ask(self.rig.message(text))
        assert (status, answer["id"]) == (200, 7), answer
        return cast("Answer", answer["result"])


@asynccontextmanager
async def connect(
    rig: Rig, token: str = OWNER, version: str = "1.0", first: JsonObject | None = None
) -> AsyncGenerator[Connection]:
    """A connection that has sent a message before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(rig.url.rpartition(":")[2]))
    line = Connection(reader, writer, rig, token, version)
    try:
        method = "SendMessage" if version == "1.0" else "message/send"
        status, answer = await line.ask(first or rig.message("hello"), method)
        assert status == 200, answer
        yield line
    finally:
        writer.close()


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each candidate request, whether it was started at once."""
    seen: list[bool] = []
    real = UnaryCalls.begin

    def note(self: UnaryCalls, *given: Any) -> bool:  # noqa: ANN401  whatever it takes
        seen.append(real(self, *given))
        return seen[-1]

    monkeypatch.setattr(UnaryCalls, "begin", note)
    return seen


@pytest.mark.requirement("LT-1", "LT-3", "LT-7")
async def test_answers_equal_those_of_every_other_message(rig: Rig, begun: list[bool]) -> None:
    async with connect(rig) as line:
        task = (await line.send("hello there"))["task"]
        assert task["artifacts"][0]["parts"] == [{"text": "hello there"}]
        assert await rig.call("GetTask", {"id": task["id"]}) == task
        message = (await line.send("message well then"))["message"]
        assert message["parts"] == [{"text": "well then"}]
        params = rig.message("hello", configuration={"historyLength": 0})
        status, answer = await line.ask(params)
        assert (status, "history" in answer["result"]["task"]) == (200, False)
    assert begun == [True, True, True]


async def test_running_task_of_the_agent_is_waited_for(rig: Rig, begun: list[bool]) -> None:
    async def story(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.artifact("done")
        await turn.status("COMPLETED")

    async with connect(rig) as line:
        asked = (await line.send("ask which?"))["task"]
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        rig.peer.next(story)
        done = (await line.send("go"))["task"]
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"
        rig.terms["echo"] = PeerTerms(always_task=True)
        assert list(await line.send("message hi")) == ["task"]
    assert begun == [True, True, True]


@pytest.mark.parametrize("text", ["refuse", "malformed"])
async def test_refusal_of_the_agent_is_answered_alike(
    rig: Rig, begun: list[bool], text: str
) -> None:
    async def refuse(turn: Turn) -> None:
        await turn.refuse(-32602, "Task 0b1946d0-remote-77 is not for you")

    async with connect(rig) as line:
        for _ in range(2):
            rig.peer.next(refuse)
        status, answer = await line.ask(rig.message(text))
        other = await rig.post("SendMessage", rig.message(text))
        assert (status, answer) == (other.status_code, other.json())
        await rig.peer.stop()
        status, answer = await line.ask(rig.message("hello"))
        other = await rig.post("SendMessage", rig.message("hello"))
        assert (status, answer) == (other.status_code, other.json())
        assert status == 503
    assert begun == [True, True]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"jsonrpc":"1.0","id":7,"method":"SendMessage"}',
        b'{"jsonrpc":"2.0","id":7,"method":"SendMessage","params":[]}',
        b'{"jsonrpc":"2.0","id":7,"method":"SendMessage","params":{}}',
        b'{"jsonrpc":"2.0","id":7,"method":"Unheard","params":{}}',
        b'{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"id":"task_none"}}',
        (
            b'{"jsonrpc":"2.0","id":7,"method":"SendMessage","params":{"message":{"messageId":"m",'
            b'"role":"ROLE_USER","parts":[{"text":"hi"}],"taskId":"task_none"}}}'
        ),
        (
            b'{"jsonrpc":"2.0","id":7,"method":"SendMessage","params":{"tenant":"none","message":'
            b'{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}}'
        ),
    ],
)
async def test_other_requests_are_served_as_before(
    rig: Rig, begun: list[bool], body: bytes
) -> None:
    async with connect(rig) as line:
        line.write_body(body)
        known = await line.read()
        other = await rig.http.post(
            "/agents/echo",
            content=body.ljust(LENGTH),
            headers={"Content-Type": "application/json"},
        )
        assert known == (other.status_code, other.json())
        assert begun == [False]
        # After another method the first message is authenticated by the full path again.
        assert await line.send("hello")
        assert await line.send("hello")
        assert begun[-1]


async def test_http_json_paths_accept_no_json_rpc_calls(rig: Rig, begun: list[bool]) -> None:
    async with connect(rig) as line:
        line.path = "/message:send"
        for _ in range(2):
            line.write_body(orjson.dumps(rig.message("hello")))
            status, answer = await line.read()
            assert (status, list(answer)) == (200, ["task"])
        status, answer = await line.ask(rig.message("hello"))
        assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert begun == []


@pytest.mark.requirement("LT-15")
async def test_v03_call_is_answered_in_its_own_form(rig: Rig, begun: list[bool]) -> None:
    params: JsonObject = {
        "message": {
            "kind": "message",
            "messageId": "m",
            "role": "user",
            "parts": [{"kind": "text", "text": "hi"}],
        }
    }
    async with connect(rig, version="0.3", first=params) as line:
        status, answer = await line.ask(params, "message/send")
        assert (status, answer["result"]["kind"]) == (200, "task")
        assert answer["result"]["artifacts"][0]["parts"] == [{"kind": "text", "text": "hi"}]
    assert begun == [True]


async def test_caller_that_disconnects_ends_only_its_own_wait(rig: Rig, begun: list[bool]) -> None:
    async with connect(rig) as line:
        rig.peer.hold()
        line.write(rig.message("go"))
        await wait_until(lambda: rig.counted() == 2, WITHIN_S, "the peer has the message")
    await wait_until(
        lambda: b'operation="SendMessage",outcome="left"' in rig.metrics.render(),
        WITHIN_S,
        "the caller is counted as gone",
    )
    # Checked before the polls below, each of which is a candidate itself.
    assert begun == [True]
    rig.peer.release_all()

    async def are_done() -> bool:
        tasks = (await rig.call("ListTasks", {}))["tasks"]
        return [task["status"]["state"] for task in tasks] == ["TASK_STATE_COMPLETED"] * 2

    await wait_until(are_done, WITHIN_S, "the run has gone on to its end")
    await asyncio.wait_for(rig.face.drain(), WITHIN_S)


async def test_drain_releases_waiting_callers(rig: Rig, begun: list[bool]) -> None:
    async with connect(rig) as line:
        rig.peer.hold()
        line.write(rig.message("go"))
        await wait_until(lambda: rig.counted() == 2, WITHIN_S, "the peer has the message")
        await asyncio.wait_for(rig.face.drain(), WITHIN_S)
        status, answer = await line.read()
        assert status == 503
        assert answer["error"]["message"].endswith("the message was accepted")
        rig.terms["echo"] = PeerTerms(always_task=True)
        line.write(rig.message("go on"))
        status, answer = await line.read()
        assert (status, answer["result"]["task"]["status"]["state"]) == (
            200,
            "TASK_STATE_SUBMITTED",
        )
        rig.peer.release_all()
    assert begun == [True, True]


async def test_revoked_credential_ends_the_wait_and_starts_nothing(
    quick: Rig, begun: list[bool]
) -> None:
    async with connect(quick, token="other-key") as line:
        quick.peer.hold()
        line.write(quick.message("go"))
        await wait_until(lambda: quick.counted() == 2, WITHIN_S, "the peer has the message")
        revoke(quick)
        status, answer = await line.read()
        assert (status, answer["error"]["data"][0]["reason"]) == (401, "UNAUTHENTICATED")
        status, answer = await line.ask(quick.message("hello"))
        assert (status, answer["error"]["data"][0]["reason"]) == (401, "UNAUTHENTICATED")
        quick.peer.release_all()
    assert begun == [True, False]
    assert quick.counted() == 2


async def test_command_interrupted_by_a_shutdown_is_answered(
    rig: Rig, begun: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = rig.parts
    hangs = asyncio.Event()

    async def hang(*_given: object) -> None:
        hangs.set()
        await asyncio.Event().wait()

    async with connect(rig) as line:
        monkeypatch.setattr(type(parts.service.messages.templated_turns), "open", hang)
        line.write(rig.message("go"))
        await asyncio.wait_for(hangs.wait(), WITHIN_S)
        await asyncio.wait_for(parts.dispatch.commands.drain(), WITHIN_S)
        status, answer = await line.read()
        assert (status, answer["error"]["data"][0]["reason"]) == (503, "UNAVAILABLE")
        status, answer = await line.ask(rig.message("hello"))
        assert status == 503, "no new runs"
    assert begun == [True, True]
    assert rig.counted() == 1


async def test_log_context_of_the_request_is_kept_to_its_end(
    rig: Rig, begun: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str | None] = []
    count = rig.metrics.count_request

    def note(*given: Any) -> None:  # noqa: ANN401  whatever it takes
        counted.append(REQUEST.get())
        count(*given)

    async with connect(rig) as line:
        monkeypatch.setattr(rig.metrics, "count_request", note)
        rig.peer.hold()
        line.write(rig.message("go"))
        await wait_until(lambda: rig.counted() == 2, WITHIN_S, "the peer has the message")
    await wait_until(lambda: len(counted) == 1, WITHIN_S, "the caller is counted as gone")
    rig.peer.release_all()
    async with connect(rig) as line:
        rig.peer.hold()
        line.write(rig.message("go"))
        await wait_until(lambda: rig.counted() == 4, WITHIN_S, "the peer has the message")
        await asyncio.wait_for(rig.face.drain(), WITHIN_S)
        await line.read()
    rig.peer.release_all()
    assert begun == [True, True]
    assert None not in counted
    assert len(set(counted)) == len(counted) == 3


async def test_every_request_is_counted_and_released(rig: Rig, begun: list[bool]) -> None:
    async with connect(rig) as line:
        await line.send("hello")
        await line.send("message hi")
    one = 'passerelle_requests_total{agent="echo",operation="SendMessage",outcome="ok"} 3.0'
    assert one in rig.metrics.render().decode()
    assert begun == [True, True]
    # A drain waits for every request in progress.
    await asyncio.wait_for(rig.face.drain(), WITHIN_S)


@dataclass
class Slot:
    """A slot of a caller limit; counts its releases."""

    left: int = 0

    def leave(self) -> None:
        self.left += 1


@pytest.mark.parametrize("place", ["read_send", "compose_turn", "HttpVisit"])
async def test_error_before_a_message_is_started_is_answered_and_releases_its_slot(
    rig: Rig, begun: list[bool], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    slot, faults = Slot(), [0]

    def fail(*_given: object, **_named: object) -> None:
        faults[0] += 1
        raise ValueError(place)

    async with connect(rig) as line:
        with monkeypatch.context() as broken:
            broken.setattr("passerelle.gateway.a2a.unary.UNBOUND", slot)
            broken.setattr(f"passerelle.gateway.a2a.unary.{place}", fail)
            assert "task" in await line.send("hello")
        assert faults == [1]
        assert slot.left == (0 if place == "read_send" else 1)
        assert "task" in await line.send("hello")
    assert begun == [False, True]
    await asyncio.wait_for(rig.face.drain(), WITHIN_S)
