"""What ``docs/operate/upgrade.md`` says: each number has its line, and instances are replaced while callers go on."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, cast

import httpx
import pytest

from passerelle.demo.processes import GatewayProcess
from passerelle.store.keys import SCHEMA
from tests.integration.callers.rig import KEY, describe
from tests.integration.devices.asking import ADA, BOB
from tests.stores.dump import STORES, find_dump, load_dump
from tests.support.engine import Server, ask, engine_server, started_legs
from tests.support.processes import run_gateway
from tests.support.scripted_peer import ScriptedPeer

__all__ = ["engine_server", "started_legs"]
pytestmark = pytest.mark.anyio
PAGE: Final = Path(__file__).parents[2] / "docs" / "operate" / "upgrade.md"
BEFORE: Final = f"schema-{SCHEMA - 1}"
"""What the version before left behind."""


def test_each_number_has_a_line_and_a_store() -> None:
    told = {int(one) for one in re.findall(r"^\| (\d+) \|", PAGE.read_text("utf-8"), re.MULTILINE)}
    assert told == set(range(1, SCHEMA + 1))
    assert {int(re.findall(r"\d+", name)[0]) for name in STORES} == told


class Balancer:
    """Calls the first instance that takes the call, with the same key, as ``docs/operate/cluster.md`` asks for."""

    def __init__(self, http: httpx.AsyncClient, urls: list[str]) -> None:
        self._http = http
        self._urls = urls
        self.sent: list[str] = []

    async def send(self) -> None:
        """One message; its task has to be there in the end."""
        number = len(self.sent)
        message = {"messageId": f"upgrade-{number}", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
        answer = await self._call("SendMessage", {"message": message}, f"upgrade-{number}")
        self.sent.append(answer["task"]["id"])

    async def list_tasks(self, url: str) -> set[str]:
        """What an instance knows of its caller."""
        listed = await self._post(url, "ListTasks", {"pageSize": 100}, "")
        return {one["id"] for one in cast("dict[str, Any]", listed)["tasks"]}

    async def _call(self, method: str, params: dict[str, Any], key: str) -> dict[str, Any]:
        for url in self._urls:
            if answer := await self._post(url, method, params, key):
                return answer
        raise AssertionError("no instance took the call")

    async def _post(
        self, url: str, method: str, params: dict[str, Any], key: str
    ) -> dict[str, Any] | None:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"Idempotency-Key": key} if key else {}
        with contextlib.suppress(httpx.TransportError):
            answer = await self._http.post(f"{url}/agents/echo", json=body, headers=headers)
            if answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                assert answer.is_success, answer.text
                return cast("dict[str, Any]", answer.json()["result"])
        return None


@contextlib.asynccontextmanager
async def run_pair(url: str, folder: Path, agent: str) -> AsyncGenerator[list[GatewayProcess]]:
    """Two instances over one store, started one after the other."""
    shared: dict[str, Any] = {
        "redis_url": url,
        "blobs": str(folder / "blobs"),
        "secret_key": KEY,
        "clients": [describe(one) for one in (ADA, BOB)],
    }
    async with contextlib.AsyncExitStack() as stack:
        pair: list[GatewayProcess] = []
        for name in "ab":
            own = folder / name
            own.mkdir()
            pair.append(
                await stack.enter_async_context(run_gateway(own, {"echo": agent}, **shared))
            )
        yield pair


async def test_instances_over_a_store_of_the_number_before_are_replaced_one_by_one(
    engine_server: Server, tmp_path: Path
) -> None:
    ask(engine_server.url, "FLUSHALL")
    load_dump(engine_server.url, tmp_path / "blobs", find_dump(BEFORE))
    async with (
        ScriptedPeer("scripted") as peer,
        run_pair(engine_server.url, tmp_path, peer.url) as pair,
        httpx.AsyncClient(
            headers={"Authorization": "Bearer ada-key", "A2A-Version": "1.0"}, timeout=20
        ) as http,
    ):
        assert ask(engine_server.url, "HGET", "{00}:meta", "schema") == b"%d" % SCHEMA
        balancer = Balancer(http, [one.url for one in pair])
        before = await balancer.list_tasks(pair[0].url)
        assert len(before) >= 10, "what the version before has left"
        await balancer.send()
        for instance in pair:
            assert await instance.stop() == 0
            for _ in range(3):
                await balancer.send()
            await instance.start()
            await balancer.send()
        for instance in pair:
            assert await balancer.list_tasks(instance.url) == before | set(balancer.sent)
    assert len(set(balancer.sent)) == 1 + 2 * 4
