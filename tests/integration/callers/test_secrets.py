"""No secret in any output: responses and errors of every edge, logs, metrics, facts, reprs, ``check``.

A gateway with a secret of each kind is called correctly and incorrectly over each edge, and the test searches all its
output. Where it shows, the test proves that the secret was used. (gRPC: ``tests/integration/a2a/test_grpc.py``.)
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Final, cast

import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from passerelle.cli.check import run_check
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings.layers import Sources
from passerelle.protocol.frames import SUBPROTOCOL
from passerelle.runtime.common.clock import SystemClock
from passerelle.runtime.observability.logs import configure_logs
from tests.integration.callers.rig import Instance, Rig
from tests.support.engine import ask
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import WebhookReceiver

pytestmark = pytest.mark.anyio

CALLER: Final = "caller"
SECRETS: Final = {
    "key of a client": f"{CALLER}-key",
    "unknown key": "wrong-key-c41f",
    "bearer towards an agent": "agent-bearer-77aa",
    "key in the query of an agent": "agent-password-91bd",
    "credentials of a webhook": "hook-credentials-5e02",
    "token of a webhook": "hook-token-88c1",
    "secret_key": "5ec4e7" * 10 + "beef",
}
CHANNEL: Final = ["a2a:call", "tasks:read", "tasks:write", "channels:connect", "approvals:read"]


@pytest.fixture
async def lines() -> io.StringIO:
    """Captures all log lines, at every level."""
    written = io.StringIO()
    configure_logs("debug", "json", written)
    return written


@pytest.fixture
async def one(rig: Rig, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """A gateway with all of these secrets; the agent ``dead`` does not exist."""
    monkeypatch.setenv("ECHO_BEARER", SECRETS["bearer towards an agent"])
    monkeypatch.setenv("DEAD_KEY", SECRETS["key in the query of an agent"])
    dead = {"place": "query", "name": "key", "env": "DEAD_KEY"}
    agents = [
        {"name": "echo", "url": rig.peer.url, "auth": {"bearer_env": "ECHO_BEARER"}},
        {"name": "dead", "url": "http://127.0.0.1:9", "auth": {"api_key": dead}},
    ]
    return await rig.start(
        secret_key=SECRETS["secret_key"],
        agents=agents,
        clients=[{"name": CALLER, "scopes": CHANNEL}, {"name": "other"}],
        webhooks={"allow": ["http://127.0.0.1:*"]},
        access_log=True,
    )


async def call_http(one: Instance, hook: str) -> list[str]:
    """Calls A2A in both bindings, ``/v1``, cards, health and metrics, with each kind of credential."""
    answers: list[str] = []
    basic = base64.b64encode(f"u:{SECRETS['unknown key']}".encode()).decode()
    heads: list[dict[str, str]] = [
        {"Authorization": f"Bearer {SECRETS['key of a client']}"},
        {"X-API-Key": SECRETS["key of a client"]},
        {"Authorization": f"Bearer {SECRETS['unknown key']}"},
        {"Authorization": f"Basic {basic}"},
        {"X-API-Key": SECRETS["unknown key"], "traceparent": SECRETS["token of a webhook"]},
    ]
    push: JsonObject = {
        "url": hook,
        "token": SECRETS["token of a webhook"],
        "authentication": {
            "scheme": "Bearer",
            "credentials": SECRETS["credentials of a webhook"],
        },
    }
    for head in heads:
        for agent in ("echo", "dead", "nobody") if head is heads[0] else ("echo", "nobody"):
            message = one.message("ask which?", taskPushNotificationConfig=push)
            for method, params in (
                ("SendMessage", message),
                ("GetTask", {"id": f"task_{SECRETS['unknown key']}"}),
                ("Nonsense", push),
            ):
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                got = await one.http.post(f"/agents/{agent}", json=body, headers=head)
                if method != "GetTask":  # the error repeats the id that the caller sent
                    answers.append(got.text + str(got.headers))
            rest = await one.http.post(f"/agents/{agent}/message:send", json=message, headers=head)
            card = await one.http.get(f"/agents/{agent}/.well-known/agent-card.json", headers=head)
            extended = await one.http.get(f"/agents/{agent}/extendedAgentCard", headers=head)
            answers += [got.text + str(got.headers) for got in (rest, card, extended)]
        for path in ("/v1/agents", "/v1/deliveries", "/v1/tasks", "/v1/actions", "/readyz"):
            answers.append((await one.http.get(path, headers=head)).text)
        turn = {"agent": "dead", "text": "hello"}
        answers.append((await one.http.post("/v1/turns", json=turn, headers=head)).text)
        answers.append((await one.http.post("/v1/turns", content=b"{", headers=head)).text)
    answers.append((await one.http.get("/metrics")).text)
    return answers


async def call_channel(one: Instance) -> list[str]:
    """Opens a channel with a valid key and one with an unknown key, and makes failing calls."""
    received: list[str] = []
    url = f"{one.http.base_url}".replace("http", "ws", 1).rstrip("/") + "/v1/channel"
    for key in (SECRETS["key of a client"], SECRETS["unknown key"]):
        async with connect(url, subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=None) as socket:
            hello = {"t": "hello", "v": 1, "token": key, "device": "d", "role": "ui", "sdk": "t"}
            await socket.send(orjson.dumps({**hello, "caps": ["rpc"], "subs": []}).decode())
            received.append(str(await socket.recv()))
            if '"welcome"' not in received[-1]:
                continue
            for number, method in enumerate(("list_actions", "submit_turn", "no_such_call")):
                call = {"t": "rpc", "id": str(number), "m": method, "d": {"agent": "dead"}}
                await socket.send(orjson.dumps(call).decode())
                received.append(str(await socket.recv()))
    assert len(received) == 5
    return received


def read_store(url: str) -> list[str]:
    """Returns every value of every key."""
    reads = {
        b"string": ("GET",),
        b"hash": ("HGETALL",),
        b"stream": ("XRANGE", "-", "+"),
        b"zset": ("ZRANGE", "0", "-1"),
        b"set": ("SMEMBERS",),
        b"list": ("LRANGE", "0", "-1"),
    }
    found: list[str] = []
    for key in cast("list[bytes]", ask(url, "KEYS", "*")):
        name = key.decode()
        kind = cast("bytes", ask(url, "TYPE", name))
        if kind == b"none":
            continue  # it has expired since KEYS
        verb, *rest = reads[kind]
        found.append(f"{name} {ask(url, verb, name, *rest)}")
    return found


async def run_checks(rig: Rig, folder: Path) -> list[str]:
    """Returns the output of ``check`` for a configuration with secrets, one of them in a server address."""
    password = SECRETS["key in the query of an agent"]
    (folder / "passerelle.yaml").write_text(
        f"redis_url: redis://user:{password}@127.0.0.1:9\n"
        f"secret_key: {SECRETS['secret_key'][:40]}\n"
        "agents:\n"
        f"  - {{name: echo, url: '{rig.peer.url}', auth: {{bearer_env: ECHO_BEARER}}}}\n",
        encoding="utf-8",
    )
    bad = await run_check(Sources({"ECHO_BEARER": "x\r\n" + password}, folder), SystemClock())
    text = (folder / "passerelle.yaml").read_text(encoding="utf-8")
    whole = text.replace(SECRETS["secret_key"][:40], SECRETS["secret_key"])
    (folder / "passerelle.yaml").write_text(whole, encoding="utf-8")
    good = await run_check(Sources({"ECHO_BEARER": password}, folder), SystemClock())
    assert bad.faults
    assert any("redis_url" in fault for fault in good.faults)
    return [*bad.lines, *bad.faults, *good.lines, *good.faults]


def list_reprs(*roots: object) -> list[str]:
    """Returns the leaf reprs of these objects, each shared part once."""
    found: list[str] = []
    seen: dict[int, object] = {}
    waiting = [*roots]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        shown = getattr(type(one).__repr__, "__wrapped__", None)
        if is_dataclass(one) and shown is not None and shown.__qualname__.endswith("__repr__"):
            waiting += [getattr(one, each.name) for each in fields(one) if each.repr]
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting += one
        elif isinstance(one, partial):
            waiting += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, MethodType):
            waiting.append(one.__self__)
        else:
            found.append(repr(one))
    return found


async def test_no_secret_is_in_any_output(
    rig: Rig, one: Instance, lines: io.StringIO, tmp_path: Path
) -> None:
    async with WebhookReceiver() as receiver:
        hook = f"{receiver.url}/hook"
        receiver.answer("/hook", *[500] * 50)
        leaves = {
            "HTTP": await call_http(one, hook),
            "channel": await call_channel(one),
        }
        await wait_until(lambda: receiver.notices != [], 10, "a webhook was tried")
    leaves["check"] = await run_checks(rig, tmp_path)
    leaves["facts"] = read_store(rig.url)
    leaves["metrics"] = [one.gateway.metrics.render().decode()]
    leaves["reprs"] = [
        repr(one.settings),
        str(one.settings),
        repr(one.settings.model_dump()),
        *list_reprs(one.access, one.gateway, one.face.parts),
    ]
    leaves["logs"] = lines.getvalue().splitlines()
    assert all(leaves.values())
    assert [
        f"{secret} in {edge}: {text[:300]}"
        for edge, texts in leaves.items()
        for text in texts
        for secret, value in SECRETS.items()
        if value in text
    ] == []

    used = [notice.headers for notice in receiver.notices]
    assert used[0]["Authorization"] == f"Bearer {SECRETS['credentials of a webhook']}"
    assert used[0]["X-A2A-Notification-Token"] == SECRETS["token of a webhook"]
    wanted = f"Bearer {SECRETS['bearer towards an agent']}"
    assert {request.headers["authorization"] for request in rig.peer.requests} == {wanted}
