"""The whole product for end-to-end tests: ``passerelle serve`` as a process, and direct access to its store.

A gateway is shared by the tests of a module. A peer runs in the test's own loop and only during a test, so the
gateway has no connection to it before or after.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import httpx
import orjson
import yaml

from passerelle.core.ports.log import StreamRef
from passerelle.core.wire.json import JsonObject
from passerelle.demo.processes import GatewayProcess
from passerelle.gateway.auth.keys import mint_token
from passerelle.gateway.settings.local_gateway import OWNER_FILE
from passerelle.runtime.common.clock import SystemIds
from tests.support.engine import ask
from tests.support.fork_server import find_starter
from tests.support.ports import find_free_port
from tests.support.stored_events import find_streams, list_stored
from tests.support.waiting import wait_until

# A whole answer, as tests read it: a missing member fails the test by itself.
Answer = dict[str, Any]

AGENT: Final = "scripted"
_HOME: Final = b'"title":"home"'
TERMINAL: Final = frozenset(
    f"TASK_STATE_{state}" for state in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
)


@contextlib.asynccontextmanager
async def run_gateway(
    folder: Path,
    agents: Mapping[str, str | JsonObject],
    *,
    environ: Mapping[str, str] | None = None,
    **settings: object,
) -> AsyncGenerator[GatewayProcess]:
    """A ready gateway for agents (name, and URL or whole section), with a data directory below ``folder``."""
    listed = [
        {"name": name, **({"url": said} if isinstance(said, str) else said)}
        for name, said in agents.items()
    ]
    config = folder / "passerelle.yaml"
    config.write_text(yaml.safe_dump({"agents": listed, **settings}), encoding="utf-8")
    gateway = GatewayProcess(
        folder,
        config,
        environ={"PASSERELLE_LOG_FORMAT": "json", **(environ or {})},
        port=find_free_port(),
        begin=find_starter(environ),
    )
    try:
        await gateway.start()
        yield gateway
    finally:
        await gateway.stop()


async def start_together(
    stack: contextlib.AsyncExitStack,
    gateways: Iterable[contextlib.AbstractAsyncContextManager[GatewayProcess]],
) -> list[GatewayProcess]:
    """Starts gateways concurrently: most of a start is imports, which take long on a loaded machine."""
    async with asyncio.TaskGroup() as group:
        starting = [group.create_task(stack.enter_async_context(one)) for one in gateways]
    return [one.result() for one in starting]


def share_owner(folders: Iterable[Path]) -> None:
    """Creates one owner token for the data directories of several gateways."""
    token = mint_token(SystemIds()).get_secret_value()
    for folder in folders:
        data = folder / "data"
        data.mkdir(parents=True, mode=0o700)
        kept = data / OWNER_FILE
        kept.touch(mode=0o600)
        kept.write_text(token, encoding="ascii")


class Caller:
    """A caller of one agent behind the gateway, over A2A 1.0 JSON-RPC and ``/v1``."""

    def __init__(self, http: httpx.AsyncClient, agent: str = AGENT) -> None:
        self.http = http
        self.agent = agent
        self._sent = 0

    async def ask(self, method: str, params: JsonObject) -> Answer:
        """The whole JSON-RPC answer, including errors."""
        answer = await self.http.post(f"/agents/{self.agent}", json=_compose(method, params))
        return cast("Answer", answer.json())

    async def call(self, method: str, params: JsonObject) -> Answer:
        """The result of a call that must succeed."""
        answer = await self.ask(method, params)
        assert "result" in answer, answer
        return cast("Answer", answer["result"])

    def write(self, text: str, **ids: str) -> JsonObject:
        """The parameters of SendMessage; ``taskId`` and ``contextId`` continue a task or a context."""
        self._sent += 1
        message: JsonObject = {
            "messageId": f"m-{id(self)}-{self._sent}",
            "role": "ROLE_USER",
            "parts": [{"text": text}],
            **ids,
        }
        return {"message": message}

    async def send(self, text: str, **ids: str) -> Answer:
        """Sends a message and waits for its Task."""
        return cast("Answer", (await self.call("SendMessage", self.write(text, **ids)))["task"])

    async def begin(self, text: str) -> Answer:
        """Sends a message and returns its Task at once."""
        params = self.write(text)
        params["configuration"] = {"returnImmediately": True}
        return cast("Answer", (await self.call("SendMessage", params))["task"])

    async def stream(self, text: str) -> list[Answer]:
        """The frames of a message, to the end of the stream."""
        return [frame async for frame in self.follow(text)]

    async def follow(self, text: str) -> AsyncGenerator[Answer]:
        """The frames of a message, as they arrive."""
        body = _compose("SendStreamingMessage", self.write(text))
        async with self.http.stream("POST", f"/agents/{self.agent}", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    yield orjson.loads(line.removeprefix("data:"))["result"]

    async def get_task(self, task_id: str) -> Answer:
        """The task as its caller sees it."""
        return await self.call("GetTask", {"id": task_id})

    async def await_question(self, task_id: str) -> None:
        """Returns once the agent of a task requests input or approval."""

        async def is_asked() -> bool:
            status = (await self.get_task(task_id))["status"]
            return cast("str", status["state"]) == "TASK_STATE_INPUT_REQUIRED"

        await wait_until(is_asked, 15, f"{task_id} waits for an answer")

    async def await_end(self, task_id: str, within_s: float = 15) -> Answer:
        """The task, once it has ended."""

        async def look() -> Answer | None:
            task = await self.get_task(task_id)
            return task if task["status"]["state"] in TERMINAL else None

        task = await wait_until(look, within_s, f"{task_id} ends")
        assert task is not None
        return task

    async def read(self, path: str) -> Answer:
        """A read of the control plane."""
        answer = await self.http.get(path)
        assert answer.status_code == httpx.codes.OK, answer.text
        return cast("Answer", answer.json())

    async def read_record(self, task_id: str) -> Answer:
        """The local record of a task."""
        return await self.read(f"/v1/tasks/{task_id}")


@contextlib.asynccontextmanager
async def open_caller(gateway: GatewayProcess, agent: str = AGENT) -> AsyncGenerator[Caller]:
    """A caller with the owner's token."""
    headers = {**gateway.authorization, "A2A-Version": "1.0"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=20) as http:
        yield Caller(http, agent)


def find_engine_url(gateway: GatewayProcess) -> str:
    """The engine socket of a running gateway."""
    return f"unix://{(gateway.data_dir / 'socket').read_text(encoding='utf-8')}"


def find_engine_pid(gateway: GatewayProcess) -> int:
    """The process id of that engine."""
    info = cast("Mapping[str, int]", ask(find_engine_url(gateway), "INFO", "server"))
    return info["process_id"]


SKEW: Final = Path(__file__).parent / "skew"


def skew_clock(ahead_s: float) -> dict[str, str]:
    """The environment in which a process sees its clock ``ahead_s`` seconds ahead."""
    return {"PYTHONPATH": str(SKEW), "SKEWED_CLOCK_S": str(ahead_s)}


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split(") ")[1][0] != "Z"
    except OSError:
        return False


def read_stored(gateway: GatewayProcess, session: str) -> list[Answer]:
    """Every stored event of a session, read directly from the engine."""
    return [orjson.loads(data) for data in read_entries(gateway, session)]


def read_entries(gateway: GatewayProcess, session: str) -> list[bytes]:
    """The stored bytes of every event of a session."""
    url = find_engine_url(gateway)
    (stream,) = find_streams(url, session)
    return [entry.data for entry in list_stored(url, stream)]


def count_stored(gateway: GatewayProcess) -> tuple[int, int, int]:
    """Number of sessions, tasks and events in the store, without home sessions, which contain no work."""
    url = find_engine_url(gateway)
    tasks = cast("list[bytes]", ask(url, "KEYS", "{*}:t:task_*"))
    counts = [count for stream in find_streams(url) if (count := _count_events(url, stream))]
    return len(counts), len(tasks), sum(counts)


def _count_events(url: str, stream: StreamRef) -> int:
    entries = list_stored(url, stream)
    # A session may be removed between the listing and this read.
    return 0 if not entries or _HOME in entries[0].data else len(entries)


def _compose(method: str, params: JsonObject) -> JsonObject:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
