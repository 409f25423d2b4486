"""Configuration reload: a valid edit takes effect, an invalid one changes nothing and is reported.

A change that requires a restart is reported too.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import yaml
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from passerelle.gateway.auth.keys import hash_key
from passerelle.protocol.frames import SUBPROTOCOL
from passerelle.runtime.common.secret import Secret
from tests.support.processes import AGENT, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
from functools import partial

pytestmark = pytest.mark.anyio


async def test_valid_edit_takes_effect_and_an_invalid_one_is_reported_and_changes_nothing(
    tmp_path: Path,
) -> None:
    async with ScriptedPeer(AGENT) as peer, run_gateway(tmp_path, {AGENT: peer.url}) as gateway:
        config = tmp_path / "passerelle.yaml"
        settings = yaml.safe_load(config.read_text())
        client = {"name": "late", "key_hash": hash_key(Secret("late-key")), "may_call": ["*"]}
        key = {"Authorization": "Bearer late-key", "A2A-Version": "1.0"}

        async with httpx.AsyncClient(base_url=gateway.url, timeout=20) as http:

            async def may_list(wanted: int) -> bool:
                path = f"/agents/{AGENT}/tasks"
                return (await http.get(path, headers=key)).status_code == wanted

            async def says(judge: Callable[[dict[str, str]], bool]) -> bool:
                return judge((await http.get("/readyz")).json())

            assert await may_list(401)
            config.write_text(yaml.safe_dump({**settings, "clients": [client]}))
            assert await wait_until(lambda: may_list(200), 10, "the client is known")

            answering = {**client, "scopes": ["approvals:read"]}
            config.write_text(yaml.safe_dump({**settings, "clients": [answering]}))
            assert await wait_until(lambda: may_list(403), 10, "the right is gone")
            config.write_text(yaml.safe_dump({**settings, "clients": [client], "agents": []}))
            assert await wait_until(lambda: may_list(404), 10, "the agent is gone")
            config.write_text(yaml.safe_dump({**settings, "clients": [client]}))
            assert await wait_until(lambda: may_list(200), 10, "both are back")

            config.write_text(yaml.safe_dump({**settings, "clients": [client], "aegnts": []}))
            assert await wait_until(
                lambda: says(lambda page: "did you mean agents?" in page.get("configuration", "")),
                10,
                "the fault is shown",
            )
            page = (await http.get("/readyz")).json()
            assert page["status"] == "ready"
            assert str(config) in page["configuration"]
            assert await may_list(200)
            assert "passerelle_config_faulty 1.0" in (await http.get("/metrics")).text

            config.write_text(yaml.safe_dump({**settings, "durability": "always", "clients": []}))
            assert await wait_until(lambda: may_list(401), 10, "the client is gone")
            mended = partial(says, lambda page: "configuration" not in page)
            assert await wait_until(mended, 10, "nothing is wrong any more")

            def read_log() -> str:
                return (tmp_path / "gateway.log").read_text()

            assert '"config.refused"' in read_log()
            wanted = '"config.restart_wanted"'
            assert await wait_until(
                lambda: wanted in read_log(), 10, "what needs a restart is named"
            )
            assert gateway.child is not None
            gateway.child.process.send_signal(signal.SIGHUP)

            async def reread() -> bool:
                metrics = (await http.get("/metrics")).text
                return 'passerelle_config_reloads_total{outcome="ok"} 6.0' in metrics

            assert await wait_until(reread, 10, "the hang-up makes it read again")


async def test_replaced_file_or_switched_symlink_takes_effect(
    tmp_path: Path,
) -> None:
    async with ScriptedPeer(AGENT) as peer, run_gateway(tmp_path, {AGENT: peer.url}) as gateway:
        config = tmp_path / "passerelle.yaml"
        settings = yaml.safe_load(config.read_text())

        def write(where: Path, key: str) -> Path:
            client = {"name": key, "key_hash": hash_key(Secret(key)), "may_call": ["*"]}
            where.write_text(yaml.safe_dump({**settings, "clients": [client]}))
            return where

        async with httpx.AsyncClient(base_url=gateway.url, timeout=20) as http:

            async def knows(key: str) -> bool:
                headers = {"Authorization": f"Bearer {key}", "A2A-Version": "1.0"}
                answer = await http.get(f"/agents/{AGENT}/tasks", headers=headers)
                return answer.status_code == 200

            write(tmp_path / "next.yaml", "key-one").replace(config)
            assert await wait_until(partial(knows, "key-one"), 10, "another file has its name")
            for turn in ("two", "three"):
                (tmp_path / turn).mkdir()
                write(tmp_path / turn / "passerelle.yaml", f"key-{turn}")
            data = tmp_path / "current"
            data.symlink_to("two")
            link = tmp_path / "link"
            link.symlink_to("current/passerelle.yaml")
            link.replace(config)
            assert await wait_until(partial(knows, "key-two"), 10, "it is a link now")
            turned = tmp_path / "turned"
            turned.symlink_to("three")
            turned.replace(data)
            assert await wait_until(partial(knows, "key-three"), 10, "a link on its way is turned")
            was = config.stat()
            settings_now = config.resolve()
            kept = settings_now.read_bytes()
            settings_now.write_bytes(kept.replace(b"key-three", b"key-eight"))
            os.utime(settings_now, ns=(was.st_atime_ns, was.st_mtime_ns))
            settled = '"config.reloaded"'

            async def is_read() -> bool:
                return (tmp_path / "gateway.log").read_text().count(settled) == 4

            assert await wait_until(is_read, 10, "as long as before, with the time of before")
            config.unlink()
            faulty = "passerelle_config_faulty 1.0"

            async def is_missed() -> bool:
                return faulty in (await http.get("/metrics")).text

            assert await wait_until(is_missed, 10, "the file is gone, and that is said")
            assert await knows("key-three")
            write(config, "key-one")
            assert await wait_until(partial(knows, "key-one"), 10, "it is there again")


async def may_open(url: str, origin: str) -> bool:
    """Whether a page of an origin passes the origin check and is asked for its credential."""
    address = f"{url.replace('http', 'ws', 1)}/v1/channel"
    spoken = [Subprotocol(SUBPROTOCOL)]
    try:
        async with connect(address, origin=Origin(origin), subprotocols=spoken):
            return True
    except InvalidStatus as refused:
        return refused.response.status_code != 403


async def test_origin_of_a_page_is_allowed_without_a_restart_and_others_are_logged(
    tmp_path: Path,
) -> None:
    desk = "https://desk.example"
    async with ScriptedPeer(AGENT) as peer, run_gateway(tmp_path, {AGENT: peer.url}) as gateway:
        config = tmp_path / "passerelle.yaml"
        settings = yaml.safe_load(config.read_text())
        assert not await may_open(gateway.url, desk)
        config.write_text(yaml.safe_dump({**settings, "channels": {"origins": [desk]}}))
        listed = partial(may_open, gateway.url, desk)
        assert await wait_until(listed, 10, "the origin is listed")
        assert not await may_open(gateway.url, "https://evil.example")
        log = (tmp_path / "gateway.log").read_text()
        assert log.count('"channel.origin_refused"') == 2
        assert '"config.restart_wanted"' not in log
        silent = {"channels": {"origins": [desk], "connections": 7}}
        config.write_text(yaml.safe_dump({**settings, **silent}))

        async def is_named() -> bool:
            return '"channels.connections"' in (tmp_path / "gateway.log").read_text()

        assert await wait_until(is_named, 10, "what needs a restart is named")
