"""Peers that call back: a call that holds has the gateway ask, and every other one finds nothing there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import pytest

from passerelle.core.ids import shard_of
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.callbacks import PER_SECOND
from passerelle.delegation.runs.follow_strategy import Timeouts
from passerelle.runtime.common.clock import SystemIds
from tests.integration.push.rig import Rig, run_rig
from tests.support.engine import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

PUBLIC = "https://gw.example.com"
TELL = "CreateTaskPushNotificationConfig"
SEEN = {"state": "TASK_STATE_COMPLETED"}


@dataclass
class Called:
    """A task at a peer that calls back, and what the peer was told to call with."""

    rig: Rig
    task: str
    remote: str
    config: dict[str, Any]

    @property
    def path(self) -> str:
        """Where to call."""
        return urlsplit(str(self.config["url"])).path

    @property
    def token(self) -> dict[str, str]:
        """The header that makes a call hold."""
        return {"X-A2A-Notification-Token": str(self.config["token"])}

    async def post(
        self, path: str | None = None, headers: dict[str, str] | None = None, body: object = None
    ) -> httpx.Response:
        """A call, right in everything that is not given."""
        content = {"task": {"id": self.remote, "status": SEEN}} if body is None else body
        async with httpx.AsyncClient(base_url=self.rig.http.base_url) as http:
            return await http.post(
                path or self.path,
                headers=self.token if headers is None else headers,
                json=content,
            )

    def asked(self) -> int:
        """How often the peer was asked for its task."""
        return self.rig.peer.count("GetTask")

    async def state(self) -> str:
        """The state of the task as its owner sees it."""
        return str((await self.rig.do("GetTask", {"id": self.task}))["status"]["state"])


@pytest.fixture
async def called(
    engine_server: Server, tmp_path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Called]:
    """The gateway would ask by itself once a minute, so that what a call does shows."""
    patient = partial(Timeouts, poll_s=60.0, poll_max_s=60.0)
    monkeypatch.setattr("passerelle.gateway.assembly.Timeouts", patient)
    async with run_rig(engine_server.url, tmp_path, public_url=PUBLIC) as rig:
        yield await begin(rig, {"streaming": False, "pushNotifications": True})


async def begin(rig: Rig, capabilities: JsonObject) -> Called:
    """A task that the peer has taken and goes on with when it is released."""
    rig.peer.card = {**rig.peer.card, "capabilities": capabilities}
    rig.peer.subscribes = False
    rig.peer.hold()
    rig.peer.release(1)
    task = await rig.begin("chunks 3")
    (sent,) = [one for one in rig.peer.requests if "Message" in str(one.method)]
    configuration = cast("dict[str, Any]", sent.params.get("configuration", {}))
    (remote,) = rig.peer.tasks
    return Called(rig, task, remote, configuration.get("taskPushNotificationConfig", {}))


async def test_peer_that_cannot_stream_is_told_to_call_back_and_its_call_is_followed_by_a_question(
    called: Called,
) -> None:
    assert called.config["url"].startswith(f"{PUBLIC}/callbacks/run_")
    assert called.config["authentication"]["credentials"] == called.config["token"]
    await wait_until(lambda: called.asked() > 0, 10, "the driver has looked once")
    called.rig.peer.release_all()
    await wait_until(
        lambda: called.rig.peer.tasks[called.remote].state == "COMPLETED",
        10,
        "the peer is done",
    )
    asked = called.asked()
    assert await called.state() != "TASK_STATE_COMPLETED"
    answer = await called.post()
    assert (answer.status_code, answer.content) == (202, b"")

    async def completed() -> bool:
        return await called.state() == "TASK_STATE_COMPLETED"

    await wait_until(completed, 10, "the gateway knows")
    assert called.asked() == asked + 1


async def test_bearer_holds_as_well_and_a_repeat_does_no_harm(called: Called) -> None:
    bearer = {"Authorization": f"Bearer {called.config['token']}"}
    for _ in range(3):
        assert (await called.post(headers=bearer)).status_code == 202


def spoil(called: Called, wrong: str) -> tuple[str, dict[str, str], object]:
    """Path, headers and body of a call that is right but for one thing."""
    base, run, nonce = called.path.rsplit("/", 2)
    body: object = {"task": {"id": called.remote, "status": SEEN}}
    right = (called.path, called.token)
    nothing: dict[str, str] = {}
    spoilt: dict[str, tuple[str, dict[str, str], object]] = {
        "token": (called.path, {"X-A2A-Notification-Token": "x" * 52}, body),
        "no token": (called.path, nothing, body),
        "nonce": (f"{base}/{run}/{'0' * len(nonce)}", called.token, body),
        "run": (f"{base}/{run[:-1]}{'1' if run[-1] == '0' else '0'}/{nonce}", called.token, body),
        "no run": (f"{base}/nothing/{nonce}", called.token, body),
        "task": (*right, {"task": {"id": "another"}}),
        "no task": (*right, {"hello": "you"}),
        "body": (*right, [1, 2]),
        "size": (*right, {"task": {"id": called.remote, "x": "y" * 1_100_000}}),
    }
    return spoilt[wrong]


@pytest.mark.parametrize(
    "wrong", ["token", "no token", "nonce", "run", "no run", "task", "no task", "body", "size"]
)
async def test_call_that_does_not_hold_finds_nothing_and_does_nothing(
    called: Called, wrong: str
) -> None:
    await wait_until(lambda: called.asked() > 0, 10, "the driver has looked once")
    asked = called.asked()
    answer = await called.post(*spoil(called, wrong))
    assert (answer.status_code, answer.content) == (404, b"")
    assert called.asked() == asked


async def test_only_hashes_are_stored(called: Called) -> None:
    _, run, nonce = called.path.rsplit("/", 2)
    kept = await called.rig.gateway.store.callbacks.find(run)
    assert kept is not None
    assert kept.task == called.task
    assert {nonce, called.config["token"]}.isdisjoint({kept.nonce, kept.token})


async def test_calls_that_come_too_often_are_not_looked_at(called: Called) -> None:
    strange = f"/callbacks/{SystemIds().mint('run', shard_of(called.task))}/x"
    answers = await asyncio.gather(*(called.post(strange) for _ in range(4 * PER_SECOND)))
    statuses = {answer.status_code for answer in answers}
    # Nothing is looked up for those beyond the bound, so they cannot be told from calls that hold.
    assert 404 in statuses
    assert 202 in statuses


async def test_names_that_are_no_ids_are_not_kept(called: Called) -> None:
    callbacks = called.rig.gateway.parts.dispatch.callbacks
    assert callbacks is not None
    name = "a" * 60_000
    answers = [await called.post(f"/callbacks/{name}{number}/x") for number in range(3)]
    answers += [await called.post("/callbacks/run_nobody/x") for _ in range(2 * PER_SECOND)]
    assert {answer.status_code for answer in answers} == {404}
    assert callbacks.count_runs() == 0


@pytest.mark.parametrize(
    ("public_url", "capabilities"),
    [
        (None, {"streaming": False, "pushNotifications": True}),
        (PUBLIC, {"streaming": False}),
        (PUBLIC, {"streaming": True, "pushNotifications": True}),
    ],
)
async def test_peer_is_told_nothing_where_it_cannot_call_or_streams_anyway(
    engine_server: Server,
    tmp_path: Path,
    anyio_backend: str,
    public_url: str | None,
    capabilities: JsonObject,
) -> None:
    async with run_rig(engine_server.url, tmp_path, public_url=public_url) as rig:
        called = await begin(rig, capabilities)
        assert called.config == {}


async def test_peer_whose_stream_is_gone_is_told_to_call_back_instead(
    engine_server: Server, tmp_path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = partial(Timeouts, poll_s=60.0, poll_max_s=60.0)
    monkeypatch.setattr("passerelle.gateway.assembly.Timeouts", patient)
    async with run_rig(engine_server.url, tmp_path, public_url=PUBLIC) as rig:
        called = await begin(rig, {"streaming": True, "pushNotifications": True})
        rig.peer.cut()
        await wait_until(lambda: rig.peer.count(TELL), 10, "the peer is told where to call")
        (told,) = [one.params for one in rig.peer.requests if one.method == TELL]
        assert told["taskId"] == called.remote
        called = replace(called, config=told)
        rig.peer.release_all()
        await wait_until(
            lambda: rig.peer.tasks[called.remote].state == "COMPLETED", 10, "the peer is done"
        )
        assert (await called.post()).status_code == 202

        async def completed() -> bool:
            return await called.state() == "TASK_STATE_COMPLETED"

        await wait_until(completed, 10, "the gateway knows")


async def test_webhook_of_a_caller_is_never_sent_to_the_peer(rig: Rig) -> None:
    push = {"url": f"{rig.receiver.url}/hook", "token": "t0ken"}
    await rig.begin("echo x", push=push)
    await rig.receiver.until("/hook", 1)
    assert all("t0ken" not in str(one.params) for one in rig.peer.requests)
    assert all(rig.receiver.url not in str(one.params) for one in rig.peer.requests)
