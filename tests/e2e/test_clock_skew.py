"""Gateways with a wrong machine clock: stored times and due times follow the clock of the store."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, cast

import orjson
import pytest

from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import parse_ms
from passerelle.demo.processes import GatewayProcess
from passerelle.store.engine_binary import find_engine
from tests.support.engine import Server, ask, run_server
from tests.support.processes import (
    AGENT,
    Answer,
    Caller,
    open_caller,
    run_gateway,
    share_owner,
    skew_clock,
    start_together,
)
from tests.support.scripted_peer import ScriptedPeer
from tests.support.stored_events import find_streams, list_stored
from tests.support.waiting import wait_until

SKEW_S: Final = 600.0
TOTAL_S: Final = 5
PRECISE_MS: Final = 1_000
TIMEOUTS: Final[JsonObject] = {"total": f"{TOTAL_S}s", "idle": f"{TOTAL_S}s"}

pytestmark = pytest.mark.anyio


def true_ms() -> int:
    """The time of this machine, which is the store's."""
    return time.time_ns() // 1_000_000  # noqa: TID251  what the gateways are held against


def read_due(server: Server, kind: str) -> list[int]:
    """The due times of the rows of one kind, in all shards."""
    found: list[int] = []
    for name in cast("list[bytes]", ask(server.url, "KEYS", "{*}:due")):
        rows = cast(
            "list[tuple[bytes, float]]",
            ask(server.url, "ZRANGE", name.decode(), 0, -1, "WITHSCORES"),
        )
        found += [int(score) for member, score in rows if member.startswith(kind.encode())]
    return found


def read_events(server: Server, session: str) -> list[Answer]:
    """The stored events of a session."""
    (stream,) = find_streams(server.url, session)
    return [orjson.loads(entry.data) for entry in list_stored(server.url, stream)]


async def look_at_clocks(caller: Caller) -> float:
    """The store's clock offset according to ``/readyz`` and the metric, in seconds."""
    ready = await caller.http.get("/readyz")
    assert ready.status_code == 200
    metrics = (await caller.http.get("/metrics")).text
    (line,) = [one for one in metrics.splitlines() if one.startswith("passerelle_store_clock_skew")]
    skew_s = float(line.split()[1])
    assert ("clock" in ready.json()) == (abs(skew_s) > 30), ready.json()
    return skew_s


def has_logged(gateway: GatewayProcess, event: str) -> bool:
    assert gateway.child is not None
    return f'"{event}"' in gateway.child.stderr_file.read_text("utf-8")


async def test_deadlines_expiries_and_times_follow_the_store_clock(
    tmp_path: Path,
) -> None:
    skews = {"right": 0.0, "ahead": SKEW_S, "behind": -SKEW_S}
    folders = [tmp_path / name for name in skews]
    share_owner(folders)
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(ScriptedPeer(AGENT))
        server = stack.enter_context(run_server(find_engine(None)))
        gateways = await start_together(
            stack,
            [
                run_gateway(
                    folder,
                    {AGENT: {"url": peer.url, "timeout": TIMEOUTS}},
                    environ=skew_clock(skews[folder.name]),
                    redis_url=server.url,
                )
                for folder in folders
            ],
        )
        callers = [await stack.enter_async_context(open_caller(one)) for one in gateways]
        for gateway, caller, skew_s in zip(gateways, callers, skews.values(), strict=True):
            assert await look_at_clocks(caller) == pytest.approx(-skew_s, abs=1)
            if skew_s:
                await wait_until(partial(has_logged, gateway, "clock.skew"), 15, "it is logged")
            await judge_times(server, caller, peer)
        await judge_one_stream(server, callers)


async def judge_times(server: Server, caller: Caller, peer: ScriptedPeer) -> None:
    """A run that never ends is timed out in time, and an approval states its expiry."""
    peer.hold()
    peer.release(1)
    before_ms = true_ms()
    begun = await caller.begin("work without end")
    (due_ms,) = read_due(server, "timeout:")
    assert abs(due_ms - before_ms - TOTAL_S * 1000) <= PRECISE_MS

    async def has_failed() -> bool:
        shown = await caller.get_task(begun["id"])
        return bool(shown["status"]["state"] == "TASK_STATE_FAILED")

    await wait_until(has_failed, TOTAL_S + 15, "its time is over")
    shown = await caller.get_task(begun["id"])
    assert abs(parse_ms(shown["status"]["timestamp"]) - due_ms) <= PRECISE_MS
    peer.release_all()
    before_ms = true_ms()
    asked = await caller.begin("ask Which colour?")

    async def find_question() -> str:
        return next(iter((await caller.read_record(asked["id"]))["openActions"]), "")

    action = await wait_until(find_question, 15, "the question is open")
    question = await caller.read(f"/v1/approvals/{action}")
    created_ms = parse_ms(question["createdAt"])
    assert before_ms - PRECISE_MS <= created_ms <= true_ms() + PRECISE_MS
    (expires_ms,) = read_due(server, "expire:")
    assert abs(parse_ms(question["expiresAt"]) - expires_ms) <= PRECISE_MS
    await caller.call("CancelTask", {"id": asked["id"]})


async def judge_one_stream(server: Server, callers: list[Caller]) -> None:
    """A session that all gateways write to: its times never decrease, and all are correct."""
    before_ms = true_ms()
    task = await callers[0].send("first")
    for caller in [*callers, *callers]:
        message = caller.write("more")
        cast("Answer", message["message"])["contextId"] = task["contextId"]
        await caller.call("SendMessage", message)
    session = (await callers[0].read_record(task["id"]))["sessionId"]
    times = [parse_ms(event["timestamp"]) for event in read_events(server, session)]
    assert len(times) > 7
    assert times == sorted(times)
    assert times[0] >= before_ms - PRECISE_MS
    assert times[-1] <= true_ms() + PRECISE_MS
