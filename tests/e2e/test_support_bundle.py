"""``passerelle support-bundle`` next to a running gateway, as a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.processes import run_gateway

pytestmark = pytest.mark.anyio


async def test_bundle_contains_metrics_and_readiness_of_a_running_gateway(tmp_path: Path) -> None:
    target = tmp_path / "support.tar.gz"
    async with run_gateway(tmp_path, {}) as gateway:
        words = ("support-bundle", str(target), "--data-dir", str(gateway.data_dir))
        done = subprocess.run(
            [sys.executable, "-m", "passerelle", *words],
            cwd=tmp_path,
            env={**os.environ, "PASSERELLE_PORT": str(gateway.port)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        token = gateway.token
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(str(target))
    with tarfile.open(target) as packed:
        members = {
            name.partition("/")[2]: file.read()
            for name in packed.getnames()
            if (file := packed.extractfile(name)) is not None
        }
    assert members["readyz.json"] == b'{"status":"ready"}'
    assert b"passerelle_build_info{" in members["metrics.txt"]
    assert members["engine.log"]
    assert token.encode() not in b"".join(members.values())
