"""Erasure of an owner next to a running gateway: no file contains the owner's data, and data of others stays."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio.to_thread
import httpx
import pytest

from passerelle.cli.exit_status import ExitStatus
from passerelle.cli.verify import run_verify
from passerelle.core.batch import EntityKind
from passerelle.core.ids import ALL_SHARDS, shard_of
from passerelle.core.wire.times import format_ms
from passerelle.gateway.settings.model import Settings
from passerelle.gateway.store_setup import reach_store
from passerelle.runtime.common.clock import SystemClock
from tests.e2e.test_cli import run
from tests.integration.callers.rig import describe
from tests.integration.devices.asking import PEOPLE, asks, bearer, make_answer
from tests.support.engine_dump import dump_engine
from tests.support.processes import (
    AGENT,
    Caller,
    count_stored,
    find_engine_url,
    run_gateway,
)
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import WebhookReceiver

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.wire.json import JsonObject
    from passerelle.demo.processes import GatewayProcess

pytestmark = pytest.mark.anyio
ROUNDS = 5
PLACES = (
    "text",
    "long",
    "artifact",
    "metadata",
    "label",
    "title",
    "hook",
    "asked",
    "said",
    "failed",
)
"""The places of a marker in each round."""


@dataclass(slots=True)
class Person:
    """A person with a marker in every kind of content."""

    name: str
    caller: Caller
    hook: str
    markers: list[str] = field(default_factory=list[str])

    def mark(self, place: str) -> str:
        """A text that is unique to that place."""
        self.markers.append(f"marker-{self.name}-{place}-{len(self.markers)}-zq")
        return self.markers[-1]

    async def work(self) -> None:
        """Creates one item of each kind."""
        http = self.caller.http
        params = self.caller.write(f"hello {self.mark('text')}")
        message = cast("JsonObject", params["message"])
        message["metadata"] = {"note": self.mark("metadata")}
        config: JsonObject = {"id": "mine", "url": f"{self.hook}/{self.mark('hook')}"}
        params["configuration"] = {"taskPushNotificationConfig": config}
        reported = (await self.caller.call("SendMessage", params))["task"]
        await self.caller.send(f"hello {self.mark('long')} {'x' * 20_000}")
        await self.caller.send(f"two-artifacts {self.mark('artifact')}")
        await self.caller.send(f"fail {self.mark('failed')}")
        session = (await self.caller.read_record(reported["id"]))["sessionId"]
        named = await http.patch(
            f"/v1/sessions/{session}",
            json={"title": self.mark("title"), "labels": {"of": self.mark("label")}},
            headers={"Idempotency-Key": self.markers[-1]},
        )
        assert named.is_success, named.text
        await self.answer(self.mark("asked"), self.mark("said"))

    async def answer(self, title: str, reason: str) -> None:
        """An approval with a marker, and an answer with one."""
        task = await self.caller.send(asks("medium", f"act_{len(self.markers)}", title=title))
        pending = (await self.caller.read("/v1/approvals"))["pending"]
        body = cast("dict[str, Any]", make_answer(pending[0])) | {"comment": reason}
        action = body.pop("actionId")
        said = await self.caller.http.post(
            f"/v1/approvals/{action}/decision", json=body, headers={"Idempotency-Key": reason}
        )
        assert said.is_success, said.text
        await self.caller.await_end(task["id"])


@asynccontextmanager
async def open_person(gateway: GatewayProcess, name: str, hook: str) -> AsyncGenerator[Person]:
    headers = {**bearer(name), "A2A-Version": "1.0"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=20) as http:
        yield Person(name, Caller(http, AGENT), hook)


@asynccontextmanager
async def open_site(
    folder: Path, *names: str, **settings: object
) -> AsyncGenerator[tuple[GatewayProcess, list[Person]]]:
    """A gateway with these people as its clients."""
    async with (
        ScriptedPeer(AGENT) as peer,
        WebhookReceiver() as receiver,
        run_gateway(
            folder,
            {AGENT: peer.url},
            data_dir=str(folder / "data"),
            clients=[describe_person(name) for name in names],
            webhooks={"allow": ["http://127.0.0.1:*", "https://*.example.com"]},
            environ=None,
            **settings,
        ) as gateway,
        AsyncExitStack() as stack,
    ):
        people = [open_person(gateway, name, receiver.url) for name in names]
        yield gateway, [await stack.enter_async_context(one) for one in people]


def describe_person(name: str) -> dict[str, object]:
    return describe({"name": name, "kind": "person", "scopes": [*PEOPLE, "tasks:write"]})


def find_markers(folder: Path, markers: list[str]) -> set[str]:
    """The markers that are in any file of a folder."""
    contents = _read_files(folder)
    return {one for one in markers if any(one.encode() in content for content in contents)}


def _read_files(folder: Path) -> list[bytes]:
    """All files of one moment: a running engine replaces its append-only file now and then."""
    while True:
        with suppress(FileNotFoundError):
            return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


async def find_readable(folder: Path, markers: list[str]) -> set[str]:
    """The markers in readable sessions, wherever these are stored, or in a file."""
    parts = list[bytes]()
    async with reach_store(Settings(data_dir=folder / "data")) as store:
        archived = set(await store.archive.list_sessions(ALL_SHARDS))
        entities = await store.inspection.list_entities()
        live = {ref.id for ref in entities if ref.kind is EntityKind.SESSION}
        for session in archived | live:
            shard = shard_of(session)
            finder = store.forgetting.finder
            frame = await store.archive.find(shard, session) or await finder.read(shard, session)
            parts += [] if frame is None else [repr(frame).encode()]
    content = b"\n".join(parts)
    return {one for one in markers if one.encode() in content} | find_markers(folder, markers)


def has_left_some(gateway: GatewayProcess) -> bool:
    return count_stored(gateway)[0] < ROUNDS


async def forget(folder: Path, *flags: str) -> str:
    """The output of the command."""
    config = ("--config", folder / "passerelle.yaml", "--data-dir", folder / "data")
    call = partial(run, folder, "store", "forget", *config, *flags)
    done = await anyio.to_thread.run_sync(call)
    assert done.returncode == ExitStatus.DONE, done.stderr
    return done.stdout


async def check_store(data_dir: Path) -> None:
    """Its records equal its events."""
    report = await run_verify(Settings(data_dir=data_dir), rebuild=True)
    assert report.lines == [], data_dir


@pytest.mark.requirement("FGT-1")
async def test_erased_markers_are_gone_and_those_of_others_stay(
    tmp_path: Path,
) -> None:
    async with open_site(tmp_path, "ada", "bob", retention={"memory": "5s"}) as (
        gateway,
        (ada, bob),
    ):
        for person in (ada, bob):
            await person.work()
        await wait_until(partial(has_left_some, gateway), 30, "the first sessions have left")
        for _ in range(ROUNDS - 1):
            for person in (ada, bob):
                await person.work()
        assert len(set(ada.markers)) == ROUNDS * len(PLACES) == 50
        for person in (ada, bob):
            assert await find_readable(tmp_path, person.markers) == set(person.markers)
        counted = await forget(tmp_path, "--owner", "ada", "--dry-run")
        assert f"of ada: {ROUNDS * 5} sessions" in counted
        assert "was rewritten" in await forget(tmp_path, "--owner", "ada", "-y")
        engine = dump_engine(find_engine_url(gateway))
        assert [one for one in ada.markers if one.encode() in engine] == []
        assert find_markers(tmp_path / "data", ada.markers) == set()
        listed = await ada.caller.call("ListTasks", {"includeArtifacts": True})
        assert listed["tasks"] == []
        assert await find_readable(tmp_path, bob.markers) == set(bob.markers)
        assert await find_readable(tmp_path, ada.markers) == set()
        again = await ada.caller.send("hello again")
        assert again["status"]["state"] == "TASK_STATE_COMPLETED"
    await check_store(tmp_path / "data")


AWAY = "http://127.0.0.1:9"
KILLS = 3
"""The processes are killed at evenly spread changes; the contract tests stop at each change."""


@pytest.mark.requirement("FGT-2")
async def test_killed_erasure_is_completed_by_the_next_call(tmp_path: Path) -> None:
    async with open_site(tmp_path, "ada", "bob", retention={"memory": "1s"}) as (
        gateway,
        (ada, bob),
    ):
        await ada.work()
        await wait_until(partial(has_left_some, gateway), 30, "the first sessions have left")
        for person in (bob, ada):
            await person.work()
    markers = ada.markers
    changes = await count_changes(tmp_path)
    assert changes > 2 * KILLS
    for step in range(1, changes + 1, -(-changes // KILLS)):
        await kill_and_repeat(tmp_path, f"killed-{step}", step, markers)
    killed = await forget_until(tmp_path, "resumed/data", changes // 2)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    folder = tmp_path / "resumed"
    assert find_markers(folder, markers)
    async with run_gateway(folder, {AGENT: AWAY}):
        await wait_until(
            lambda: not find_markers(folder, markers), 30, "the next start ends what was begun"
        )
    await check_store(folder / "data")


@pytest.mark.requirement("FGT-4")
async def test_markers_of_old_sessions_are_gone_and_of_young_ones_stay(
    tmp_path: Path,
) -> None:
    """Two owners with old and young sessions; then the same on copies, with processes that are killed."""
    async with open_site(tmp_path, "ada", "bob", retention={"memory": "1s"}) as (
        gateway,
        (ada, bob),
    ):
        for _ in range(ROUNDS):
            await ada.work()
        await bob.work()
        await wait_until(partial(has_left_some, gateway), 30, "the first sessions have left")
        old = [*ada.markers, *bob.markers]
        before = format_ms(SystemClock().now_ms())
        for person in (ada, bob):
            await person.work()
        young = [one for one in (*ada.markers, *bob.markers) if one not in old]
        assert len(ada.markers) - len(PLACES) == 50
        await forget(tmp_path, "--before", before, "-y")
        engine = dump_engine(find_engine_url(gateway))
        assert [one for one in old if one.encode() in engine] == []
        assert find_markers(tmp_path / "data", old) == set()
        assert await find_readable(tmp_path, young) == set(young)
        assert await find_readable(tmp_path, old) == set()
    await check_store(tmp_path / "data")


@pytest.mark.requirement("FGT-4")
async def test_killed_erasure_of_old_sessions_is_completed_by_the_next_call(
    tmp_path: Path,
) -> None:
    async with open_site(tmp_path, "ada", "bob", retention={"memory": "1s"}) as (
        gateway,
        (ada, bob),
    ):
        await ada.work()
        await wait_until(partial(has_left_some, gateway), 30, "the first sessions have left")
        before = format_ms(SystemClock().now_ms())
        await bob.work()
    changes = await count_changes(tmp_path, before)
    # Sessions leave the engine after the first third, and frames are erased in the last one.
    for step in (changes // 3, changes - changes // 4):
        await kill_and_repeat(tmp_path, f"killed-{step}", step, ada.markers, before)


async def count_changes(folder: Path, what: str = "ada") -> int:
    """The changes of a whole erasure."""
    done = await forget_until(folder, "counted", 1_000_000, what=what)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


async def kill_and_repeat(
    folder: Path, name: str, step: int, markers: list[str], what: str = "ada"
) -> None:
    """Kills an erasure before a change, and completes it: the store is sound, and has none of the markers."""
    killed = await forget_until(folder, name, step, what=what)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    # The engine of a killed process exits by itself; the next process waits for it.
    done = await forget_until(folder, name, 1_000_000, what=what, is_again=True)
    assert done.returncode == 0, done.stderr
    assert find_markers(folder / name, markers) == set(), step
    await check_store(folder / name)


async def forget_until(
    folder: Path, name: str, step: int, *, what: str = "ada", is_again: bool = False
) -> subprocess.CompletedProcess[str]:
    """Erases data in a copy of the data directory, and is killed before a change."""
    if not is_again:
        shutil.copytree(folder / "data", folder / name)
    words = (sys.executable, "-m", "tests.support.killed_forgetting", folder / name, what, step)
    call = partial(subprocess.run, [*map(str, words)], capture_output=True, text=True, check=False)
    return await anyio.to_thread.run_sync(call)
