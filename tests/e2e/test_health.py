"""``passerelle health``: the check of containers, services and scripts, and its exit status."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.file_server import File, FileServer
from tests.support.ports import find_free_port
from tests.support.processes import run_gateway

pytestmark = pytest.mark.anyio
JSON = "application/json"


async def ask_health(folder: Path, *flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """As a container does: a separate process, in the folder of the configuration."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PASSERELLE_")}
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "passerelle", "health", *flags],
        cwd=folder,
        env={**kept, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_gateway_is_healthy_while_it_accepts_work(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, {}) as gateway:
        port = str(gateway.port)
        ready = await ask_health(tmp_path, PASSERELLE_PORT=port)
        assert (ready.returncode, ready.stdout, ready.stderr) == (0, "ready\n", "")
        live = await ask_health(tmp_path, "--live", "--url", gateway.url)
        assert live.returncode == 0
        assert live.stdout.splitlines()[0] == "ok"
        # It reads no token and no data directory: any user may run a health check.
        elsewhere = await ask_health(Path("/"), PASSERELLE_URL=gateway.url)
        assert elsewhere.returncode == 0
    gone = await ask_health(tmp_path, PASSERELLE_PORT=port)
    assert gone.returncode == 1
    assert f"no gateway responds at http://127.0.0.1:{port}/readyz" in gone.stderr


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (File(b'{"status":"unready","reason":"stopping"}', JSON, 503), "unready: stopping"),
        (File(b'{"status":"unready","reason":"a\\u001b[2Jb"}', JSON, 503), "unready: a\\u{1b}[2Jb"),
        (File(b"[]", JSON), "is no gateway: it responded with HTTP"),
        (File(b"hello", "text/html"), "is no gateway: it responded with HTTP"),
        (File(b"{}", JSON, 500), "500: "),
    ],
)
async def test_unready_or_missing_gateway_exits_with_one(
    tmp_path: Path, file: File, said: str
) -> None:
    async with FileServer(files={"/readyz": file}) as server:
        reported = await ask_health(tmp_path, "--url", server.url)
    assert reported.returncode == 1
    assert said in reported.stderr
    assert len(reported.stderr.splitlines()) == 1


async def test_notices_of_a_gateway_that_is_ready_are_printed(tmp_path: Path) -> None:
    file = File(b'{"status":"ready","memory":"91 % used"}', JSON)
    async with FileServer(files={"/readyz": file}) as server:
        reported = await ask_health(tmp_path, "--url", f"{server.url}/")
    assert (reported.returncode, reported.stdout) == (0, "ready\nmemory: 91 % used\n")


async def test_gateway_without_a_timely_answer_is_unhealthy(tmp_path: Path) -> None:
    async with await asyncio.start_server(_stay_silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        reported = await ask_health(tmp_path, "--url", url, "--timeout", "0.2")
    assert reported.returncode == 1
    assert f"no gateway responds at {url}/readyz" in reported.stderr


async def test_invalid_configuration_has_another_exit_status(tmp_path: Path) -> None:
    (tmp_path / "passerelle.yaml").write_text(f"prot: {find_free_port()}\n", "utf-8")
    reported = await ask_health(tmp_path)
    assert reported.returncode == 2
    assert "prot" in reported.stderr


async def _stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(4096):
        """Waits until the caller has disconnected."""
    writer.close()
