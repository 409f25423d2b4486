"""Tasks created for the gateway's own agent: routed at their start, by their profile (TR-12)."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from passerelle.a2a_mapping.extensions import PROFILE
from passerelle.core.agent_name import ROUTER
from passerelle.core.commands import GetRecord, GetTaskModel
from passerelle.core.errors import InvalidInput, NotFound, UnsupportedOperation
from passerelle.core.principal import Principal
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.requests import (
    CreateTask,
    StartTask,
    TaskChanged,
    UpdateTask,
)
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.integration.delegation.test_attempts import reject
from tests.support.harness import ADA, Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def create(
    harness: Harness,
    profile: JsonObject | None = None,
    who: Principal = ADA,
    **members: object,
) -> str:
    """Creates a task without an agent; returns its id."""
    command = CreateTask(ROUTER, "dig a hole", profile=profile or {}, **members)  # type: ignore[arg-type]  # named by the test
    changed = cast("TaskChanged", await harness.service.execute(who, command, None))
    harness.remember(str(changed.task["sessionId"]))
    return str(changed.task["taskId"])


async def start(
    harness: Harness, task_id: str, who: Principal = ADA, **members: object
) -> JsonObject:
    command = StartTask(task_id, "http", **members)  # type: ignore[arg-type]  # named by the test
    return cast("TaskChanged", await harness.service.execute(who, command, None)).task


async def read(harness: Harness, task_id: str) -> TaskRecord:
    record = await harness.parts.dispatch.read_task(task_id)
    assert record is not None
    return record


async def await_end(harness: Harness, task_id: str) -> TaskRecord:
    async def find_completed() -> TaskRecord | None:
        record = await read(harness, task_id)
        return record if record.status is Status.COMPLETED else None

    found = await wait_until(find_completed, 10, "it is completed")
    assert found is not None
    return found


async def list_reasons(harness: Harness, task_id: str, who: Principal = ADA) -> list[str]:
    explanation = await harness.service.read(who, GetTaskModel(task_id, "explain"))
    return [str(one["text"]) for one in cast("list[JsonObject]", explanation["agent"])]


async def list_routing_events(harness: Harness, record: TaskRecord) -> list[str]:
    types = [one.type for one in await harness.entries(record.session_id)]
    return [one for one in types if one.startswith(("routing.", "task.profile."))]


@pytest.mark.requirement("TR-12", "EXT-5", "PRS-10")
async def test_task_is_routed_by_its_profile_and_explained(street: Harness) -> None:
    street.tags_of = {"other": frozenset({"specialist"})}
    task_id = await create(street, {"tier": "specialist"})
    before = await read(street, task_id)
    assert (before.kind, before.peer, before.status) == (ROUTER, None, Status.ACCEPTED)
    assert before.profile == {"tier": "specialist"}
    await start(street, task_id)
    record = await await_end(street, task_id)
    assert (record.kind, record.peer, record.assignee) == (ROUTER, "other", "other")
    assert (street.peer.texts, street.peers["other"].texts) == ([], ["dig a hole"])
    assert await list_routing_events(street, record) == [
        "task.profile.resolved",
        "routing.single_candidate",
        "routing.decided",
    ]
    reasons = [
        "the caller left the choice of a specialist agent to the gateway",
        "only agent 'other' fits; 'echo' gets no specialist work",
        "agent 'other' was chosen: no other agent fits",
    ]
    assert await list_reasons(street, task_id) == reasons
    shown = await street.service.read(ADA, GetRecord(task_id))
    assert shown["routing"] == reasons
    routing = await street.service.read(ADA, GetTaskModel(task_id, "routing"))
    assert cast("JsonObject", routing["profile"])["tier"] == "specialist"
    assert cast("JsonObject", routing["decision"])["peer"] == "other"


async def test_task_without_a_profile_is_routed_by_its_message_or_to_the_first_agent(
    street: Harness,
) -> None:
    street.tags_of = {"other": frozenset({"specialist"})}
    plain = await create(street)
    await start(street, plain)
    assert (await await_end(street, plain)).peer == "echo"
    unprofiled = await create(street)
    message = {**street.message("as said"), "metadata": {PROFILE: "specialist"}}
    await start(street, unprofiled, message=message)
    assert (await await_end(street, unprofiled)).peer == "other"
    own = await create(street, {"tier": "standard"})
    message = {**street.message("as it is"), "metadata": {PROFILE: "specialist"}}
    await start(street, own, message=message)
    assert (await await_end(street, own)).peer == "echo", "the profile of the task takes precedence"


@pytest.mark.requirement("TR-11")
async def test_constraints_of_the_task_exclude_agents(street: Harness) -> None:
    task_id = await create(street, constraints={"agents": ["other"]})
    await start(street, task_id)
    assert (await await_end(street, task_id)).peer == "other"
    (_, why, _) = await list_reasons(street, task_id)
    assert "only agent 'other' fits; 'echo' is not allowed by constraint agents" in why


async def test_task_without_a_candidate_can_be_started_once_one_exists(street: Harness) -> None:
    task_id = await create(street, {"tier": "specialist"}, draft=True)
    why = "no agent fits: each of them is excluded"
    for _ in range(2):
        with pytest.raises(UnsupportedOperation, match=why):
            await start(street, task_id)
    record = await read(street, task_id)
    assert (record.status, record.attempts) == (Status.ACCEPTED, ())
    assert await list_routing_events(street, record) == [
        "task.profile.resolved",
        "routing.not_possible",
    ], "once"
    assert (await list_reasons(street, task_id))[-1].startswith(why)
    street.tags_of = {"echo": frozenset({"specialist"})}
    street.clock.ahead_ms += 1_500  # tags are read once a second
    await start(street, task_id)
    assert (await await_end(street, task_id)).peer == "echo"


async def test_fallback_replaces_a_refusing_agent_unless_the_profile_forbids_it(
    street: Harness,
) -> None:
    street.peer.next(reject)
    task_id = await create(street)
    await start(street, task_id)

    async def is_retrying() -> bool:
        return (await read(street, task_id)).status is Status.RETRYING

    await wait_until(is_retrying, 10, "a retry with another agent is due")
    await street.run_due("retry", task_id, after_ms=0)
    record = await await_end(street, task_id)
    assert [one.worker.peer for one in record.attempts] == ["echo", "other"]
    assert "agent 'other' took over from 'echo', which refused the task" in await list_reasons(
        street, task_id
    )
    street.peer.next(reject)
    alone = await create(street, {"fallback": False})
    await start(street, alone)

    async def is_over() -> bool:
        return (await read(street, alone)).status is Status.FAILED

    await wait_until(is_over, 10, "it fails without a fallback")


async def test_context_keeps_its_agent_unless_the_profile_forbids_it(street: Harness) -> None:
    first = await street.send("go", agent="other")
    await street.await_answer(first)
    kept = await create(street, context_id=first.context_id)
    await start(street, kept)
    assert (await await_end(street, kept)).peer == "other"
    assert any("it has the context already" in one for one in await list_reasons(street, kept))
    left = await create(street, {"continuity": False}, context_id=first.context_id)
    await start(street, left)
    assert (await await_end(street, left)).peer == "echo"


async def test_invalid_profile_is_refused_when_it_is_written(street: Harness) -> None:
    with pytest.raises(InvalidInput, match=r"profile\.tier"):
        await create(street, {"tier": "best"})
    task_id = await create(street)
    with pytest.raises(InvalidInput, match=r"profile\.skils.*skills"):
        await street.service.execute(ADA, UpdateTask(task_id, profile={"skils": ["a"]}), None)
    # In a task that names its agent, a profile is the owner's note and is not checked.
    named = CreateTask("echo", "dig a hole", profile={"tier": "best"})
    await street.service.execute(ADA, named, None)


async def test_task_is_sent_to_an_agent_named_at_its_start_or_later(street: Harness) -> None:
    at_start = await create(street, {"tier": "specialist"})
    await start(street, at_start, agent="other")
    record = await await_end(street, at_start)
    assert (record.peer, await list_routing_events(street, record)) == ("other", [])
    later = await create(street, {"tier": "specialist"})
    await street.service.execute(ADA, UpdateTask(later, assignee="other"), None)
    await start(street, later)
    assert (await await_end(street, later)).peer == "other"
    # A task that names its agent cannot be started with the gateway's own agent.
    created = await street.service.execute(ADA, CreateTask("echo", "dig"), None)
    echo = str(cast("TaskChanged", created).task["taskId"])
    with pytest.raises(NotFound):
        await start(street, echo, agent=ROUTER)


async def test_caller_without_agents_cannot_create_a_routed_task(street: Harness) -> None:
    with pytest.raises(NotFound):
        await create(street, who=replace(ADA, agents=frozenset()))
    only = replace(ADA, agents=frozenset({"other"}))
    task_id = await create(street, who=only)
    await start(street, task_id, who=only)
    record = await await_end(street, task_id)
    assert record.peer == "other"
    facts = b"".join(entry.data for entry in await street.entries(record.session_id))
    assert b'"echo"' not in facts, "no fact names an agent that the caller may not call"


async def test_routed_task_gets_the_acceptance_conditions_of_its_agent(street: Harness) -> None:
    task_id = await create(street)
    assert (await read(street, task_id)).acceptance == ()
    street.acceptance = ({"artifact": {"name": "report"}},)
    await start(street, task_id)
    assert (await read(street, task_id)).acceptance == street.acceptance
