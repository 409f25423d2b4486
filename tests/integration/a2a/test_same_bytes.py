"""With every fast path off, stored and answered bytes are the same.

A message may be stored from a template, be started in the callback that read it, and arrive under a cached head: all of
that only saves cost. Two thousand messages and answers, drawn from the definition of A2A, run each way, most of them in
the context of the message before, some under an idempotency key or with a webhook. The test compares the bytes sent to
the store and to the callers, except ids, times, key names and sealed values. A few hundred more run with policy hooks.
"""

from __future__ import annotations

import asyncio
import random  # noqa: TID251  seeded, so that a failure comes again
import re
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import orjson
import pytest

from passerelle.core.batch import Batch, PackedBatch
from passerelle.delegation.runs import delivery, turn_templates
from passerelle.delegation.runs.turn_templates import TemplatedTurns
from passerelle.gateway.a2a.unary import UnaryCalls
from passerelle.permission_bridge.hook_terms import HookTerms
from passerelle.permission_bridge.hooks import hooks as asked
from passerelle.permission_bridge.rules import make_policy
from passerelle.runtime.common.clock import SystemIds
from passerelle.runtime.common.sealer import make_sealer
from passerelle.store.append import pack_append
from passerelle.store.log import RedisEventLog
from passerelle.webhooks.push_configs import PushConfigs
from tests.integration.a2a.rig import OWNER, Rig, run_rig
from tests.support.drawn import Drawer
from tests.support.scripted_tasks import ScriptedFrame

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path
    from types import ModuleType

    from passerelle.core.batch import AppendResult
    from passerelle.core.payloads.governance import HookPoint
    from passerelle.core.wire.json import JsonObject
    from tests.support.engine import Server
    from tests.support.scripted_peer import ScriptedPeer
    from tests.support.scripted_tasks import Turn, TurnScript

pytestmark = pytest.mark.anyio

MESSAGES: Final = 2_000
JUDGED: Final = 400
"""Messages with policy hooks."""
UNKEYED: Final = 0.7
"""Share of messages without a key; they come first, because a cached head has no key."""
HERE: Final = "tests.integration.a2a.test_same_bytes"
FURTHER: Final = 0.6
"""Share of messages that continue the context of the one before."""
OWN: Final = 0.3
"""Share of the others whose caller names its new context."""
SEED: Final = 20
_ROUND: Final = 2_048
WITH_WEBHOOK: Final = 0.25
"""Share of messages with a push notification config."""
ENDS: Final = ("COMPLETED", "COMPLETED", "COMPLETED", "FAILED", "REJECTED", "CANCELED")
_IDS: Final = re.compile(
    rb"[a-z]{2,5}_[0-3][0-9a-f][0-9abcdefghjkmnpqrstvwxyz]{26}"  # minted by the gateway
    rb"|[0-9a-f]{8}-[0-9a-f]{4}-8705-[0-9a-f]{4}-[0-9a-f]{12}"  # contexts at the agent
)
_VARIES: Final = re.compile(
    rb"\{[0-3][0-9a-f]\}"  # tags of shards
    rb"|20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"  # times
    rb"|\b1[6-9]\d{11}\b"  # the same in ms
    rb'|"mint":"[0-9a-f]{8}"'  # the mint that ids are derived from
    rb"|(?<=idem:)[0-9a-f]{32}"  # key names
    rb"|own-(?:short|whole)-\d+"
    rb'|(?<="sealed":")[^"]+'
    rb'|"idem":\[\d+,"[0-9a-f]{32,64}"'  # and digests of requests that name a context
    rb'|"(?:updatedDigest|updatedInput)":"(?:sha256:)?[0-9a-f]+"'  # of input that a hook has changed
    rb'|(?<=blob:)[0-9a-f]{64}|(?:(?<="blob":")|(?<="sha256":"))[0-9a-f]{64}'  # digests of content with ids
)


@dataclass(slots=True)
class Seen:
    """The result of one message: the caller's response and the appends sent to the store."""

    answer: bytes = b""
    appends: list[bytes] = field(default_factory=list[bytes])

    def even_out(self) -> list[bytes]:
        """Returns the texts with a symbol for each id, by first occurrence, and one for other varying values."""
        known: dict[bytes, bytes] = {}

        def name(found: re.Match[bytes]) -> bytes:
            return known.setdefault(found[0], b"<%d>" % len(known))

        return [_IDS.sub(name, _VARIES.sub(b"<>", text)) for text in (*self.appends, self.answer)]


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller with a cacheable head: one connection, each request in one piece, all of equal length."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, params: JsonObject, key: str) -> bytes:
        """Returns the body of the response; an empty ``key`` sends no idempotency key."""
        named = b"Idempotency-Key: %b\r\n" % key.encode() if key else b""
        call = {"jsonrpc": "2.0", "id": 7, "method": "SendMessage"}
        body = orjson.dumps({**call, "params": params})
        body += b" " * (-len(body) % _ROUND)
        self.writer.write(
            b"POST /agents/echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"A2A-Version: 1.0\r\nAuthorization: Bearer %b\r\n%bContent-Length: %d\r\n\r\n%b"
            % (OWNER.encode(), named, len(body), body)
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        length = re.search(rb"(?i)content-length: (\d+)", head)
        assert length is not None, head
        return await self.reader.readexactly(int(length[1]))


@asynccontextmanager
async def open_caller(url: str) -> AsyncGenerator[Caller]:
    """Yields a caller on a new connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    yield Caller(reader, writer)
    writer.close()


def make_message(number: int, before: bytes, way: str) -> JsonObject:
    """Returns the caller's message; equal for equal numbers.

    ``before`` is the response to its last message. A context id chosen by the caller starts with the ``way``.
    """
    chance = random.Random(f"{SEED} message {number}")  # noqa: S311  it has to come again
    drawer = Drawer(chance)
    ids: JsonObject = {"messageId": f"m-{number}", "role": "ROLE_USER"}
    if before and chance.random() < FURTHER:
        (answer,) = orjson.loads(before)["result"].values()
        ids["contextId"] = answer["contextId"]
    elif chance.random() < OWN:
        ids["contextId"] = f"own-{way}-{number}"
    return drawer.message(**ids)


def make_params(number: int, before: bytes, way: str) -> JsonObject:
    """Returns the params of the message, some with a webhook."""
    chance = random.Random(f"{SEED} webhook {number}")  # noqa: S311  it has to come again
    params: JsonObject = {"message": make_message(number, before, way)}
    if chance.random() < WITH_WEBHOOK:
        config: JsonObject = {"url": f"https://hooks.example/{number}"}
        if chance.random() < 0.5:
            config["id"] = f"told-{number}"
        if chance.random() < 0.5:
            config["token"] = f"token {number}"
        if chance.random() < 0.5:
            config["authentication"] = {"scheme": "Bearer", "credentials": f"c-{number}"}
        params["configuration"] = {"taskPushNotificationConfig": config}
    return params


def make_script(peer: ScriptedPeer, number: int) -> TurnScript:
    """Returns the agent's script: a Message, or a Task that has ended."""
    chance = random.Random(f"{SEED} answer {number}")  # noqa: S311  it has to come again
    drawer = Drawer(chance)

    async def answer(turn: Turn) -> None:
        if chance.random() < 0.2:
            said = drawer.message(role="ROLE_AGENT", contextId=turn.context_id)
            turn.transcript.write(ScriptedFrame({"message": said}))
            return
        peer.use_task_ids(f"native-{number}")
        task = await turn.open()
        kept = task.record.get("history", [])
        drawn = drawer.task(id=task.id, contextId=task.context_id)
        if chance.random() < 0.7:
            drawn["history"] = kept
        status = drawn["status"]
        assert isinstance(status, dict)
        status["state"] = f"TASK_STATE_{chance.choice(ENDS)}"
        task.record.clear()
        task.record.update(drawn)
        task.show()

    return answer


async def play(rig: Rig, patch: pytest.MonkeyPatch, way: str, messages: int) -> list[Seen]:
    """Sends the messages one by one over one connection, the last ones under keys; ``way`` makes names unique."""
    seen: list[Seen] = []
    append = RedisEventLog.append

    async def see(log: RedisEventLog, batch: Batch | PackedBatch) -> AppendResult:
        packed = batch if isinstance(batch, PackedBatch) else pack_append(batch)
        seen[-1].appends.append(packed.call)
        return await append(log, batch)

    async with open_caller(rig.url) as caller:
        patch.setattr(RedisEventLog, "append", see)
        for number in range(messages):
            before = seen[-1].answer if seen else b""
            seen.append(Seen())
            rig.peer.next(make_script(rig.peer, number))
            key = "" if number < messages * UNKEYED else f"{way}-{number}"
            seen[-1].answer = await caller.send(make_params(number, before, way), key)
    return seen


def count(
    patch: pytest.MonkeyPatch, owner: type | ModuleType, name: str, taken: Counter[str]
) -> None:
    """Counts how often a fast path is taken, that is, returns a true value."""
    original = getattr(owner, name)

    def see(*given: object) -> object:
        found = original(*given)
        taken[name] += bool(found)
        return found

    patch.setattr(owner, name, see)


def _refuse(*_: object) -> None:
    """Replaces a fast path; never applies."""


@pytest.fixture
async def rig(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    """A rig that stores push notification configs."""
    sealer = make_sealer([b"k" * 32], SystemIds().draw)
    async with run_rig(engine_server, tmp_path / "blobs", sealer=sealer) as made:
        yield made


async def test_stored_and_answered_bytes_equal_those_without_fast_paths(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = await compare(rig, monkeypatch, MESSAGES)
    assert taken.pop("seal") > MESSAGES * WITH_WEBHOOK * 0.8, taken
    assert taken.pop("render_answer") > MESSAGES / 5, taken
    assert min(taken.values()) > MESSAGES / 3, taken
    assert len(taken) == 3


@pytest.mark.requirement("EXT-3")
async def test_stored_and_answered_bytes_equal_those_without_fast_paths_under_hooks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    points: frozenset[HookPoint] = frozenset({"before_delegate"})
    hooks = [HookTerms(name, points, call=f"{HERE}:{name}") for name in ("keep_silent", "agree")]
    rig.rules[0] = make_policy(hooks=tuple(hooks))
    monkeypatch.setattr(asked, "_count_ms", take_no_time)
    taken = await compare(rig, monkeypatch, JUDGED)
    assert taken["render_answer"] > JUDGED / 6, taken


def take_no_time(_began_s: float) -> int:
    """Returns a fixed duration of a hook, in ms: its number of digits would change lengths."""
    return 1


async def keep_silent(_given: JsonObject) -> None:
    """A hook without a verdict."""


async def agree(given: JsonObject) -> JsonObject:
    """A hook that allows, and changes some messages."""
    message = given["message"]
    assert isinstance(message, dict)
    number = int(str(message["messageId"]).removeprefix("m-"))
    if number % 16 == 0:
        return {"message": {"parts": [{"text": "changed"}]}}
    return {"verdict": "allow", "reason": f"it is {number}"}


async def compare(rig: Rig, monkeypatch: pytest.MonkeyPatch, messages: int) -> Counter[str]:
    """Compares both runs; returns how often each fast path was taken in the first."""
    taken: Counter[str] = Counter()
    with monkeypatch.context() as patch:
        count(patch, TemplatedTurns, "_fill", taken)
        count(patch, PushConfigs, "seal", taken)
        count(patch, turn_templates, "begin_known", taken)
        count(patch, UnaryCalls, "begin", taken)
        count(patch, delivery, "render_answer", taken)
        short = await play(rig, patch, "short", messages)
    with monkeypatch.context() as patch:
        patch.setattr(TemplatedTurns, "_fill", _refuse)
        patch.setattr(UnaryCalls, "begin", _refuse)
        long = await play(rig, patch, "whole", messages)
    for number, (one, other) in enumerate(zip(short, long, strict=True)):
        assert one.even_out() == other.even_out(), number
    return taken
