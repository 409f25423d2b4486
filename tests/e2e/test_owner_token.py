"""``passerelle token rotate`` next to a running gateway, and a start that cannot unseal the stored token."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.e2e.test_cli import run
from tests.support.processes import run_gateway
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def read_status(url: str, token: str) -> int:
    async with httpx.AsyncClient(base_url=url) as http:
        answer = await http.get("/v1/tasks", headers={"Authorization": f"Bearer {token}"})
        return answer.status_code


async def test_owner_token_is_rotated_with_a_running_gateway_and_kept_by_its_store(
    tmp_path: Path,
) -> None:
    async def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(run, tmp_path, *arguments, "--data-dir", str(data_dir))

    async with run_gateway(tmp_path, {}) as gateway:
        data_dir, old = gateway.data_dir, gateway.token
        assert await read_status(gateway.url, old) == 200
        done = await call("token", "rotate")
        assert done.returncode == 0, done.stderr
        shown, new = done.stdout.splitlines()
        assert shown == f"owner token, shown this once and kept in {data_dir / 'owner-token'}:"
        assert new.strip() == gateway.token != old

        async def is_taken() -> bool:
            return await read_status(gateway.url, gateway.token) == 200

        await wait_until(is_taken, 10, "the gateway takes the new token")
        assert await read_status(gateway.url, old) == 401
        await gateway.stop()
        # A deleted copy is restored from the store.
        (data_dir / "owner-token").unlink()
        await gateway.start()
        assert gateway.token == new.strip()
        assert gateway.child is not None
        assert new not in gateway.child.stdout_file.read_text("utf-8")
        await gateway.stop()
        (data_dir / "secret-key").unlink()
        done = await call("serve", "--port", "0")
        assert done.returncode == 2
        fault = f"{data_dir / 'secret-key'}: cannot decrypt the owner token of the store"
        assert fault in done.stderr
        assert (await call("token", "rotate")).returncode == 2
        done = await call("token", "rotate", "--key-lost")
        assert done.returncode == 0, done.stderr
        await gateway.start()
        assert await read_status(gateway.url, gateway.token) == 200
