"""Opening the store of ``redis_url``: waiting for the server, memory limits, and the logged durability."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest
import structlog
from structlog.testing import capture_logs

from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.gateway.settings import section
from passerelle.gateway.settings.model import Settings
from passerelle.gateway.settings.section import MemorySettings
from passerelle.gateway.store_setup import LOSSES, fit_engine, open_store
from passerelle.store.engine import EmbeddedEngine
from passerelle.store.engine_binary import find_engine
from passerelle.store.engine_process import EngineSettings, build_command
from passerelle.store.store import Store, StoreSettings
from tests.support.engine import ask, end_process, run_server, start_process
from tests.support.failover import run_pair
from tests.support.ports import find_free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def read_settings(url: str | list[str], folder: Path, **store: object) -> Settings:
    return Settings.model_validate(
        {"redis_url": url, "data_dir": str(folder), "blobs": str(folder / "blobs"), "store": store}
    )


async def begin(settings: Settings) -> Store:
    assert settings.redis_url is not None
    url = settings.redis_url.get_secret_value()
    log = structlog.get_logger("passerelle")
    return await open_store(settings, url, Counter(), log)


@asynccontextmanager
async def start_late(
    opening: asyncio.Task[Store], folder: Path, path: Path
) -> AsyncGenerator[Store]:
    """Starts the server while the opening of its store waits for it."""
    process = start_process(build_command(find_engine(None), EngineSettings(folder), path))
    try:
        async with await opening as store:
            yield store
    finally:
        end_process(process)


async def test_opening_waits_for_the_server(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with capture_logs() as lines:
        opening = asyncio.create_task(begin(read_settings(f"unix://{path}", tmp_path)))
        await wait_until(lambda: lines, 15, "the wait for the store is logged")
        assert lines[0]["event"] == "store.awaited"
        async with start_late(opening, tmp_path, path) as store:
            await store.probe()


@pytest.mark.parametrize("set_bytes", [None, 0, 50_000_000])
async def test_engine_memory_limit_survives_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_bytes: int | None
) -> None:
    monkeypatch.setattr(section, "read_memory", lambda: 600_000_000)
    settings = Settings.model_validate(
        {"data_dir": str(tmp_path / "state"), "memory": {"engine_bytes": set_bytes}}
    )
    wanted = 300_000_000 if set_bytes is None else set_bytes
    async with await EmbeddedEngine.start(EngineSettings(settings.data_dir)) as engine:
        assert await read_limit_event(engine, settings) == ("info", wanted or None)
        assert (await engine.read_memory()).limit == wanted
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)

        async def is_kept() -> bool:
            try:
                return (await engine.read_memory()).limit == wanted
            except StoreUnavailable:
                return False

        await wait_until(lambda: engine.restarts == 1 and engine.pid, 20, "it has restarted")
        await wait_until(is_kept, 20, "the limit is unchanged")


async def test_default_limit_grows_with_the_stored_data_and_a_configured_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(section, "choose_engine_limit", choose_low_limit)
    settings = Settings.model_validate({"data_dir": str(tmp_path / "state")})
    async with await EmbeddedEngine.start(EngineSettings(settings.data_dir)) as engine:
        ask(engine.url, "SET", "{00}:idem:filler", b"x" * 8_000_000, "EX", 600)
        used = (await engine.read_memory()).used
        level, limit = await read_limit_event(engine, settings)
        assert (level, limit) == ("warning", (await engine.read_memory()).limit)
        assert limit is not None
        assert used / 0.8 < limit < used / 0.7
        async with await Store.open(StoreSettings(engine.url, tmp_path / "blobs")) as store:
            await store.probe()
        small = settings.model_copy(update={"memory": MemorySettings(engine_bytes=7_000_000)})
        with pytest.raises(ConfigInvalid, match=r"memory\.engine_bytes: the store uses .* already"):
            await read_limit_event(engine, small)


def choose_low_limit(_memory_bytes: int) -> int:
    return 7_000_000


async def read_limit_event(engine: EmbeddedEngine, settings: Settings) -> tuple[str, int | None]:
    with capture_logs() as lines:
        await fit_engine(engine, settings, structlog.get_logger("passerelle"))
    [event] = [line for line in lines if line["event"] == "engine.memory"]
    return event["log_level"], event["limit_bytes"]


@pytest.mark.parametrize("wait", ["0s", "300ms"])
async def test_opening_fails_after_the_configured_wait(tmp_path: Path, wait: str) -> None:
    began_s = monotonic()
    with pytest.raises(StoreUnavailable):
        await begin(read_settings(f"redis://127.0.0.1:{find_free_port()}", tmp_path, wait=wait))
    assert monotonic() - began_s < 30, "less than the default wait"


async def test_invalid_credential_is_not_retried(tmp_path: Path) -> None:
    with run_server(find_engine(None)) as server:
        ask(server.url, "CONFIG", "SET", "requirepass", "right")
        async with asyncio.timeout(20):
            for url in (server.url, f"{server.url}?password=wrong"):
                with pytest.raises(StoreUnavailable):
                    await begin(read_settings(url, tmp_path, wait="60s"))


async def test_opening_waits_for_a_required_replica(tmp_path: Path) -> None:
    async with run_pair() as pair:
        ask(pair.primary.url, "CONFIG", "SET", "appendonly", "no")
        with pytest.raises(ConfigInvalid, match="append-only"):
            await begin(read_settings(pair.primary.url, tmp_path))
        ask(pair.replica.url, "REPLICAOF", "NO", "ONE")
        with capture_logs() as lines:
            settings = read_settings(pair.primary.url, tmp_path, durability="replicas")
            opening = asyncio.create_task(begin(settings))
            await wait_until(lambda: lines, 15, "the wait for the replica is logged")
            assert "no replica" in lines[0]["reason"]
            pair.mend_replication()
            await (await opening).close()
        assert lines[-1]["event"] == "store.opened"
        assert lines[-1]["can_lose"] == LOSSES["replicas"]


@pytest.mark.parametrize("durability", ["aof", "service"])
async def test_possible_data_loss_is_logged_at_start(tmp_path: Path, durability: str) -> None:
    log = "yes" if durability == "aof" else "no"
    with run_server(find_engine(None), "--appendonly", log) as server, capture_logs() as lines:
        await (await begin(read_settings([server.url], tmp_path, durability=durability))).close()
    event = {line["event"]: line for line in lines}["store.opened"]
    assert event["log_level"] == ("info" if durability == "aof" else "warning")
    assert (event["durability"], bool(event["can_lose"])) == (durability, True)
