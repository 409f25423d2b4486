"""Messages to the gateway's own agent: which agent gets them, fallbacks, recorded reasons (EXT-5, PRS-10, MK-3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from passerelle.a2a_mapping.extensions import PROFILE
from passerelle.core.agent_name import ROUTER
from passerelle.core.commands import GetRecord, GetTask, GetTaskModel, TurnAccepted
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.facts import RetryPolicy
from passerelle.core.payloads.routing import FallbackApplied, RoutingNotPossible
from passerelle.core.principal import Principal
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from passerelle.delegation.runs.turn_request import OpenedTurn, TurnRequest
from passerelle.delegation.runs.turn_samples import render_sample
from passerelle.delegation.runs.turn_templates import TemplatedTurns, make_template
from passerelle.permission_bridge.cases import About
from passerelle.permission_bridge.conditions import read_condition
from passerelle.permission_bridge.rules import Rule, make_policy
from passerelle.store.connection import pack
from tests.integration.delegation.test_attempts import reject, state_of
from tests.support.engine import Server
from tests.support.harness import ADA, Harness, open_harness
from tests.support.scripted_peer import ScriptedResponse
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ONLY_OTHER = replace(ADA, agents=frozenset({"other"}))
WITHOUT_AGENTS = replace(ADA, agents=frozenset())


@pytest.fixture
async def square(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Harness]:
    """A house with three agents."""
    async with open_harness(
        engine_server.url, tmp_path / "blobs", "echo", "other", "third"
    ) as opened:
        yield opened


async def ask(
    harness: Harness,
    text: str = "go",
    *,
    who: Principal = ADA,
    profile: Json = None,
    context: str | None = None,
) -> TurnAccepted:
    """Sends a message to the gateway's own agent."""
    message = harness.message(text)
    if profile is not None:
        message["metadata"] = {PROFILE: profile}
    return await harness.send(text, agent=ROUTER, who=who, message=message, context_id=context)


async def finish(harness: Harness, accepted: TurnAccepted, who: Principal = ADA) -> JsonObject:
    """The Task that the caller gets."""
    return cast("JsonObject", (await harness.await_answer(accepted, who=who))["task"])


async def list_routing_events(harness: Harness, accepted: TurnAccepted) -> list[str]:
    """The types of its routing facts, in order."""
    types = await harness.types(accepted)
    return [one for one in types if one.startswith(("routing.", "task.profile."))]


async def list_reasons(harness: Harness, accepted: TurnAccepted, who: Principal = ADA) -> list[str]:
    """The reasons for the choice of the agent, as its owner reads them."""
    read = await harness.service.read(who, GetTaskModel(accepted.task_id, "explain"))
    return [str(reason["text"]) for reason in cast("list[JsonObject]", read["agent"])]


def count_messages(harness: Harness) -> list[int]:
    """Messages per agent."""
    return [len(peer.messages) for peer in harness.peers.values()]


@pytest.mark.requirement("EXT-5", "PRS-10", "TR-12", "SNAP-11", "VAL-9")
async def test_one_of_three_agents_gets_the_message_and_every_reason_is_recorded(
    square: Harness,
) -> None:
    accepted = await ask(square)
    assert state_of(await finish(square, accepted)) == "COMPLETED"
    record = await square.record(accepted)
    assert (record.kind, record.peer, record.assignee) == (ROUTER, "echo", "echo")
    assert count_messages(square) == [1, 0, 0]
    assert await list_routing_events(square, accepted) == [
        "task.profile.resolved",
        "routing.candidates.resolved",
        "routing.decided",
    ]
    assert (await list_reasons(square, accepted))[-3:] == [
        "the caller left the choice of a standard agent to the gateway",
        "these agents fit, best first: 'echo', 'other', 'third'",
        "agent 'echo' was chosen out of 3: it fits best",
    ]
    seen = await square.service.read(ADA, GetTask(accepted.facade, ROUTER))
    assert state_of(seen) == "COMPLETED"
    routing = await square.service.read(ADA, GetTaskModel(accepted.task_id, "routing"))
    assert routing["candidateCount"] == 3
    assert cast("JsonObject", routing["profile"])["tier"] == "standard"
    decision = cast("JsonObject", routing["decision"])
    assert (decision["peer"], decision["reason"]) == ("echo", "best_score")
    shown = await square.service.read(ADA, GetRecord(accepted.task_id))
    assert shown["routing"] == await list_reasons(square, accepted)
    for agent in ("echo", "other"):
        with pytest.raises(NotFound):
            await square.service.read(ADA, GetTask(accepted.facade, agent))


@pytest.mark.requirement("EXT-5", "PRS-10", "VAL-9")
async def test_only_agent_of_a_caller_gets_its_message_and_no_other_is_named(
    square: Harness,
) -> None:
    accepted = await ask(square, who=ONLY_OTHER)
    assert state_of(await finish(square, accepted, ONLY_OTHER)) == "COMPLETED"
    assert count_messages(square) == [0, 1, 0]
    assert await list_routing_events(square, accepted) == [
        "task.profile.resolved",
        "routing.single_candidate",
        "routing.decided",
    ]
    assert (await list_reasons(square, accepted, ONLY_OTHER))[-2:] == [
        "only agent 'other' fits",
        "agent 'other' was chosen: no other agent fits",
    ]
    facts = b"".join(entry.data for entry in await square.entries(accepted.session_id))
    assert b"echo" not in facts
    assert b"third" not in facts


@pytest.mark.requirement("EXT-5", "PRS-10", "VAL-9")
async def test_message_without_a_candidate_is_rejected_with_the_reasons(square: Harness) -> None:
    accepted = await ask(square, profile={"skills": ["paint"]})
    task = await finish(square, accepted)
    assert state_of(task) == "REJECTED"
    why = (
        "no agent fits: none has the skill that is asked for; 'echo' does not have the skill paint, "
        "'other' does not have the skill paint, 'third' does not have the skill paint"
    )
    assert why in str(task["status"])
    assert count_messages(square) == [0, 0, 0]
    assert await list_routing_events(square, accepted) == [
        "task.profile.resolved",
        "routing.not_possible",
    ]
    assert (await list_reasons(square, accepted))[-1] == why
    record = await square.record(accepted)
    assert (record.status, record.rejected, record.attempts) == (Status.FAILED, True, ())
    routing = await square.service.read(ADA, GetTaskModel(accepted.task_id, "routing"))
    assert routing["candidateCount"] == 0
    assert state_of(await square.service.read(ADA, GetTask(accepted.facade, ROUTER))) == "REJECTED"
    # The context continues with a candidate that fits.
    again = await ask(square, context=accepted.context_id)
    assert state_of(await finish(square, again)) == "COMPLETED"


async def test_caller_without_agents_cannot_use_the_gateways_own_agent(square: Harness) -> None:
    with pytest.raises(NotFound):
        await ask(square, who=WITHOUT_AGENTS)


async def refuse(turn: Turn) -> None:
    await turn.refuse(-32004, "not today")


@pytest.mark.requirement("EXT-5", "PRS-10", "ATT-16", "VAL-9")
@pytest.mark.parametrize(
    ("how", "cause", "text"),
    [
        ("rejects", "rejected", "refused the task"),
        ("refuses", "rejected", "refused the task"),
        ("busy", "rate_limited", "takes no more work for now"),
        ("away", "unreachable", "could not be reached"),
    ],
)
async def test_chosen_agent_that_does_not_accept_is_replaced_at_once(
    square: Harness, how: str, cause: str, text: str
) -> None:
    square.policy = RetryPolicy(attempts=3)
    await finish(square, await ask(square))  # its card is cached from here on
    match how:
        case "rejects":
            square.peer.next(reject)
        case "refuses":
            square.peer.next(refuse)
        case "busy":
            square.peer.answer_next(ScriptedResponse(429, headers={"Retry-After": "40"}))
        case _:
            await square.peer.stop()
    accepted = await ask(square)
    response = asyncio.create_task(finish(square, accepted))
    await square.until(accepted, Status.RETRYING)
    await square.run_due("retry", accepted.task_id, after_ms=0)
    assert state_of(await response) == "COMPLETED"
    record = await square.record(accepted)
    assert [one.worker.peer for one in record.attempts] == ["echo", "other"]
    payloads = [event.fact.payload for event in await square.events(accepted)]
    (applied,) = [one for one in payloads if isinstance(one, FallbackApplied)]
    assert applied == FallbackApplied("echo", "other", cause, 2)  # type: ignore[arg-type]  # of the table
    assert f"agent 'other' took over from 'echo', which {text}" in await list_reasons(
        square, accepted
    )
    assert (record.kind, record.peer) == (ROUTER, "other")
    assert len(square.peers["other"].messages) == 1
    assert square.peers["third"].messages == []


async def fail_while_working(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.status("FAILED", "no luck")


async def test_task_that_an_agent_has_begun_gets_no_fallback(square: Harness) -> None:
    square.peer.next(fail_while_working)
    accepted = await ask(square)
    assert state_of(await finish(square, accepted)) == "FAILED"
    assert count_messages(square) == [1, 0, 0]
    assert "routing.fallback.applied" not in await list_routing_events(square, accepted)


async def test_profile_without_fallback_returns_the_refusal(square: Harness) -> None:
    square.peer.next(reject)
    accepted = await ask(square, profile={"fallback": False})
    assert state_of(await finish(square, accepted)) == "REJECTED"
    assert count_messages(square) == [1, 0, 0]


async def test_task_that_every_agent_refuses_is_rejected_as_all_tried(street: Harness) -> None:
    for peer in street.peers.values():
        peer.next(reject)
    accepted = await ask(street)
    response = asyncio.create_task(finish(street, accepted))
    await street.until(accepted, Status.RETRYING)
    await street.run_due("retry", accepted.task_id, after_ms=0)
    assert state_of(await response) == "REJECTED"
    payloads = [event.fact.payload for event in await street.events(accepted)]
    (left,) = [one for one in payloads if isinstance(one, RoutingNotPossible)]
    assert (left.reason, [one.peer for one in left.excluded]) == ("all_tried", ["echo", "other"])
    text = "no agent is left: all that fit were tried; 'echo' was tried already, 'other' was tried already"
    assert text in await list_reasons(street, accepted)


async def test_agent_with_an_open_circuit_breaker_is_excluded(
    street: Harness,
) -> None:
    await finish(street, await ask(street))
    await street.peer.stop()
    for _ in range(5):
        with pytest.raises(Exception, match="cannot be reached"):
            await street.await_answer(await street.send("go"))
    accepted = await ask(street)
    assert state_of(await finish(street, accepted)) == "COMPLETED"
    assert (await street.record(accepted)).attempts[0].worker.peer == "other"
    why = "has failed repeatedly and gets no calls for a while"
    assert f"only agent 'other' fits; 'echo' {why}" in await list_reasons(street, accepted)


async def test_agent_with_an_unreadable_card_is_excluded(street: Harness) -> None:
    await street.peer.stop()
    accepted = await ask(street)
    assert state_of(await finish(street, accepted)) == "COMPLETED"
    why = "only agent 'other' fits; 'echo' is out of reach: its card cannot be read"
    assert why in await list_reasons(street, accepted)
    assert street.peer.messages == []


async def test_concurrent_messages_share_one_read_of_an_unknown_card(
    street: Harness,
) -> None:
    street.peer.card_open.clear()
    asked = [asyncio.create_task(ask(street)) for _ in range(5)]
    await wait_until(lambda: len(street.peers["other"].card_reads) == 1, 15, "cards are asked for")
    street.peer.card_open.set()
    for accepted in await asyncio.gather(*asked):
        assert state_of(await finish(street, accepted)) == "COMPLETED"
    assert count_messages(street) == [5, 0]
    assert len(street.peer.card_reads) == 1


@pytest.mark.requirement("EXT-5")
async def test_context_keeps_its_agent(street: Harness) -> None:
    first = await ask(street, profile={"continuity": True})
    await finish(street, first)
    named = await street.send("go", agent="other", context_id=first.context_id)
    await street.await_answer(named)
    kept = await ask(street, context=first.context_id)
    await finish(street, kept)
    assert count_messages(street) == [1, 2]
    assert "agent 'other' was chosen out of 2: it has the context already" in await list_reasons(
        street, kept
    )
    remotes = {str(message["contextId"]) for message in street.peers["other"].messages}
    assert len(remotes) == 1, "the agent gets the same context"
    left = await ask(street, context=first.context_id, profile={"continuity": False})
    await finish(street, left)
    assert count_messages(street) == [2, 2]


async def test_context_moves_to_the_fallback_of_its_agent(street: Harness) -> None:
    first = await street.send("go", agent="other")
    await street.await_answer(first)
    await street.peers["other"].stop()
    accepted = await ask(street, context=first.context_id)
    response = asyncio.create_task(finish(street, accepted))
    await street.until(accepted, Status.RETRYING)
    await street.run_due("retry", accepted.task_id, after_ms=0)
    assert state_of(await response) == "COMPLETED"
    await finish(street, await ask(street, context=first.context_id))
    assert len(street.peer.messages) == 2, "the context stays with the fallback agent"


@pytest.mark.requirement("MK-3")
async def test_each_tier_is_routed_to_its_agents_and_other_tiers_are_invalid(
    square: Harness,
) -> None:
    square.tags_of = {
        "other": frozenset({"specialist"}),
        "third": frozenset({"standard", "specialist"}),
    }
    await finish(square, await ask(square, profile="standard"))
    assert count_messages(square) == [1, 0, 0]
    accepted = await ask(square, profile={"tier": "specialist"})
    await finish(square, accepted)
    assert (await square.record(accepted)).profile["tier"] == "specialist"
    assert count_messages(square) == [1, 1, 0]
    assert (await list_reasons(square, accepted))[-2] == (
        "these agents fit, best first: 'other', 'third'; 'echo' gets no specialist work"
    )
    with pytest.raises(InvalidInput, match="must be one of standard, specialist"):
        await ask(square, profile="expert")
    assert count_messages(square) == [1, 1, 0]


@pytest.mark.requirement("EXT-5")
@pytest.mark.parametrize("about", ["calls", "delegations"])
async def test_agent_that_a_rule_denies_is_excluded_with_the_rule(
    street: Harness, about: About
) -> None:
    at_echo = read_condition("peer.name == 'echo'")
    street.rules = make_policy((Rule("not-echo", "deny", at_echo, about=frozenset({about})),))
    accepted = await ask(street)
    assert state_of(await finish(street, accepted)) == "COMPLETED"
    assert count_messages(street) == [0, 1]
    why = "only agent 'other' fits; 'echo' is denied by the rule not-echo"
    assert why in await list_reasons(street, accepted)


async def test_answer_is_sent_to_the_agent_that_asked(street: Harness) -> None:
    accepted = await ask(street, "ask name")
    task = await finish(street, accepted)
    assert state_of(task) == "INPUT_REQUIRED"
    await street.send("Ada", agent=ROUTER, task=accepted.facade)
    await street.until(accepted, Status.COMPLETED)
    assert count_messages(street) == [2, 0]


async def test_message_with_an_idempotency_key_is_routed_once(street: Harness) -> None:
    message = street.message("go")
    one = await street.send("go", agent=ROUTER, message=message, idem="k")
    await street.await_answer(one)
    two = await street.send("go", agent=ROUTER, message=message, idem="k")
    assert (two.task_id, two.repeated) == (one.task_id, True)
    refused: JsonObject = {**street.message("go"), "metadata": {PROFILE: {"tags": ["none"]}}}
    one = await street.send("go", agent=ROUTER, message=refused, idem="l")
    two = await street.send("go", agent=ROUTER, message=refused, idem="l")
    assert two.task_id == one.task_id
    assert state_of(await finish(street, two)) == "REJECTED"
    await wait_until(lambda: count_messages(street) == [1, 0], 5, "one message was sent")


async def count(harness: Harness, agent: str, context: str | None) -> tuple[int, int]:
    """Store loads and appends of one message and its response, after two equal ones."""
    loads = stored = 0
    for _ in range(3):
        loads, stored = harness.log.loads, len(harness.log.stored)
        accepted = await harness.send("go", agent=agent, context_id=context)
        await harness.await_answer(accepted)
        driver = harness.parts.dispatch.find(accepted.task_id)
        assert driver is None or driver.run.has_ended()
    return harness.log.loads - loads, len(harness.log.stored) - stored


@pytest.mark.parametrize("known", [False, True])
async def test_routed_message_makes_the_store_calls_of_a_direct_one(
    street: Harness, *, known: bool
) -> None:
    contexts: dict[str, str | None] = {"echo": None, ROUTER: None}
    if known:
        for agent in contexts:
            contexts[agent] = (await street.send("go", agent=agent)).context_id
    named = await count(street, "echo", contexts["echo"])
    assert named == (1 if known else 0, 2)
    assert await count(street, ROUTER, contexts[ROUTER]) == named


async def test_routed_turn_is_rendered_from_a_template_equal_to_the_decided_append(
    street: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, open_turn = list[tuple[TurnRequest, OpenedTurn | None]](), TemplatedTurns.open

    async def see_open(turns: TemplatedTurns, request: TurnRequest) -> OpenedTurn | None:
        opened = await open_turn(turns, request)
        seen.append((request, opened))
        return opened

    monkeypatch.setattr(TemplatedTurns, "open", see_open)
    first = await ask(street)
    await finish(street, first)
    await finish(street, await ask(street, context=first.context_id))
    await finish(street, await ask(street, who=replace(ADA, id="bob")))
    assert len({id(request.plan.route) for request, _ in seen}) == 2, (
        "one free choice, and one by context"
    )
    turns = street.parts.service.messages.turns
    for request, opened in seen:
        assert opened is not None
        assert opened.templated is not None, "it is rendered"
        under = (opened.templated.template.driver, 0)
        template = make_template(turns, request, under)
        assert template is not None
        decided = render_sample(turns, request, under)
        assert b"routing.decided" in b"".join(
            one if isinstance(one, bytes) else str(one).encode()
            for one in decided.example.arguments
        )
        assert template.wire.render(decided.example.values) == pack(*decided.example.arguments)
