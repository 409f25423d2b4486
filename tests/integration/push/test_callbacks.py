"""Callbacks from peers: a valid one makes the gateway poll the task, every other one is not found."""

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
SET_CONFIG = "CreateTaskPushNotificationConfig"
SEEN = {"state": "TASK_STATE_COMPLETED"}


@dataclass
class Called:
    """A task at a peer that calls back, and the callback config that the peer received."""

    rig: Rig
    task: str
    remote: str
    config: dict[str, Any]

    @property
    def path(self) -> str:
        """The path of the callback URL."""
        return urlsplit(str(self.config["url"])).path

    @property
    def token(self) -> dict[str, str]:
        """The header that authenticates a callback."""
        return {"X-A2A-Notification-Token": str(self.config["token"])}

    async def post(
        self, path: str | None = None, headers: dict[str, str] | None = None, body: object = None
    ) -> httpx.Response:
        """Posts a callback that is valid except for the given parts."""
        content = {"task": {"id": self.remote, "status": SEEN}} if body is None else body
        async with httpx.AsyncClient(base_url=self.rig.http.base_url) as http:
            return await http.post(
                path or self.path,
                headers=self.token if headers is None else headers,
                json=content,
            )

    def asked(self) -> int:
        """Counts the peer's GetTask requests."""
        return self.rig.peer.count("GetTask")

    async def state(self) -> str:
        """Returns the state of the task as its owner sees it."""
        return str((await self.rig.do("GetTask", {"id": self.task}))["status"]["state"])


@pytest.fixture
async def called(
    engine_server: Server, tmp_path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Called]:
    """The gateway polls only once a minute, so the effect of a callback shows."""
    patient = partial(Timeouts, poll_s=60.0, poll_max_s=60.0)
    monkeypatch.setattr("passerelle.gateway.assembly.Timeouts", patient)
    async with run_rig(engine_server.url, tmp_path, public_url=PUBLIC) as rig:
        yield await begin(rig, {"streaming": False, "pushNotifications": True})


async def begin(rig: Rig, capabilities: JsonObject) -> Called:
    """Starts a task that the peer continues when it is released."""
    rig.peer.card = {**rig.peer.card, "capabilities": capabilities}
    rig.peer.subscribes = False
    rig.peer.hold()
    rig.peer.release(1)
    task = await rig.begin("chunks 3")
    (sent,) = [one for one in rig.peer.requests if "Message" in str(one.method)]
    configuration = cast("dict[str, Any]", sent.params.get("configuration", {}))
    (remote,) = rig.peer.tasks
    return Called(rig, task, remote, configuration.get("taskPushNotificationConfig", {}))


async def test_peer_without_streaming_gets_a_callback_config_and_its_callback_makes_the_gateway_poll(
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


async def test_bearer_token_is_valid_as_well_and_a_repeat_is_harmless(called: Called) -> None:
    bearer = {"Authorization": f"Bearer {called.config['token']}"}
    for _ in range(3):
        assert (await called.post(headers=bearer)).status_code == 202


def spoil(called: Called, wrong: str) -> tuple[str, dict[str, str], object]:
    """Returns path, headers and body of a callback that is invalid in one respect."""
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
async def test_invalid_callback_is_not_found_and_has_no_effect(called: Called, wrong: str) -> None:
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


async def test_callbacks_over_the_rate_are_not_looked_up(called: Called) -> None:
    strange = f"/callbacks/{SystemIds().mint('run', shard_of(called.task))}/x"
    answers = await asyncio.gather(*(called.post(strange) for _ in range(4 * PER_SECOND)))
    statuses = {answer.status_code for answer in answers}
    # Those over the rate are answered without a look-up, so they do not differ from valid ones.
    assert 404 in statuses
    assert 202 in statuses


async def test_malformed_run_ids_are_not_cached(called: Called) -> None:
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
async def test_peer_that_cannot_call_back_or_streams_gets_no_callback_config(
    engine_server: Server,
    tmp_path: Path,
    anyio_backend: str,
    public_url: str | None,
    capabilities: JsonObject,
) -> None:
    async with run_rig(engine_server.url, tmp_path, public_url=public_url) as rig:
        called = await begin(rig, capabilities)
        assert called.config == {}


async def test_peer_gets_a_callback_config_after_its_stream_broke(
    engine_server: Server, tmp_path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = partial(Timeouts, poll_s=60.0, poll_max_s=60.0)
    monkeypatch.setattr("passerelle.gateway.assembly.Timeouts", patient)
    async with run_rig(engine_server.url, tmp_path, public_url=PUBLIC) as rig:
        called = await begin(rig, {"streaming": True, "pushNotifications": True})
        rig.peer.cut()
        await wait_until(lambda: rig.peer.count(SET_CONFIG), 10, "the peer receives the config")
        (sent_config,) = [one.params for one in rig.peer.requests if one.method == SET_CONFIG]
        assert sent_config["taskId"] == called.remote
        called = replace(called, config=sent_config)
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
