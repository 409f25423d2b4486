"""Ended sessions leave the engine while the gateway works, is killed and restarts; readers see no difference."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from passerelle.cli.verify import run_verify
from passerelle.core.wire.json import JsonObject
from passerelle.demo.checks import Checks
from passerelle.demo.devices import DemoDevice, open_device
from passerelle.demo.network import open_network
from passerelle.demo.processes import GatewayProcess
from passerelle.demo.stage import CONFIG, set_stage
from passerelle.demo.story import PARTS
from passerelle.gateway.settings.model import Settings
from tests.support.leaving import find_changed_reads
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
from tests.support.webhook_receiver import WebhookReceiver

pytestmark = pytest.mark.anyio
AT_ONCE = {"memory": "1s"}
PAUSES_S = (1.0, 1.25, 1.5, 1.75, 2.0, 2.25)
"""The archive is scanned every second: kills happen before, during and after a scan."""
TEXTS = ("hello", "chunks 3", "big", "two-artifacts", "fail", "message well")


def has_left_all(gateway: GatewayProcess) -> bool:
    """Whether no session with a task is in the engine; home sessions stay."""
    return count_stored(gateway) == (0, 0, 0)


def is_gone(pid: int) -> bool:
    return not is_alive(pid)


async def read_all(caller: Caller, tasks: list[Answer]) -> list[Answer]:
    """What the caller and an operator read of each task."""
    found: list[Answer] = []
    for task in tasks:
        record = await caller.read_record(task["id"])
        found += [await caller.get_task(task["id"]), record]
        found.append(await caller.read(f"/v1/sessions/{record['sessionId']}"))
    found.append(await caller.call("ListTasks", {"includeArtifacts": True, "historyLength": 5}))
    return found


def leave_out(found: list[Answer]) -> list[Answer]:
    """The same without the archive marks of records."""
    away = {"archive", "archived"}
    return [{name: value for name, value in one.items() if name not in away} for one in found]


async def test_every_read_of_the_demo_is_the_same_once_its_sessions_have_left(
    tmp_path: Path,
) -> None:
    async with set_stage(tmp_path, Checks()) as stage:
        for play in PARTS:
            await play(stage)
        await stage.gateway.start()  # its last part has ended it
        changed = await find_changed_reads(stage.gateway, tmp_path / CONFIG, least=4)
    assert changed == {}


async def test_ended_sessions_leave_memory_and_are_read_as_before(tmp_path: Path) -> None:
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
        after = leave_out(await read_all(caller, tasks))
        assert after[:-1] == leave_out(before)[:-1]
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
        reported: dict[str, Answer] = {}
        contexts: list[str] = []
        for pause_s in PAUSES_S:
            for context in contexts[-2:]:
                task = await caller.send("hello", contextId=context)
                reported[task["id"]] = task
            for text in ("hello", "chunks 3", "big"):
                task = await caller.send(text)
                reported[task["id"]] = task
                contexts.append(task["contextId"])
            await asyncio.sleep(pause_s)
            engine = find_engine_pid(gateway)
            gateway.kill()
            await wait_until(partial(is_gone, engine), 10, "its engine has ended")
            await gateway.start()
        for name, task in reported.items():
            assert await caller.get_task(name) == task
        await wait_until(lambda: has_left_all(gateway), 20, "all have left")
        for name, task in reported.items():
            assert await caller.get_task(name) == task
        listed = await caller.call("ListTasks", {"pageSize": 100})
        assert sorted(one["id"] for one in listed["tasks"]) == sorted(reported)
        report = await run_verify(Settings(data_dir=gateway.data_dir), rebuild=True)
        assert report.lines == []
        assert report.archived == len(contexts)


@pytest.mark.requirement("CHN-3")
async def test_devices_follow_a_conversation_that_is_archived_and_revived(tmp_path: Path) -> None:
    """One that stays connected, one that loses its network while the session is archived, one that connects later."""
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: peer.url}, retention=AT_ONCE) as gateway,
        open_caller(gateway) as caller,
        open_network(gateway.port) as network,
    ):
        first = await caller.send("hello")
        stream = f"session:{(await caller.read_record(first['id']))['sessionId']}"
        async with (
            open_device(gateway.url, gateway.token, "desk") as desk,
            open_device(network.url, gateway.token, "phone") as phone,
        ):
            for device in (desk, phone):
                device.follow(stream)
                await device.await_event(stream, "thread.updated")
            await wait_until(lambda: has_left_all(gateway), 20, "the session has left")
            network.pull_out()
            again = await caller.send("chunks 3", contextId=first["contextId"])
            await wait_until(lambda: has_left_all(gateway), 20, "it has left once more")
            network.plug_in()
            async with open_device(gateway.url, gateway.token, "later") as later:
                later.follow(stream)
                for device in (desk, phone, later):
                    await wait_until(
                        partial(has_event_of, device, stream, again["id"]), 20, "it sees the second"
                    )
                assert desk.events[stream] == phone.events[stream]
                assert [device.gaps for device in (desk, phone, later)] == [[], [], []]
        sequences = [cast("int", event["sequence"]) for event in desk.events[stream]]
        assert sequences == [*range(sequences[0], sequences[0] + len(sequences))]


def has_event_of(device: DemoDevice, stream: str, facade: str) -> bool:
    return any(
        event["type"] == "task.completed" and event["taskId"] == facade
        for event in device.events[stream]
    )


async def test_archived_session_is_delivered_to_a_webhook_and_accepts_messages(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedPeer(AGENT) as peer,
        WebhookReceiver() as receiver,
        run_gateway(
            tmp_path,
            {AGENT: peer.url},
            retention=AT_ONCE,
            webhooks={"allow": ["http://127.0.0.1:*"]},
        ) as gateway,
        open_caller(gateway) as caller,
    ):
        params = caller.write("chunks 3")
        config: JsonObject = {"id": "mine", "url": receiver.url}
        params["configuration"] = {"taskPushNotificationConfig": config}
        reported = (await caller.call("SendMessage", params))["task"]
        failed = await caller.send("fail")
        await wait_until(lambda: has_left_all(gateway), 20, "sessions with a webhook leave as well")
        listed = await caller.call("ListTaskPushNotificationConfigs", {"taskId": reported["id"]})
        assert [one["id"] for one in listed["configs"]] == ["mine"]
        made: JsonObject = {"taskId": reported["id"], "id": "other", "url": receiver.url}
        await caller.call("CreateTaskPushNotificationConfig", made)
        await wait_until(lambda: has_left_all(gateway), 20, "it has left once more")
        gone: JsonObject = {"taskId": reported["id"], "id": "mine"}
        await caller.call("DeleteTaskPushNotificationConfig", gone)
        await wait_until(lambda: has_left_all(gateway), 20, "and again")
        listed = await caller.call("ListTaskPushNotificationConfigs", {"taskId": reported["id"]})
        assert [one["id"] for one in listed["configs"]] == ["other"]
        assert receiver.notices
        retried = await caller.http.post(
            f"/v1/tasks/{failed['id']}/retry",
            headers={"Idempotency-Key": "again"},
            json={"reason": "once more"},
        )
        assert retried.status_code in {200, 202}, retried.text

        async def has_two_attempts() -> bool:
            record = await caller.read_record(failed["id"])
            return len(record["attempts"]) == 2 and record["status"] == "failed"

        await wait_until(has_two_attempts, 20, "the second attempt of it has ended")
        report = await run_verify(Settings(data_dir=gateway.data_dir), rebuild=True)
        assert report.lines == []
