"""One conversation in every binding and version: equal answers, equal facts, equal requests to the agent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import cast

import grpc.aio
import httpx
import pytest

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.wire.json import Json, JsonObject
from passerelle.gateway.grpc.face import GrpcFace
from passerelle.gateway.grpc.server import start_grpc
from tests.integration.a2a.rig import OWNER, Rig
from tests.integration.a2a.speakers import Answer, GrpcSpeaker, HttpSpeaker, RpcSpeaker, Speaker
from tests.support.stored_events import find_streams, list_stored

pytestmark = pytest.mark.anyio
LOOPBACK = "127.0.0.1"
IDS = re.compile(
    r"(task|ctx)_[0-9a-z]{20,}(?:~\d+)?|(echo-(?:task|ctx))-\d+|-(message)-\d+"
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
# Times, ids minted per conversation, and members that only ProtoJSON drops when empty.
DROPPED = frozenset({"timestamp", "nextPageToken", "lastChunk", "append"})
FILE: Json = {"raw": "AAEC", "mediaType": "image/png", "filename": "a.png"}
LINK: Json = {"url": "https://files.example/a", "mediaType": "text/plain"}
DATA: Json = {"data": {"count": 42, "deep": [{"big": 9007199254740991}], "share": 0.5}}


@dataclass
class Conversation:
    """Records one conversation, with its ids replaced by symbols in the order of their first use."""

    speaker: Speaker
    trace: list[Json] = field(default_factory=list[Json])
    symbols: dict[str, str] = field(default_factory=dict[str, str])

    async def say(self, method: Method, params: JsonObject) -> Answer:
        answer = await self.speaker.call(method, params)
        self.trace.append([method.value, self.normalise(cast("Json", answer))])
        return answer

    async def send(self, text: str, *parts: Json, at_once: bool = False, **members: Json) -> Answer:
        message: JsonObject = {
            "messageId": f"m-{len(self.trace)}",
            "role": "ROLE_USER",
            "parts": [{"text": text}, *parts],
            **members,
        }
        params: JsonObject = {"message": message}
        if at_once:
            # Not empty, because the protobuf of 0.3 cannot tell an empty configuration from a missing one.
            params["configuration"] = {
                "returnImmediately": True,
                "acceptedOutputModes": ["text/plain"],
            }
        return await self.say(Method.SEND_MESSAGE, params)

    async def task(self, text: str) -> JsonObject:
        return read_only(await self.send(text))

    def normalise(self, value: Json) -> Json:
        if isinstance(value, str):
            return IDS.sub(self._name, value)
        if isinstance(value, list):
            return [self.normalise(item) for item in value]
        if isinstance(value, dict):
            kept = {key: item for key, item in value.items() if key not in DROPPED}
            return {key: self.normalise(kept[key]) for key in sorted(kept)}
        return value

    def _name(self, found: re.Match[str]) -> str:
        kind = found[1] or found[2] or found[3] or "context at the agent"
        return self.symbols.setdefault(found[0], f"<{kind} {len(self.symbols)}>")


def read_only(answer: Answer) -> JsonObject:
    """Returns the task that is the whole answer."""
    assert isinstance(answer, list), answer
    return cast("JsonObject", answer[0]["task"])


async def converse(talk: Conversation) -> None:
    """Makes some thirty calls."""
    done = await talk.task("hello")
    task, context = done["id"], done["contextId"]
    await talk.say(Method.GET_TASK, {"id": task})
    await talk.say(Method.GET_TASK, {"id": task, "historyLength": 1})
    await talk.say(Method.GET_TASK, {"id": "task_00nothing"})
    await talk.send("again", contextId=context)
    await talk.send("message hi", contextId=context)
    await talk.send("message hi")
    waiting = (await talk.task("ask which?"))["id"]
    await talk.say(Method.GET_TASK, {"id": waiting})
    await talk.send("blue", taskId=waiting, contextId=context)
    await talk.send("blue", taskId=waiting)
    await talk.say(Method.GET_TASK, {"id": waiting})
    await talk.send("more", taskId=waiting)
    await talk.send("more", taskId="task_00nothing")
    await talk.say(Method.CANCEL_TASK, {"id": waiting})
    await talk.say(Method.CANCEL_TASK, {"id": "task_00nothing"})
    await talk.say(Method.SUBSCRIBE_TO_TASK, {"id": waiting})
    await talk.say(Method.SUBSCRIBE_TO_TASK, {"id": "task_00nothing"})
    await talk.send("files", FILE, LINK, DATA)
    await talk.send("hello", metadata={"n": 7, "nested": {"list": [1, "two", None]}})
    await talk.send("hello", extensions=["urn:some:extension"])
    await talk.send("hello", role="ROLE_AGENT")
    await talk.send("hello", messageId="")
    await talk.send("hello", parts=[])
    await talk.say(Method.SEND_STREAMING_MESSAGE, _message("chunks 3"))
    await talk.say(Method.SEND_STREAMING_MESSAGE, _message("message hi"))
    await talk.say(Method.SEND_STREAMING_MESSAGE, _message("hello", taskId="task_00nothing"))
    await talk.send("refuse")
    await talk.say(Method.LIST_PUSH_CONFIGS, {"taskId": task})
    silent = read_only(await talk.send("silent", at_once=True))["id"]
    await talk.say(Method.CANCEL_TASK, {"id": silent})


def _message(text: str, **members: Json) -> JsonObject:
    return {
        "message": {"messageId": "s", "role": "ROLE_USER", "parts": [{"text": text}], **members}
    }


@pytest.fixture
async def speakers(rig: Rig) -> AsyncGenerator[dict[str, Speaker]]:
    face = GrpcFace(rig.face.operations, rig.face.parts, default_agent="echo")
    server = await start_grpc(face, LOOPBACK, 0)
    headers = {"Authorization": f"Bearer {OWNER}"}
    async with (
        grpc.aio.insecure_channel(f"{LOOPBACK}:{server.port}") as channel,
        httpx.AsyncClient(base_url=rig.url, headers=headers, timeout=20) as http,
    ):
        yield {
            "JSON-RPC 1.0": RpcSpeaker(http, "1.0"),
            "HTTP+JSON 1.0": HttpSpeaker(http, "1.0"),
            "gRPC 1.0": GrpcSpeaker(channel, "1.0"),
            "JSON-RPC 0.3": RpcSpeaker(http, "0.3"),
            "HTTP+JSON 0.3": HttpSpeaker(http, "0.3"),
            "gRPC 0.3": GrpcSpeaker(channel, "0.3"),
        }
    await server.stop()


def count_facts(rig: Rig) -> Counter[str]:
    """Counts the types of all stored events."""
    facts: Counter[str] = Counter()
    for stream in find_streams(rig.engine.url):
        facts.update(entry.type for entry in list_stored(rig.engine.url, stream))
    return facts


def drop_default(params: JsonObject) -> JsonObject:
    """Drops a configuration that states only the default: speakers of 0.3 always send one."""
    says_nothing = params.get("configuration") == {"returnImmediately": False}
    return {
        key: value for key, value in params.items() if key != "configuration" or not says_nothing
    }


async def test_every_binding_and_version_has_the_same_conversation(
    rig: Rig, speakers: dict[str, Speaker]
) -> None:
    stories: dict[str, Conversation] = {}
    facts: dict[str, Counter[str]] = {}
    asked: dict[str, list[Json]] = {}
    before = count_facts(rig)
    for name, speaker in speakers.items():
        rig.peer.requests.clear()
        stories[name] = talk = Conversation(speaker)
        await converse(talk)
        now = count_facts(rig)
        facts[name], before = now - before, now
        asked[name] = [
            [request.method, Conversation(speaker).normalise(drop_default(request.params))]
            for request in rig.peer.requests
            if request.method.startswith(("Send", "Cancel"))
        ]
    first = next(iter(stories))
    assert len(stories[first].trace) > 25
    assert facts[first], "some facts were found"
    for name, talk in stories.items():
        for mine, theirs in zip(talk.trace, stories[first].trace, strict=True):
            assert mine == theirs, name
        assert asked[name] == asked[first], name
        assert facts[name] == facts[first], name
