"""The first hour: a gateway with sample agents, its output, and a call in one line."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest
import yaml

from passerelle.cli.exit_status import ExitStatus
from passerelle.demo.processes import Child, GatewayProcess, read_port, start
from passerelle.gateway.auth.keys import hash_key
from passerelle.runtime.common.secret import Secret
from tests.support.command import run_command
from tests.support.ports import find_free_port
from tests.support.waiting import wait_until

# Many programs start one after another, and each may have to wait for others.
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


@contextlib.asynccontextmanager
async def serve(folder: Path, *flags: str) -> AsyncGenerator[tuple[Child, GatewayProcess]]:
    """``passerelle serve`` with flags, and the options that commands need to reach it."""
    words = ("passerelle", "serve", "--port", "0", "--data-dir", str(folder / "data"), *flags)
    child = start("served", words, folder)
    try:
        port = read_port(await child.read_line("passerelle "))
        yield child, GatewayProcess(folder, port=port)
    finally:
        await child.stop()


async def test_sample_agents_start_at_once_and_the_printed_line_calls_one(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path, "--demo-agents") as (child, gateway):
        line = await child.read_line("try: ")
        said = child.stdout_file.read_text("utf-8")
        for name in ("echo", "report", "payments"):
            assert f"  agent {name}: {gateway.url}/agents/{name}\n" in said
        assert f"  metrics: {gateway.url}/metrics\n" in said
        assert f"  OpenAPI: {gateway.url}/v1/openapi.json\n" in said
        assert "unavailable" not in said
        program, *words = shlex.split(line.removeprefix("try: "))
        assert program == "passerelle"
        done = await run_command(gateway, *words)
        assert (done.status, done.out) == (0, "hello\n")
        assert done.err.startswith("task_")
        assert done.err.endswith("  completed\n")
        streamed = await run_command(gateway, "call", "report", "go")
        assert streamed.out.splitlines()[:2] == ["line 1 of 12", "line 2 of 12"]
        late = await run_command(gateway, "call", "report", "every=1", "--timeout", "1")
        assert late.status == ExitStatus.REMOTE
        assert late.err.endswith("within 1 s; its task continues: see passerelle tasks list\n")
        as_json = await run_command(gateway, "call", "echo", "-", "--json", stdin="from a pipe")
        assert as_json.out.startswith("{\n")
        assert "from a pipe" in as_json.out


async def test_root_lists_its_resources_for_programs_and_people(tmp_path: Path) -> None:
    async with serve(tmp_path) as (_, gateway), httpx.AsyncClient(base_url=gateway.url) as http:
        answer = await http.get("/")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        links: dict[str, str] = answer.json()["links"]
        assert {"metrics", "openapi", "asyncapi", "readiness"} <= links.keys()
        # Over the same connection again: heads seen before are cached.
        assert (await http.get("/")).json()["links"] == links
        for path in links.values():
            found = await http.get(path)
            assert found.status_code == 200, path
        page = await http.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        assert page.headers["content-type"].startswith("text/html")
        assert all(f'<a href="{path}">' in page.text for path in links.values())
        assert (await http.head("/")).status_code == 200
        lost = await http.get("/v1/taskz")
        assert lost.status_code == 404
        assert lost.json()["detail"] == (
            "this path does not exist; GET / lists the entry points; did you mean /v1/tasks?"
        )
        for path in ("/zzz", "/z"):
            elsewhere = await http.get(path)
            assert elsewhere.json()["detail"].endswith("GET / lists the entry points")


async def test_approval_is_shown_with_the_command_that_decides_it(tmp_path: Path) -> None:
    async with serve(tmp_path, "--demo-agents") as (child, gateway):
        await child.read_line("try: ")
        asked = await run_command(gateway, "call", "payments", "pay 5")
        assert asked.status == 0
        assert "May I pay this?" in asked.out
        assert "input required" in asked.err
        task, *_ = asked.err.split()
        hint = asked.err.splitlines()[-1]
        assert "allow or deny decides it" in hint
        # A text message decides nothing, and its answer states that.
        again = await run_command(gateway, "call", "payments", "--task", task, "yes")
        assert again.err.splitlines()[-1] == hint
        _, _, shown = hint.partition("passerelle approvals show ")
        action = shown.split()[0]
        reported = await run_command(gateway, "approvals", "show", action)
        digest = next(line.split()[1] for line in reported.out.splitlines() if "digest" in line)
        decided = await run_command(gateway, "approvals", "allow", action, "--digest", digest)
        assert decided.status == 0

        async def is_paid() -> bool:
            listed = await run_command(gateway, "tasks", "show", task)
            return "completed" in listed.out

        await wait_until(is_paid, 20, "the bill is paid")


async def test_not_found_has_its_own_exit_status(tmp_path: Path) -> None:
    async with serve(tmp_path, "--demo-agents") as (_, gateway):
        for words in (
            ("call", "nobody", "hello"),
            ("call", "echo", "hello", "--task", "task_nope"),
            ("tasks", "show", "task_nope"),
            ("sessions", "show", "se_nope"),
            ("approvals", "show", "act_nope"),
        ):
            done = await run_command(gateway, *words)
            assert done.status == ExitStatus.NOT_FOUND, (words, done)
            assert "there is no " in done.err, words


async def test_unreachable_agents_are_named_with_the_reason(tmp_path: Path) -> None:
    port = find_free_port()
    config = tmp_path / "passerelle.yaml"
    agents = [{"name": "builder", "url": f"http://127.0.0.1:{port}"}]
    public = "https://agents.example.com"
    config.write_text(yaml.safe_dump({"agents": agents, "public_url": public}), "utf-8")
    async with serve(tmp_path, "--config", str(config)) as (child, _):
        line = await child.read_line("unavailable: ")
        assert line.startswith("unavailable: agent builder: its card at ")
        assert "refused" in line
        said = child.stdout_file.read_text("utf-8")
        assert f"  from outside: {public}\n" in said

        def is_logged() -> bool:
            return '"event":"agent.away"' in child.stderr_file.read_text("utf-8")

        await wait_until(is_logged, 10, "the log names it as well")
        assert "try: " not in said


async def test_configured_agents_override_sample_agents_of_the_same_name(
    tmp_path: Path,
) -> None:
    config = tmp_path / "passerelle.yaml"
    agents = [{"name": "echo", "url": f"http://127.0.0.1:{find_free_port()}"}]
    config.write_text(yaml.safe_dump({"agents": agents}), "utf-8")
    async with serve(tmp_path, "--demo-agents", "--config", str(config)) as (child, gateway):
        line = await child.read_line("try: ")
        assert line.startswith(f"try: passerelle call report hello --config {config}")
        assert "unavailable: agent echo: " in child.stdout_file.read_text("utf-8")
        # A reload reads the file again; agents that were started with it stay.
        config.write_text(yaml.safe_dump({"agents": [], "log_level": "warning"}), "utf-8")

        async def is_taken() -> bool:
            listed = await run_command(gateway, "agents")
            names = [one.split()[0] for one in listed.lines if not one.startswith((" ", "agents:"))]
            return names == ["report", "payments"]

        await wait_until(is_taken, 20, "the file is read again")


async def test_configuration_may_name_sample_agents(tmp_path: Path) -> None:
    config = tmp_path / "passerelle.yaml"
    key = "shop-key"
    client = {"name": "shop", "key_hash": hash_key(Secret(key)), "may_call": ["echo"]}
    config.write_text(yaml.safe_dump({"clients": [client]}), "utf-8")
    flags = ("--demo-agents", "--config", str(config))
    async with (
        serve(tmp_path, *flags) as (_, gateway),
        httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as http,
    ):
        listed = (await http.get(f"{gateway.url}/v1/agents")).json()["agents"]
        assert [one["name"] for one in listed] == ["echo"]
    config.write_text(yaml.safe_dump({"clients": [{**client, "may_call": ["ecko"]}]}), "utf-8")
    refused = start("refused", ("passerelle", "serve", *flags), tmp_path)
    try:
        await wait_until(refused.has_ended, 60, "a name that is none is refused before the start")
    finally:
        status = await refused.stop()
    assert status == ExitStatus.CALLER
    assert "there is no agent 'ecko'" in refused.stderr_file.read_text("utf-8")
