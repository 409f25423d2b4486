"""A forked gateway equals a started one in status, environment, folder and leftovers."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from passerelle.demo.processes import Child, GatewayProcess, start
from tests.support.fork_server import ForkServer, find_starter
from tests.support.leaks import take_snapshot
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def wait_for_end(child: Child) -> int | None:
    await wait_until(child.has_ended, 20, "the command ends")
    return child.process.returncode


@pytest.mark.parametrize(
    ("words", "status"),
    [(("version",), 0), (("nothing",), 2), (("check", "nowhere.yaml"), 2)],
)
async def test_command_exits_like_a_separate_process(
    fork_server: ForkServer, tmp_path: Path, words: tuple[str, ...], status: int
) -> None:
    forked = fork_server.start("forked", ("passerelle", *words), tmp_path)
    started = start("started", ("passerelle", *words), tmp_path)
    assert await wait_for_end(forked) == await wait_for_end(started) == status
    assert forked.stdout_file.read_text("utf-8") == started.stdout_file.read_text("utf-8")
    assert forked.stderr_file.read_text("utf-8") == started.stderr_file.read_text("utf-8")


async def test_a_forked_gateway_is_killed_and_stopped_as_any(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    gateway = GatewayProcess(tmp_path, begin=fork_server.start)
    await gateway.start()
    first = gateway.child
    assert first is not None
    assert f"process {first.process.pid}" in take_snapshot()
    gateway.kill()
    assert first.process.returncode == -signal.SIGKILL
    assert not is_alive(first.process.pid)
    await gateway.start()
    assert await gateway.stop() == 0
    await wait_until(lambda: not fork_server.list_processes(), 10, "the nursery has seen the end")


async def test_its_environment_is_exactly_the_given_one(
    fork_server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Set after the fork server started; a setting of the user who runs the tests is not for a gateway.
    monkeypatch.setenv("PASSERELLE_LOG_LEVEL", "none")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("HOME")
    own = {"PASSERELLE_CONTEXT": "elsewhere"}
    child = fork_server.start("shown", ("passerelle", "contexts", "show"), tmp_path, own)
    assert await wait_for_end(child) == 2
    assert f"{tmp_path}/passerelle/contexts.yaml: has no context 'elsewhere'" in (
        child.stderr_file.read_text("utf-8")
    )


async def test_gateway_with_other_python_startup_settings_is_started(
    fork_server: ForkServer,
) -> None:
    assert find_starter(None) == find_starter({"PASSERELLE_PORT": "1"}) == fork_server.start
    assert find_starter({"PYTHONPATH": os.curdir}) is start


async def test_it_inherits_the_limits_of_its_starter(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    gateway = GatewayProcess(tmp_path, begin=fork_server.start)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        await gateway.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert gateway.child is not None
    pid = gateway.child.process.pid
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (256, before[1])
    assert await gateway.stop() == 0
