"""Files of ``deploy/``, read by the tools that they are for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.source import read_settings
from tests.support.tls import CertificateAuthority

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
UNIT: Final = "passerelle.service"
MOST_EXPOSED: Final = 20
"""The highest allowed ``systemd-analyze security`` score in tenths; 100 is no protection at all."""


def run_tool(package: str, *command: str) -> subprocess.CompletedProcess[str]:
    """The output of a tool. A missing tool is an error: a skipped test would prove nothing."""
    tool = shutil.which(command[0], path="/usr/sbin:/usr/bin:/usr/local/bin:/bin")
    assert tool is not None, f"no {command[0]}: apt install {package}"
    return subprocess.run(
        [tool, *command[1:]], capture_output=True, text=True, timeout=60, check=False
    )


def copy_unit(folder: Path) -> Path:
    """The unit with an existing program, since systemd checks for it."""
    text = (DEPLOY / "systemd" / UNIT).read_text("utf-8")
    there = Path(sys.executable).parent / "passerelle"
    copy = folder / UNIT
    copy.write_text(text.replace("/opt/passerelle/bin/passerelle", str(there)), "utf-8")
    return copy


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    done = run_tool("systemd", "systemd-analyze", "verify", "--man=no", str(copy_unit(tmp_path)))
    mine = [line for line in done.stderr.splitlines() if UNIT in line]
    assert mine == []


def test_unit_is_sandboxed(tmp_path: Path) -> None:
    words = ("security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager")
    done = run_tool("systemd", "systemd-analyze", *words, str(copy_unit(tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Overall exposure level" in done.stdout


def test_the_unit_ends_the_gateway_alone_and_gives_it_time() -> None:
    """The engine has to outlive the gateway, which has ten seconds to stop (docs/operate)."""
    said = dict(
        re.findall(r"^(\w+)=(.*)$", (DEPLOY / "systemd" / UNIT).read_text("utf-8"), re.MULTILINE)
    )
    assert said["KillMode"] == "mixed"
    assert int(said["TimeoutStopSec"]) > 10
    assert said["Type"] == "notify"


@pytest.mark.parametrize("upgraded", [True, False])
def test_nginx_accepts_the_file(tmp_path: Path, *, upgraded: bool) -> None:
    made = CertificateAuthority(tmp_path / "tls").issue("agents.example.org")
    text = (DEPLOY / "nginx" / "passerelle.conf").read_text("utf-8")
    text = text.replace("/etc/passerelle/fullchain.pem", str(made.cert))
    text = text.replace("/etc/passerelle/privkey.pem", str(made.key))
    if not upgraded:
        text = text.replace("$passerelle_connection;", "$no_such_variable;")
    whole = tmp_path / "nginx.conf"
    whole.write_text(f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{\n{text}\n}}\n", "utf-8")
    done = run_tool("nginx-light", "nginx", "-t", "-p", str(tmp_path), "-c", str(whole))
    assert (done.returncode == 0) is upgraded, done.stderr


def test_caddy_accepts_the_file(tmp_path: Path) -> None:
    file = str(DEPLOY / "caddy" / "Caddyfile")
    done = run_tool("caddy", "caddy", "adapt", "--config", file, "--adapter", "caddyfile")
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr.lower(), done.stderr
    assert '"flush_interval":-1' in done.stdout


@pytest.mark.parametrize("name", ["nginx/passerelle.conf", "caddy/Caddyfile"])
def test_gateway_accepts_the_settings_that_a_proxy_file_requires(name: str, tmp_path: Path) -> None:
    head = re.findall(
        r"^#(?: In passerelle.yaml:)? +(\w+: .*)$", (DEPLOY / name).read_text("utf-8"), re.MULTILINE
    )
    assert len(head) == 2
    config = tmp_path / "passerelle.yaml"
    config.write_text("\n".join(head), "utf-8")
    reading = read_settings(Sources(config=config, environ={}, folder=tmp_path))
    assert reading.settings is not None, reading
    assert reading.settings.proxy is not None
