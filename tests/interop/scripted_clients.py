"""Foreign callers as processes: orders are sent as lines of JSON, and the foreign library's results come back.

Results have the form of A2A 1.0 or 0.3, whichever the library supports; ``Seen`` is the same for both.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, cast

import orjson

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.wire.json import JsonObject
from tests.interop.environments import ADK, FASTA2A, HERE, JAVASCRIPT, PYTHON_0_3, find_node

_WITHIN_S: Final = 20.0
_KINDS: Final = {"statusUpdate": "status", "status-update": "status"} | {
    "artifactUpdate": "artifact",
    "artifact-update": "artifact",
}
COMMANDS: Final = {
    "javascript": (find_node, JAVASCRIPT / "client.mjs", JAVASCRIPT / "agent.mjs"),
    "python_0_3": (
        lambda: str(PYTHON_0_3 / ".venv/bin/python"),
        PYTHON_0_3 / "client.py",
        PYTHON_0_3 / "agent.py",
    ),
    "javascript_talker": (find_node, None, JAVASCRIPT / "talker.mjs"),
    "python_0_3_talker": (
        lambda: str(PYTHON_0_3 / ".venv/bin/python"),
        None,
        PYTHON_0_3 / "talker.py",
    ),
    "python_1_0": (lambda: sys.executable, None, HERE / "asking_agent.py"),
    "adk": (lambda: str(ADK / ".venv/bin/python"), None, ADK / "agent.py"),
    "fasta2a": (lambda: str(FASTA2A / ".venv/bin/python"), None, FASTA2A / "agent.py"),
}


class Failed(Exception):
    """The foreign library raised; the text is its own."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One result of a caller: ``kind`` is task, message, status or artifact; ``state`` a word such as completed."""

    kind: str
    state: str
    texts: tuple[str, ...]
    task: str
    context: str


def read(value: JsonObject) -> Seen:
    """The one object that ``value`` contains under its kind."""
    ((name, inner),) = value.items()
    kind, body = _KINDS.get(name, name), cast("JsonObject", inner)
    holders = {
        "task": objects_at(body, "artifacts"),
        "artifact": [object_at(body, "artifact")],
        "message": [body],
        "status": [object_at(object_at(body, "status"), "message")],
    }[kind]
    parts = [part for holder in holders for part in objects_at(holder, "parts")]
    state = text_at(object_at(body, "status"), "state").removeprefix("TASK_STATE_")
    return Seen(
        kind=kind,
        state=state.lower().replace("_", "-"),
        texts=tuple(text_at(part, "text") for part in parts if "text" in part),
        task=text_at(body, "id") or text_at(body, "taskId"),
        context=text_at(body, "contextId"),
    )


@dataclass(slots=True)
class ScriptedClient:
    """One caller process."""

    process: asyncio.subprocess.Process
    _answers: dict[int, asyncio.Queue[JsonObject]] = field(
        default_factory=lambda: defaultdict(asyncio.Queue)
    )
    _orders: int = 0

    async def ask(self, act: str, **what: str) -> JsonObject:
        """Sends an order with one answer."""
        async for answer in self._order(act, **what):
            if "result" in answer:
                return object_at(answer, "result")
        raise Failed("no answer")

    async def send(self, text: str, **ids: str) -> Seen:
        return read(await self.ask("send", text=text, **ids))

    async def get(self, task: str) -> Seen:
        return read(await self.ask("get", task=task))

    async def cancel(self, task: str) -> Seen:
        return read(await self.ask("cancel", task=task))

    async def follow(self, act: str, **what: str) -> AsyncGenerator[Seen, None]:
        """Sends an order with a stream of answers."""
        async for answer in self._order(act, **what):
            if "event" in answer:
                yield read(object_at(answer, "event"))

    async def _order(self, act: str, **what: str) -> AsyncGenerator[JsonObject, None]:
        """All answers to one order, the last one with ``result``.

        Raises:
            Failed: the foreign library raised.
        """
        self._orders += 1
        number = self._orders
        assert self.process.stdin is not None
        self.process.stdin.write(orjson.dumps({"id": number, "do": act, **what}) + b"\n")
        await self.process.stdin.drain()
        while True:
            async with asyncio.timeout(_WITHIN_S):
                answer = await self._answers[number].get()
            if "error" in answer:
                raise Failed(text_at(answer, "error"))
            yield answer
            if "result" in answer:
                return

    async def listen(self) -> None:
        """Reads its output to the end."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            answer = cast("JsonObject", orjson.loads(line))
            await self._answers[cast("int", answer["id"])].put(answer)


@asynccontextmanager
async def open_client(
    library: str, card_url: str, token: str, binding: str
) -> AsyncGenerator[ScriptedClient, None]:
    """A caller of the agent whose card is at ``card_url``."""
    command, client, _ = COMMANDS[library]
    process = await asyncio.create_subprocess_exec(
        command(),
        str(client),
        card_url,
        token,
        binding,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    scripted = ScriptedClient(process)
    listening = asyncio.create_task(scripted.listen())
    try:
        yield scripted
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await listening


@asynccontextmanager
async def run_agent(
    library: str, binding: str, *, quiet: bool = False
) -> AsyncGenerator[str, None]:
    """A foreign library's agent; yields the URL of its card's host. A quiet one does not print errors."""
    command, _, agent = COMMANDS[library]
    process = await asyncio.create_subprocess_exec(
        command(),
        str(agent),
        binding,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL if quiet else None,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_WITHIN_S):
            line = (await process.stdout.readline()).decode()
        if not line.startswith("ready "):
            raise Failed(f"the agent of {library} did not start")
        yield line.removeprefix("ready ").strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
