"""No edge tells an object of another owner from a missing one: each id parameter of each call of the route table.

Ada has an object of each kind. Strangers, in her tenant, in another, and with a device of few rights, put each of her
ids into each parameter that takes one, and in its place an id of the same form that does not exist. Both get the same
answer, and nothing of hers changes.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from urllib.parse import quote

import grpc.aio
import httpx
import orjson
import pytest

from passerelle.client.a2a_websocket import SocketTransport
from passerelle.core.principal import AccessScope
from passerelle.core.wire.codec import wire_schema
from passerelle.gateway.grpc.face import GrpcFace
from passerelle.gateway.grpc.server import start_grpc
from passerelle.gateway.http.v1 import OPERATIONS, RouteOperation
from passerelle.gateway.rpc.table import CALLS
from tests.conformance.grpc_caller import GrpcCaller
from tests.integration.callers.test_ids_at_the_edges import IDS, LAWFUL, batched
from tests.integration.devices.asking import asks
from tests.support.engine import ask
from tests.support.identity import ISSUER, publish, rsa_key, run_provider, sign
from tests.support.paired_device import PairedDevice
from tests.support.raw_channel import open_channel
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import WebhookReceiver

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping

    from passerelle.core.wire.json import Json, JsonObject
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio

OF_THE_TENANT: Final = frozenset(
    {
        *(AccessScope.OVERSEE_TASKS, AccessScope.OPERATE_TASKS, AccessScope.OVERSEE_APPROVALS),
        *(AccessScope.HOST, AccessScope.OPERATE),
    }
)
"""Scopes over what others own."""
MEMBER: Final = [scope for scope in AccessScope if scope not in OF_THE_TENANT]
NAMED: Final = IDS | {"ref", "sha256", "after", "subagentIds"}
BESIDE: Final = {"get_evidence": ("sessionId",)}
"""Parameters that a call takes in place of others, and one of which it needs."""
CHOSEN: Final = frozenset({"contextId", "webhookId", "device"})
"""Names that each caller chooses: another one's is free."""
_NUMBERS: Final = count()
_ID: Final = re.compile(r"\b([a-z]{2,5}_[0-3][0-9a-f][0-9a-z]{10})[0-9a-z]{16}")


@dataclass(frozen=True)
class Person:
    """A caller with its token; ``ids`` are those of its objects, by the parameter that takes them."""

    one: Instance
    token: str
    name: str
    ids: dict[str, Json] = field(default_factory=dict[str, "Json"])

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, str | list[str]] | None = None,
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}", "Idempotency-Key": f"{next(_NUMBERS)}"}
        http = self.one.http
        return await http.request(method, path, json=body, params=query, headers=headers)

    async def do(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        answer = await self.ask(method, path, body)
        assert answer.is_success, (method, path, answer.text)
        return cast("dict[str, Any]", answer.json())

    async def send(self, text: str) -> dict[str, Any]:
        return await self.do("POST", "/v1/turns", {"agent": "echo", "text": text})

    async def find(self, path: str, member: str) -> dict[str, Any]:
        """Waits for the first entry of a list."""

        async def look() -> list[dict[str, Any]]:
            return cast("list[dict[str, Any]]", (await self.do("GET", path))[member])

        found: list[dict[str, Any]] = await wait_until(look, 20, f"{path} has an entry")
        return found[0]


async def furnish(who: Person, hook: str) -> None:
    """Makes an object of each kind."""
    ids = who.ids
    big = await who.send("big")
    artifact = await who.find(f"/v1/tasks/{big['taskId']}/artifacts", "artifacts")
    ids["sha256"] = cast("Json", find_digest(artifact))
    ids["owner"] = (await who.do("GET", f"/v1/tasks/{big['taskId']}"))["owner"]
    turn = await who.send("silent")
    ids |= {name: turn[name] for name in ("taskId", "sessionId", "threadId", "turnId", "contextId")}
    ids |= {"target": ids["taskId"], "parentTaskId": ids["taskId"], "after": [ids["taskId"]]}
    ids |= {"ref": f"{ids['sessionId']}@1", "stream": f"session:{ids['sessionId']}"}
    queued = {"agent": "echo", "text": "later", "threadId": ids["threadId"], "whenBusy": "queue"}
    ids["queuedTurnId"] = (await who.do("POST", "/v1/turns", queued))["turnId"]
    await who.send(asks("low", f"act_{who.name}_1"))
    first = await who.find("/v1/approvals", "pending")
    [always] = [one["optionId"] for one in first["options"] if one["kind"] == "allow_always"]
    decision = {"rev": first["rev"], "digest": first["digest"], "optionId": always}
    await who.do("POST", f"/v1/approvals/{first['actionId']}/decision", decision)
    ids["grantId"] = (await who.find("/v1/grants", "grants"))["grantId"]
    # Another tool: the grant does not decide it.
    subject: Any = {"type": "tool_call", "name": "other", "arguments": {}}
    await who.send(asks("low", f"act_{who.name}_2", subject=subject))
    view = await who.find("/v1/approvals", "pending")
    ids |= {name: view[name] for name in ("actionId", "rev", "digest")}
    phone = PairedDevice(who.one.http)
    await phone.pair(who.token)
    ids |= {"deviceId": phone.device_id, "device": phone.device_id}
    timed = {"title": "s", "agent": "echo", "text": "a", "everyS": 86_400}
    ids["scheduleId"] = (await who.do("POST", "/v1/schedules", timed))["schedule"]["scheduleId"]
    batch = {"title": "j", "agents": ["echo"], "inputs": ["silent"]}
    ids["jobId"] = (await who.do("POST", "/v1/jobs", batch))["job"]["jobId"]
    spawned = await who.do("POST", "/v1/subagents", {"agent": "echo", "text": "silent"})
    ids["subagentId"] = spawned["subagent"]["subagentId"]
    ids["subagentIds"] = [ids["subagentId"]]
    await who.do("PUT", f"/v1/streams/{ids['stream']}/webhooks/mine", {"url": hook})
    made = await who.do("POST", "/v1/evidence", {"sessionId": ids["sessionId"]})
    ids["evidenceId"] = made["evidenceId"]
    # The export is an event, which the receiver refuses.
    ids["delivery"] = (await who.find("/v1/deliveries", "deliveries"))["delivery"]


def find_digest(artifact: dict[str, Any]) -> str:
    found = re.search(r"\b[0-9a-f]{64}\b", orjson.dumps(artifact).decode())
    assert found is not None, artifact
    return found[0]


@dataclass(frozen=True)
class World:
    """Ada and strangers with objects of their own."""

    rig: Rig
    one: Instance
    ada: Person
    strangers: tuple[Person, ...]

    def read_streams(self) -> dict[str, object]:
        """The length of each stream of Ada's sessions."""
        sessions = {str(self.ada.ids[name]) for name in ("sessionId", "scheduleId", "jobId")}
        keys = cast("list[bytes]", ask(self.rig.url, "KEYS", "*:e:se_*"))
        return {
            name: ask(self.rig.url, "XLEN", name)
            for name in (key.decode() for key in keys)
            if any(one in name for one in sessions)
        }


@asynccontextmanager
async def open_world(rig: Rig) -> AsyncGenerator[World]:
    async with WebhookReceiver() as receiver, run_provider(publish(rsa_key("a"), "a")) as provider:
        receiver.answer("/hook", *[404] * 200)
        issuer = {
            "name": "corp",
            "issuer": ISSUER,
            "audience": ["passerelle"],
            "may_call": ["*"],
            "jwks_url": f"{provider.url}/keys",
            "kind": "person",
            # Whoever operates the gateway does so for every tenant.
            "scopes": [scope for scope in AccessScope if scope is not AccessScope.OPERATE],
            "claims": {"tenant": "org"},
        }
        person = {"kind": "person", "scopes": MEMBER}
        one = await rig.start(
            clients=[{"name": "ada", **person}, {"name": "bob", **person}],
            issuers=[issuer],
            webhooks={"allow": ["http://127.0.0.1:*"]},
            policy={"grants": {"scope": "owner"}},
        )
        far = Person(one, sign(rsa_key("a"), "a", org="globex"), "far")
        ada, bob = Person(one, "ada-key", "ada"), Person(one, "bob-key", "bob")
        for who in (ada, bob, far):
            await furnish(who, f"{receiver.url}/hook")
        phone = PairedDevice(one.http)
        await phone.pair(bob.token, "weak", scopes=["channels:connect", "approvals:read"])
        weak = Person(one, phone.token, "weak", bob.ids)
        yield World(rig, one, ada, (bob, far, weak))


def blur(text: str, ada: Person) -> str:
    """The text with other random characters in each id: with these, none of them exists."""
    return _ID.sub(r"\g<1>" + "0" * 16, text).replace(str(ada.ids["sha256"]), "0" * 64)


def make_unreal(params: JsonObject, ada: Person) -> JsonObject:
    """The parameters with an id that does not exist in place of each of Ada's."""
    made: JsonObject = {}
    for name, value in params.items():
        is_hers = name in NAMED and value == ada.ids.get(name)
        made[name] = orjson.loads(blur(orjson.dumps(value).decode(), ada)) if is_hers else value
    return made


def list_cases(call: str, hers: dict[str, Json], own: dict[str, Json]) -> Iterator[JsonObject]:
    """The parameters of a call with ids of another owner: all of them, then each of them beside own ones."""
    schema = cast("dict[str, Any]", wire_schema(CALLS[call].params))
    properties = schema.get("properties", {})
    needed = (*(schema.get("required") or ()), *BESIDE.get(call, ()))
    lists = {name for name, form in properties.items() if "array" in orjson.dumps(form).decode()}
    lawful = {name: value for name, value in LAWFUL.get(call, {}).items() if name in properties}
    names = [
        name
        for name in properties
        if name in NAMED - CHOSEN and (name in lists) == isinstance(hers[name], list)
    ]
    if any(name in needed for name in names):
        yield lawful | {name: hers[name] for name in needed if name in hers}
    mine = lawful | {name: own[name] for name in needed if name in own}
    yield from (mine | {name: hers[name]} for name in names)


async def call_over_http(who: Person, operation: RouteOperation, params: JsonObject) -> str:
    path, rest = operation.path, dict(params)
    for name in operation.path_params:
        path = path.replace(f"{{{name}}}", quote(str(rest.pop(name)), safe=""))
    if operation.method == "GET":
        answer = await who.ask("GET", path, query=cast("dict[str, str | list[str]]", rest))
    else:
        answer = await who.ask(operation.method, path, rest)
    heads = {
        name: value
        for name, value in answer.headers.items()
        if name not in {"date", "content-length"}
    }
    return f"{answer.status_code} {heads} {answer.text}"


async def test_ids_of_another_owner_get_the_answers_of_missing_ones(rig: Rig) -> None:
    async with open_world(rig) as world:
        ada, told, tried = world.ada, list[object](), 0
        before = world.read_streams()
        for who in world.strangers:
            for operation in OPERATIONS:
                for params in list_cases(operation.call.name, ada.ids, who.ids):
                    real = await call_over_http(who, operation, params)
                    unreal = await call_over_http(who, operation, make_unreal(params, ada))
                    tried += 1
                    if blur(real, ada) != blur(unreal, ada):
                        told.append((who.name, operation.path, params, real, unreal))
        assert told == []
        assert tried > 250
        assert world.read_streams() == before


async def test_ids_of_another_owner_get_the_answers_of_missing_ones_over_channels(rig: Rig) -> None:
    async with open_world(rig) as world:
        ada, before = world.ada, world.read_streams()
        for who in world.strangers:
            calls = [
                (call, one)
                for call in CALLS
                for params in list_cases(call, ada.ids, who.ids)
                for one in (params, make_unreal(params, ada))
            ]
            answers = await call_over_channels(who, calls)
            pairs = zip(calls[::2], answers[::2], answers[1::2], strict=True)
            told = [pair for pair in pairs if blur(pair[1], ada) != blur(pair[2], ada)]
            assert told == []
        assert world.read_streams() == before


async def call_over_channels(who: Person, calls: list[tuple[str, JsonObject]]) -> list[str]:
    """Sends the calls in order, up to 50 over each channel."""
    found: list[str] = []
    for some in batched(calls, 50):
        async with open_channel(str(who.one.http.base_url).rstrip("/")) as channel:
            await channel.greet(who.token, f"dev_{who.name}")
            for call, params in some:
                name = f"c{next(_NUMBERS)}"
                frame: JsonObject = {"t": "rpc", "id": name, "m": call, "d": params, "idem": name}
                await channel.send(frame)
                while not (answered := [one for one in channel.frames if one.get("id") == name]):
                    await channel.read_more()
                found.append(orjson.dumps({**answered[0], "id": ""}).decode())
    return found


def list_streams(ids: dict[str, Json]) -> list[str]:
    session, thread, task = ids["sessionId"], ids["threadId"], ids["taskId"]
    return [
        *(f"{word}:{session}" for word in ("session", "inputs", "results")),
        f"messages:{thread}",
        f"task:{task}",
        f"inbox:{ids['owner']}",
    ]


async def test_streams_of_another_owner_get_the_answers_of_missing_ones(rig: Rig) -> None:
    async with open_world(rig) as world:
        ada = world.ada
        for who in world.strangers:
            for name in list_streams(ada.ids):
                for path in ("events?wait=0", "snapshot"):
                    real = await who.ask("GET", f"/v1/streams/{name}/{path}")
                    unreal = await who.ask("GET", f"/v1/streams/{blur(name, ada)}/{path}")
                    # The weak device may follow no stream but the inbox.
                    refused = {httpx.codes.FORBIDDEN} if who.name == "weak" else set[int]()
                    assert real.status_code in {httpx.codes.NOT_FOUND, *refused}, (name, real.text)
                    assert blur(real.text, ada) == blur(unreal.text, ada), name
                await refuse_frames(who, name, ada)


async def refuse_frames(who: Person, name: str, ada: Person) -> None:
    """A channel of its own for each stream: many refused frames close one."""
    async with open_channel(str(who.one.http.base_url).rstrip("/")) as channel:
        await channel.greet(who.token, f"dev_{who.name}")
        for kind in ("sub", "snap"):
            said: list[str] = []
            for one in (name, blur(name, ada)):
                ref = f"c{next(_NUMBERS)}"
                await channel.send({"t": kind, "s": one, "id": ref})
                while not (found := [it for it in channel.frames if it.get("id") == ref]):
                    await channel.read_more()
                said.append(orjson.dumps({**found[0], "id": ""}).decode())
            assert blur(said[0], ada) == blur(said[1], ada), said
            assert '"t":"error"' in said[0], said


def list_a2a_calls(ids: Mapping[str, Json]) -> Iterator[tuple[str, JsonObject]]:
    """Each A2A call that takes an id, with those of a caller."""
    task, context = ids["taskId"], ids["contextId"]
    config: JsonObject = {"taskId": task, "url": "http://127.0.0.1:9/hook"}
    yield from ((name, {"id": task}) for name in ("GetTask", "CancelTask", "SubscribeToTask"))
    yield "CreateTaskPushNotificationConfig", config
    yield "ListTaskPushNotificationConfigs", {"taskId": task}
    for name in ("GetTaskPushNotificationConfig", "DeleteTaskPushNotificationConfig"):
        yield name, {"taskId": task, "id": "c"}
    yield "ListTasks", {"contextId": context}
    named: tuple[JsonObject, ...] = (
        {"taskId": task},
        {"taskId": task, "contextId": context},
        {"referenceTaskIds": [task]},
    )
    message: JsonObject = {"role": "ROLE_USER", "parts": [{"text": "message hi"}]}
    for method in ("SendMessage", "SendStreamingMessage"):
        for members in named:
            given: JsonObject = {**message, "messageId": f"m{next(_NUMBERS)}", **members}
            yield method, {"message": given}


Call: TypeAlias = "Callable[[str, JsonObject], Awaitable[str]]"


@asynccontextmanager
async def open_a2a(binding: str, who: Person) -> AsyncGenerator[Call]:
    """Calls of A2A over a binding, with their answers as text."""
    base, key = str(who.one.http.base_url).rstrip("/"), {"Authorization": f"Bearer {who.token}"}
    if binding == "grpc":
        async with open_grpc(who, key) as call:
            yield call
        return
    socket = f"{base.replace('http', 'ws', 1)}/agents/echo/ws"
    carried = SocketTransport(socket, key) if binding == "websocket" else None
    async with httpx.AsyncClient(transport=carried) as http:

        async def call_rpc(method: str, params: JsonObject) -> str:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            headers = {**key, "A2A-Version": "1.0"}
            answer = await http.post(f"{base}/agents/echo", json=body, headers=headers)
            told = answer.text.splitlines()
            lines = [line for line in told if not line.startswith(("id:", "retry:"))]
            return f"{answer.status_code} {lines}"

        yield call_rpc


@asynccontextmanager
async def open_grpc(who: Person, key: dict[str, str]) -> AsyncGenerator[Call]:
    face = who.one.face
    server = await start_grpc(GrpcFace(face.operations, face.parts, None), "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        caller = GrpcCaller(channel, "echo", key)

        async def call(method: str, params: JsonObject) -> str:
            if method in {"SubscribeToTask", "SendStreamingMessage"}:
                async with caller.stream(method, params) as stream:
                    return f"{stream.refusal and 'error'} {stream.refusal} {await stream.collect()}"
            answer = await caller.call(method, params)
            return f"{answer.refusal and 'error'} {answer.refusal} {answer.result}"

        yield call
    await server.stop()


@pytest.mark.parametrize("binding", ["http", "websocket", "grpc"])
async def test_ids_of_another_owner_get_the_answers_of_missing_ones_over_a2a(
    rig: Rig, binding: str
) -> None:
    async with open_world(rig) as world:
        ada, before = world.ada, world.read_streams()
        for who in world.strangers:
            async with open_a2a(binding, who) as call:
                for method, params in list_a2a_calls(ada.ids):
                    unreal = orjson.loads(blur(orjson.dumps(params).decode(), ada))
                    if "message" in unreal:
                        unreal["message"]["messageId"] += "u"
                    said = [_ID.sub("id", await call(method, one)) for one in (params, unreal)]
                    assert said[0] == said[1], (who.name, method, params)
                    # What is referred to need not exist, and no list of a context is an error.
                    if method != "ListTasks" and b"referenceTaskIds" not in orjson.dumps(params):
                        assert "error" in said[0], (method, params, said[0])
        assert world.read_streams() == before
