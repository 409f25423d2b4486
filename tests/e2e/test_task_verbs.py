"""``passerelle tasks`` and ``passerelle sessions`` against a running gateway with a real agent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from passerelle.cli.exit_status import ExitStatus
from passerelle.demo.processes import GatewayProcess
from tests.support.command import CommandResult, run_command
from tests.support.processes import AGENT
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ABSENT = "task_00" + "0" * 26
BEHIND = "stale: "


async def create(gateway: GatewayProcess, objective: str, *flags: str) -> str:
    done = await run_command(gateway, "tasks", "create", AGENT, objective, *flags)
    task_id, status, version = done.lines[0].split("  ")
    assert (status in {"accepted", "draft"}, version) == (True, "version 1")
    return task_id


async def show(gateway: GatewayProcess, task_id: str) -> dict[str, str]:
    """The fields of a task in text output."""
    done = await run_command(gateway, "tasks", "show", task_id)
    fields = (line.partition("  ") for line in done.lines if line)
    return {name.strip(): text.strip() for name, _, text in fields}


async def await_status(gateway: GatewayProcess, task_id: str, status: str) -> None:
    async def has_status() -> bool:
        return (await show(gateway, task_id))["status"].startswith(f"{status} since ")

    await wait_until(has_status, 20, f"{task_id} is {status}")


async def await_list(gateway: GatewayProcess, *flags: str) -> list[str]:
    """The lines of an up-to-date list; the last line of a lagging one states that it lags."""

    async def is_whole() -> list[str]:
        lines = (await run_command(gateway, "tasks", "list", *flags)).lines
        return [] if lines[-1].startswith(BEHIND) else lines

    return await wait_until(is_whole, 20, f"a list of tasks {flags} that is not behind")


async def test_a_task_is_created_started_and_shown(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    task_id = await create(
        gateway, "echo count the boats", "--title", "Boats", "--priority", "5", "--key", "boats"
    )
    again = await run_command(
        gateway,
        *("tasks", "create", AGENT, "echo count the boats", "--title", "Boats"),
        *("--priority", "5", "--key", "boats"),
    )
    assert again.lines == [f"{task_id}  accepted  version 1  as before"]
    (started,) = (await run_command(gateway, "tasks", "start", task_id)).lines
    assert started.startswith(f"{task_id}  ")
    await await_status(gateway, task_id, "completed")
    assert peer.texts == ["echo count the boats"]
    shown = await show(gateway, task_id)
    assert (shown["task"], shown["title"], shown["agent"]) == (task_id, "Boats", AGENT)
    assert shown["1"].split()[:2] == ["completed", AGENT]
    record = (await run_command(gateway, "tasks", "show", task_id, "--json")).answer
    assert (record["status"], record["priority"]) == ("completed", 5)
    assert str(record["version"]) == shown["version"]


async def test_lists_are_tables_and_pages(gateway: GatewayProcess, peer: ScriptedPeer) -> None:
    del peer
    made = [await create(gateway, f"pier {number}") for number in range(3)]
    listed = await await_list(gateway, "--text", "PIER", "--limit", "2")
    head, first, second, count, more = listed
    assert head.split() == ["TASK", "STATUS", "AGENT", "SINCE", "PROGRESS", "TITLE"]
    assert [first.split()[0], second.split()[0]] == made[:0:-1]
    assert [first.index("accepted"), second.index("accepted")] == [head.index("STATUS")] * 2
    assert count == "tasks: 2"
    page = more.removeprefix("more: --page ")
    rest = await await_list(gateway, "--text", "pier", "--page", page)
    assert [line.split()[0] for line in rest[1:]] == [made[0], "tasks:"]
    reported = await run_command(
        gateway, "tasks", "list", "--status", "accepted", "--status", "draft", "--json"
    )
    assert set(made) <= {task["taskId"] for task in reported.answer["tasks"]}
    assert await await_list(gateway, "--status", "lost") == ["tasks: 0"]


async def test_a_task_is_held_changed_linked_and_ended(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    del peer
    task_id = await create(gateway, "wait for me")
    other = await create(gateway, "the other one")
    for words, said in (
        (("pause", task_id, "--reason", "lunch"), "paused"),
        (("resume", task_id), "accepted"),
        (("update", task_id, "--title", "Renamed", "--priority", "-3"), "accepted"),
        (("progress", task_id, "--percent", "40", "--step", "2 of 5"), "accepted"),
        (("link", task_id, "blocks", other, "--reason", "first things first"), "accepted"),
        (("unlink", task_id, "blocks", other), "accepted"),
    ):
        (line,) = (await run_command(gateway, "tasks", *words)).lines
        assert line.startswith(f"{task_id}  {said}  version "), words
    shown = await show(gateway, task_id)
    assert (shown["title"], shown["progress"]) == ("Renamed", "40% 2 of 5")
    assert shown["blocks"].split()[:2] == [other, "removed"]
    (failed,) = (await run_command(gateway, "tasks", "fail", task_id, "--code", "no_budget")).lines
    assert failed.startswith(f"{task_id}  failed  ")
    assert (await show(gateway, task_id))["error"] == "no_budget: failed by its owner"
    explained = await run_command(gateway, "tasks", "explain", task_id)
    (end,) = [line for line in explained.lines if line.startswith("end ")]
    assert end.startswith("end      no_budget: failed by its owner (task.failed, event ")
    cancelled = await run_command(gateway, "tasks", "cancel", task_id)
    assert cancelled.lines == [f"{task_id}  already_done"]
    stopped = await run_command(gateway, "tasks", "cancel", other, "--subtree", "--json")
    assert stopped.answer["outcome"] == "requested"


async def test_failed_task_is_retried_under_another_id(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    task_id = await create(gateway, "fail once")
    await run_command(gateway, "tasks", "start", task_id)
    await await_status(gateway, task_id, "failed")
    (line,) = (await run_command(gateway, "tasks", "retry", task_id, "again")).lines
    assert line.split("  ")[0].partition("~")[0] == task_id
    await wait_until(lambda: peer.texts == ["fail once"] * 2, 20, "the agent has it again")
    record = (await run_command(gateway, "tasks", "show", task_id, "--json")).answer
    assert len(record["attempts"]) == 2


async def test_message_is_sent_to_an_agent_and_continues_its_task(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    sent = await run_command(gateway, "tasks", "send", AGENT, "-", stdin="ask which harbour")
    task_id, state = sent.lines[0].split("  ")
    assert state == "accepted"
    await await_status(gateway, task_id, "waiting_input")
    await run_command(gateway, "tasks", "send", AGENT, "the old one", "--task", task_id)
    await await_status(gateway, task_id, "completed")
    assert peer.texts == ["ask which harbour", "the old one"]


async def test_sessions_are_opened_named_listed_and_shown(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    del peer
    opened = await run_command(gateway, "sessions", "open", "Harbour", "--label", "team=north")
    session_id = opened.lines[0].split("  ")[0]
    await run_command(gateway, "sessions", "rename", session_id, "Old harbour", "--label", "team=")
    task_id = await create(gateway, "echo hello", "--session", session_id)
    await run_command(gateway, "tasks", "start", task_id)
    await await_status(gateway, task_id, "completed")
    listed = (await run_command(gateway, "sessions", "list")).lines
    (row,) = [line for line in listed if line.startswith(session_id)]
    assert (row.split()[2], row.endswith("Old harbour")) == ("1", True)
    shown = (await run_command(gateway, "sessions", "show", session_id, "--limit", "1000")).lines
    assert "title    Old harbour" in shown
    assert any(line.startswith("THREAD ") for line in shown)
    assert any("  user  message  echo hello" in line for line in shown)
    idle = await run_command(gateway, "sessions", "interrupt", session_id)
    assert idle.lines == ["no_op"]


async def test_a_thread_is_rolled_back_to_a_turn(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    del peer
    tasks: list[str] = []
    records: list[dict[str, Any]] = []
    for text in ("echo one", "echo two"):
        context = ("--context", records[0]["scope"]["contextId"]) if records else ()
        sent = await run_command(gateway, "tasks", "send", AGENT, text, *context)
        tasks.append(sent.lines[0].split("  ")[0])
        await await_status(gateway, tasks[-1], "completed")
        records.append((await run_command(gateway, "tasks", "show", tasks[-1], "--json")).answer)
    thread, turn = records[0]["threadId"], records[0]["turnId"]
    done = await run_command(gateway, "sessions", "rollback", thread, "--to", turn)
    assert done.lines[0].startswith("rolled_back  bd_")
    assert done.lines[1:] == [
        f"left behind: {tasks[1]}",
        f"new context at its next turn: {AGENT}",
    ]
    boundary = done.lines[0].removeprefix("rolled_back  ")
    shown = (await run_command(gateway, "tasks", "show", tasks[1])).lines
    assert f"left     behind by rollback {boundary}" in shown
    again = await run_command(gateway, "sessions", "rollback", thread, "--to", turn)
    assert again.lines == ["no_op"]
    left = records[1]["turnId"]
    gone = await run_command(gateway, "sessions", "rollback", thread, "--to", left)
    assert complain(gone)[1].startswith("toTurn: is already rolled back")
    words = ("sessions", "compact", thread, "--to", turn)
    done = await run_command(gateway, *words, "one boat")
    assert done.lines[0].startswith("bd_")
    again = await run_command(gateway, *words, "one boat")
    assert complain(again)[1].startswith("toTurn: is already summarized")
    lone = await run_command(gateway, *words, "--task", tasks[0])
    assert lone.status == ExitStatus.CALLER


def complain(done: CommandResult) -> tuple[int, str]:
    assert done.out == ""
    return done.status, done.err.splitlines()[0].removeprefix("passerelle: error: ")


async def test_errors_name_the_fault(gateway: GatewayProcess, peer: ScriptedPeer) -> None:
    del peer
    task_id = await create(gateway, "be careful")
    for words, status, said in (
        (("tasks", "show", ABSENT), ExitStatus.NOT_FOUND, f"there is no task '{ABSENT}'"),
        (("tasks", "cancel", ABSENT), ExitStatus.NOT_FOUND, f"there is no task '{ABSENT}'"),
        (("tasks", "show", "agents?x"), ExitStatus.NOT_FOUND, "there is no task 'agents?x'"),
        (("tasks", "list", "--status", "busy"), ExitStatus.CALLER, "status.0: should be "),
        (("tasks", "list", "--since", "noon"), ExitStatus.CALLER, "since: is no RFC 3339 time"),
        (
            ("tasks", "update", task_id, "--priority", "500"),
            ExitStatus.CALLER,
            "priority: should be ",
        ),
        (("tasks", "link", task_id, "knows", "x"), ExitStatus.CALLER, "kind: should be "),
        (("tasks", "pause", task_id, "--version", "9"), ExitStatus.STALE, "version 9 was read"),
        (("tasks", "give", task_id, "nobody"), ExitStatus.CALLER, "owner: is not known here"),
        (("tasks", "give", task_id, "owner", "--version", "9"), ExitStatus.STALE, "version 9"),
        (
            ("tasks", "create", "nobody", "hello"),
            ExitStatus.NOT_FOUND,
            "there is no agent 'nobody'",
        ),
        (
            ("tasks", "create", "passerelle", "hello", "--profile", '{"skils": []}'),
            ExitStatus.CALLER,
            "profile.skils: is not known; did you mean 'skills'?",
        ),
        (
            ("tasks", "create", "passerelle", "hello", "--profile", "{"),
            ExitStatus.CALLER,
            "Invalid value for --profile: is not valid JSON",
        ),
        (("tasks", "complete", task_id), ExitStatus.CALLER, ""),
        (("sessions", "rename", "se_1"), ExitStatus.CALLER, "Invalid value for 'TITLE': give a"),
        (("sessions", "open", "x", "--label", "a"), ExitStatus.CALLER, "Invalid value for '--lab"),
    ):
        found, line = complain(await run_command(gateway, *words))
        assert (found, line[: len(said)]) == (status, said), words
    given = await run_command(gateway, "tasks", "give", task_id, "owner")
    assert given.lines == [f"{task_id}  is owner's"]


@pytest.mark.requirement("TR-12")
async def test_task_without_an_agent_is_routed_by_its_profile_when_it_starts(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    fits = ("--profile", '{"latency": "background"}')
    made = await run_command(gateway, "tasks", "create", "passerelle", "echo hello", *fits)
    task_id = made.lines[0].partition("  ")[0]
    await run_command(gateway, "tasks", "start", task_id)
    await await_status(gateway, task_id, "completed")
    reported = (await run_command(gateway, "tasks", "explain", task_id)).out
    assert f"agent '{AGENT}' was chosen" in reported
    assert "background work" in reported
    assert peer.texts == ["echo hello"]
    wants = ("--profile", "specialist")
    made = await run_command(gateway, "tasks", "create", "passerelle", "echo hello", *wants)
    task_id = made.lines[0].partition("  ")[0]
    status, line = complain(await run_command(gateway, "tasks", "start", task_id))
    assert (status, "gets no specialist work" in line) == (ExitStatus.CALLER, True)
    assert "accepted since " in (await show(gateway, task_id))["status"]


async def test_json_is_the_gateways_answer(gateway: GatewayProcess, peer: ScriptedPeer) -> None:
    del peer
    task_id = await create(gateway, "the same")
    shown = await run_command(gateway, "tasks", "explain", task_id, "--json")
    assert json.loads(shown.out)["marks"]["retries"]["state"] == "not_applicable"
    opened = await run_command(gateway, "sessions", "open", "Quay", "--json")
    assert opened.answer["session"]["title"] == "Quay"
