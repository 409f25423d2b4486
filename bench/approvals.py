"""Approvals: the time from the agent's pause to a device, and from the device's answer back to the agent.

The agent's times are those of its statuses, in whole milliseconds of this machine's clock, like the others.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast

import httpx
import yaml

from bench.inboxes import welcome
from bench.kinds import CALLERS, make_send
from bench.load import LoadOrder
from bench.rows import MeasurementError, Row, Spread
from bench.testbed import BenchGateway, open_gateway, open_load
from bench.trees import Checkout, compare, take_turns
from bench.usage import CpuMeter, read_cpu_s
from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.client.channel import ChannelClient, Event
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import parse_ms
from passerelle.demo.checks import wait_for
from passerelle.demo.processes import GatewayProcess, run_peers, start
from passerelle.runtime.common.clock import SystemClock

AGENT: Final = "payments"
_WARM: Final = 5
_OF_ONE_LINK: Final = 40
"""Approvals per device connection: a channel accepts 60 client frames in ten seconds, and one more would wait."""
_WITHIN_S: Final = 20.0
_LEFT_OPEN: Final = 400
_WELCOMES: Final = 40
_REST_S: Final = 1.0


async def measure_approvals(questions: int) -> AsyncGenerator[Row]:
    """Rows of the section, over ``questions`` approvals one after the other."""
    asked: list[float] = []
    answered: list[float] = []
    with tempfile.TemporaryDirectory(prefix="psr-bench-") as name:
        folder = Path(name)
        async with run_peers((AGENT,), folder) as peers:
            config = _write_config(folder, peers[AGENT].url)
            gateway = GatewayProcess(folder, config)
            try:
                await gateway.start()
                while len(asked) < questions:
                    async with _open(gateway) as person:
                        for number in range(min(_OF_ONE_LINK, questions - len(asked) + _WARM)):
                            to_device_ms, to_agent_ms = await person.play()
                            if number >= _WARM:
                                asked.append(to_device_ms)
                                answered.append(to_agent_ms)
            finally:
                await gateway.stop()
    yield from_times("from the agent's pause to a device, p50", asked, 0.5)
    yield from_times("from the agent's pause to a device, p99", asked, 0.99)
    yield from_times("from a decision to the agent's end, p50", answered, 0.5)
    yield from_times("from a decision to the agent's end, p99", answered, 0.99)


async def compare_approvals(rounds: int, base: Checkout) -> AsyncGenerator[Row]:
    """Rows of the section: CPU of the gateways of two checkouts, for the same approvals and the same welcomes."""
    with tempfile.TemporaryDirectory(prefix="psr-bench-") as name:
        folder = Path(name)
        async with run_peers((AGENT,), folder) as peers:
            config = _write_config(folder, peers[AGENT].url)
            async with (
                open_gateway(start, folder / "ours", config) as ours,
                open_gateway(base.begin, folder / "base", config) as theirs,
            ):
                asked = await take_turns(rounds + 1, _answer_all, ours, theirs)
                yield compare("a question until its agent ends: gateway CPU", asked[1:])
                for gateway in (ours, theirs):
                    await _leave_open(gateway)
                welcomed = await take_turns(rounds + 1, _welcome, ours, theirs)
                what = f"welcome at {_LEFT_OPEN} open questions: gateway CPU"
                yield compare(what, welcomed[1:])


async def _answer_all(gateway: BenchGateway) -> float:
    """CPU seconds for the approvals of one channel."""
    async with _open(gateway.process) as person:
        before = read_cpu_s(gateway.pid)
        for _ in range(_OF_ONE_LINK):
            await person.play()
        return read_cpu_s(gateway.pid) - before


async def _leave_open(gateway: BenchGateway) -> None:
    """Leaves approvals of bills open for their owner."""
    ask = make_send("40 EUR to the baker", "TASK_STATE_INPUT_REQUIRED")
    url, keys = gateway.find_url(AGENT), [gateway.process.token]
    async with open_load() as load:
        for _ in range(_LEFT_OPEN // CALLERS):
            await load.execute(LoadOrder("send", url, [ask], CALLERS, keys=keys))


async def _welcome(gateway: BenchGateway) -> float:
    await CpuMeter((gateway.pid,)).await_rest(_REST_S)
    return await welcome(gateway.process, gateway.process.token, _WELCOMES)


def _write_config(folder: Path, url: str) -> Path:
    config = folder / "passerelle.yaml"
    config.write_text(yaml.safe_dump({"agents": [{"name": AGENT, "url": url}]}), encoding="utf-8")
    return config


def from_times(what: str, values: Sequence[float], share: float) -> Row:
    """One percentile; the other columns are the minimum and the maximum."""
    ordered = sorted(values)
    at = ordered[min(int(len(ordered) * share), len(ordered) - 1)]
    return Row(what, Spread(ordered[0], at, ordered[-1]), "ms")


class _Person:
    """A caller with a device that receives its approvals."""

    def __init__(self, http: httpx.AsyncClient, client: ChannelClient) -> None:
        self.http, self.client = http, client
        self.seen_ms: dict[str, float] = {}
        self.fresh = asyncio.Event()

    async def listen(self) -> None:
        """Records when each approval reaches the device."""
        async for item in self.client.stream("inbox"):
            if isinstance(item, Event) and text_at(item.data, "type") == "action.required":
                self.seen_ms[text_at(item.data, "actionId")] = _now_ms()
                self.fresh.set()

    async def play(self) -> tuple[float, float]:
        """Pays a bill; returns the milliseconds of the request, and those of its answer."""
        message: JsonObject = {
            "messageId": secrets.token_hex(8),
            "role": "ROLE_USER",
            "parts": [{"text": "40 EUR to the baker"}],
        }
        task = object_at(await self._call("SendMessage", {"message": message}), "task")
        status = object_at(task, "status")
        parts = objects_at(object_at(status, "message"), "parts")
        form = object_at(object_at(parts[-1], "data"), PERMISSION)
        action = text_at(form, "action_id")
        async with asyncio.timeout(_WITHIN_S):
            while action not in self.seen_ms:
                self.fresh.clear()
                await self.fresh.wait()
        to_device_ms = self.seen_ms[action] - parse_ms(text_at(status, "timestamp"))
        answer: JsonObject = {
            "actionId": action,
            "rev": form["rev"],
            "digest": form["digest"],
            "decisionId": f"dec_{secrets.token_hex(8)}",
            "optionId": text_at(objects_at(form, "options")[0], "option_id"),
        }
        decided_ms = _now_ms()
        await self.client.call("respond_action", answer, idem=text_at(answer, "decisionId"))
        ended_ms = await self._await_end(text_at(task, "id"))
        return to_device_ms, ended_ms - decided_ms

    async def _await_end(self, task: str) -> float:
        async with asyncio.timeout(_WITHIN_S):
            while True:
                status = object_at(await self._call("GetTask", {"id": task}), "status")
                if text_at(status, "state") == "TASK_STATE_COMPLETED":
                    return parse_ms(text_at(status, "timestamp"))
                await asyncio.sleep(0.01)

    async def _call(self, method: str, params: JsonObject) -> JsonObject:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = cast("JsonObject", (await self.http.post(f"/agents/{AGENT}", json=body)).json())
        if "result" not in answer:
            raise MeasurementError(f"{method}: {answer}")
        return object_at(answer, "result")


@asynccontextmanager
async def _open(gateway: GatewayProcess) -> AsyncGenerator[_Person]:
    headers = {**gateway.authorization, "A2A-Version": "1.0"}
    address = gateway.url.replace("http", "ws", 1) + "/v1/channel"
    async with (
        httpx.AsyncClient(base_url=gateway.url, headers=headers, trust_env=False) as http,
        ChannelClient(address, token=gateway.token, device="bench") as client,
    ):
        person = _Person(http, client)
        listening = asyncio.create_task(person.listen())
        try:
            await wait_for("the device is welcomed", lambda: client.welcome is not None)
            yield person
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


def _now_ms() -> float:
    return SystemClock().now_ms()
