"""Sessions that are over leave the engine while the gateway works, is killed and goes on; nobody who reads notices."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from passerelle.cli.verify import run_verify
from passerelle.demo.processes import GatewayProcess
from passerelle.gateway.settings.model import Settings
from tests.support.processes import (
    AGENT,
    Answer,
    Caller,
    count_stored,
    find_engine_pid,
    is_alive,
    open_caller,
    run_gateway,
)
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
AT_ONCE = {"memory": "1s"}
PAUSES_S = (1.0, 1.25, 1.5, 1.75, 2.0, 2.25)
"""A look comes once a second: kills fall before it, beside it and behind it."""
TEXTS = ("hello", "chunks 3", "big", "two-artifacts", "fail", "message well")


def has_left_all(gateway: GatewayProcess) -> bool:
    """Whether no session with a task is in the engine; the homes of people stay."""
    return count_stored(gateway) == (0, 0, 0)


def is_gone(pid: int) -> bool:
    return not is_alive(pid)


async def read_all(caller: Caller, tasks: list[Answer]) -> list[Answer]:
    """What its caller and an operator read of each task."""
    found: list[Answer] = []
    for task in tasks:
        record = await caller.read_record(task["id"])
        found += [await caller.get_task(task["id"]), record]
        found.append(await caller.read(f"/v1/sessions/{record['sessionId']}"))
    found.append(await caller.call("ListTasks", {"includeArtifacts": True, "historyLength": 5}))
    return found


async def test_what_is_over_leaves_memory_and_is_read_as_before(tmp_path: Path) -> None:
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: peer.url}, retention=AT_ONCE) as gateway,
        open_caller(gateway) as caller,
    ):
        tasks: list[Answer] = []
        for text in TEXTS:
            result = await caller.call("SendMessage", caller.write(text))
            tasks += [result["task"]] if "task" in result else []
        before = await read_all(caller, tasks)
        waiting = await caller.begin("ask Which one?")
        await wait_until(lambda: count_stored(gateway)[:2] == (1, 1), 20, "what is over has left")
        still_open = await caller.get_task(waiting["id"])
        assert still_open["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        listed = await caller.call("ListTasks", {"includeArtifacts": True, "historyLength": 5})
        assert listed["tasks"][1:] == before[-1]["tasks"]
        answered = await caller.send("this one", taskId=waiting["id"])
        assert answered["status"]["state"] == "TASK_STATE_COMPLETED"
        await wait_until(lambda: has_left_all(gateway), 20, "the answered one has left as well")
        assert (await read_all(caller, tasks))[:-1] == before[:-1]
        again = await caller.send("hello again", contextId=tasks[0]["contextId"])
        assert again["contextId"] == tasks[0]["contextId"]
        await wait_until(lambda: has_left_all(gateway), 20, "a conversation leaves once more")
        gateway.kill()
        await gateway.start()
        assert (await read_all(caller, tasks[1:]))[:-1] == (await read_all(caller, tasks))[3:-1]
        assert await caller.get_task(again["id"]) == again
        metrics = (await caller.http.get("/metrics")).text
        assert 'passerelle_archived_sessions_total{outcome="failed"}' not in metrics
        report = await run_verify(Settings(data_dir=gateway.data_dir))
        assert report.lines == []
        assert report.archived == report.sessions >= len(TEXTS) + 1


async def test_a_kill_at_any_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: peer.url}, retention=AT_ONCE) as gateway,
        open_caller(gateway) as caller,
    ):
        told: dict[str, Answer] = {}
        contexts: list[str] = []
        for pause_s in PAUSES_S:
            for context in contexts[-2:]:
                task = await caller.send("hello", contextId=context)
                told[task["id"]] = task
            for text in ("hello", "chunks 3", "big"):
                task = await caller.send(text)
                told[task["id"]] = task
                contexts.append(task["contextId"])
            await asyncio.sleep(pause_s)
            engine = find_engine_pid(gateway)
            gateway.kill()
            await wait_until(partial(is_gone, engine), 10, "its engine has ended")
            await gateway.start()
        for name, task in told.items():
            assert await caller.get_task(name) == task
        await wait_until(lambda: has_left_all(gateway), 20, "all have left")
        for name, task in told.items():
            assert await caller.get_task(name) == task
        listed = await caller.call("ListTasks", {"pageSize": 100})
        assert sorted(one["id"] for one in listed["tasks"]) == sorted(told)
        report = await run_verify(Settings(data_dir=gateway.data_dir), rebuild=True)
        assert report.lines == []
        assert report.archived == len(contexts)
