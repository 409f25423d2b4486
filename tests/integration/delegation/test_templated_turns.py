"""Templated turns: a rendered append equals, byte for byte, the decided one; turns without a template are decided."""

from __future__ import annotations

import random  # noqa: TID251  seeded, so that a failure comes again
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field, replace

import orjson
import pytest

from passerelle.a2a_mapping.members import object_at
from passerelle.core.batch import (
    AppendResult,
    Batch,
    EntityKind,
    EntityRef,
    Incarnation,
    PackedBatch,
    Stamp,
)
from passerelle.core.commands import SubmitTurn, TurnAccepted
from passerelle.core.decision import Held
from passerelle.core.errors import IdempotencyConflict
from passerelle.core.facts import CompactedTurns, NamedArtifact, Ref
from passerelle.core.ids import ORDINALS
from passerelle.core.peer import PeerCard
from passerelle.core.ports.chance import Ids
from passerelle.core.ports.projections import IndexRow
from passerelle.core.principal import Principal
from passerelle.core.session.boundaries import RolledBack
from passerelle.core.session.thread import KEPT_NAMES, ThreadRecord, ThreadStatus
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.trace import Trace
from passerelle.delegation.runs import answer_templates, templates, turn_templates
from passerelle.delegation.runs.answer_templates import render_sample_answer, sample_result
from passerelle.delegation.runs.plan import Delegation
from passerelle.delegation.runs.run import Run
from passerelle.delegation.runs.templates import (
    AnswerShape,
    AnswerTemplate,
    SampleTurn,
    TemplatedTurn,
    TurnTemplate,
)
from passerelle.delegation.runs.turn_request import OpenedTurn, TurnRequest
from passerelle.delegation.runs.turn_samples import render_sample
from passerelle.delegation.runs.turn_templates import (
    TemplatedTurns,
    is_templated,
    make_template,
)
from passerelle.delegation.runs.turns import Turns
from passerelle.delegation.verification.walk import verify_store
from passerelle.peers.agent import AgentPeer
from passerelle.runtime.limits.costs import Price
from passerelle.runtime.records.places import draw_shard, list_places, place_context
from passerelle.runtime.records.writes import Writes
from passerelle.store.connection import pack, unpack
from tests.support import drawn
from tests.support.faults import FaultyLog
from tests.support.harness import ADA, BOB, Harness

pytestmark = pytest.mark.anyio

TEXTS = (*drawn.TEXTS, "{3f}")
"""Texts that could break a template, and the tag of an existing shard."""
MESSAGES = 60
USAGE: JsonObject = {"promptTokenCount": 7, "candidatesTokenCount": 3}


def make_message(chance: random.Random) -> JsonObject:
    """A caller's message with random texts and members."""
    parts: list[Json] = [{"text": chance.choice(TEXTS)} for _ in range(chance.randint(1, 3))]
    if chance.random() < 0.3:
        parts.append({"data": {"n": chance.randint(0, 9), chance.choice(TEXTS): None}})
    return {
        "messageId": chance.choice(TEXTS) or "m",
        "role": "ROLE_USER",
        "parts": parts,
        "metadata": {"k": chance.choice(TEXTS)},
    }


def make_history(chance: random.Random, given: JsonObject, ids: JsonObject) -> list[Json]:
    """A random history of an agent: the given message or not, and its own messages around it."""
    own: JsonObject = {"messageId": "own", "role": "ROLE_AGENT"}
    own["parts"] = [{"text": chance.choice(TEXTS)}]
    kept: list[list[JsonObject]] = [[given], [{**given, "messageId": "other"}], []]
    around: list[list[JsonObject]] = [[], [own]]
    messages = [*chance.choice(around), *chance.choice(kept), *chance.choice(around)]
    return [{**message, **ids} for message in messages]


def make_part(chance: random.Random, text: str) -> JsonObject:
    """An artifact part of a random form that can be templated."""
    part: JsonObject = {"text": text} if chance.random() < 0.8 else {"data": {"of": text}}
    if chance.random() < 0.7:
        part["mediaType"] = chance.choice(("", "text/x"))
    return part


def make_answer(chance: random.Random, given: JsonObject, context: str) -> JsonObject:
    """A random response that ends a turn: texts, some with the agent's ids, and artifacts of any form."""
    native = f"native-{chance.random()}"
    texts = (*TEXTS, f"of {native}", f"in {context}")
    message: JsonObject = {"role": "ROLE_AGENT", "parts": [{"text": chance.choice(texts)}]}
    if chance.random() < 0.5:
        message["messageId"] = chance.choice(TEXTS) or "a"
    if chance.random() < 0.2:
        return {"message": {**message, "messageId": "a", "contextId": context}}
    artifacts: list[Json] = [
        {
            "artifactId": f"{number}{chance.choice(texts)}",
            "name": chance.choice(texts),
            "parts": [make_part(chance, chance.choice(texts)) for _ in range(chance.randint(0, 2))],
        }
        for number in range(chance.randint(0, 3))
    ]
    status: JsonObject = {"state": "TASK_STATE_COMPLETED", "message": message}
    task: JsonObject = {"id": native, "status": status, "artifacts": artifacts}
    if chance.random() < 0.7:
        ids: JsonObject = {"taskId": native, "contextId": context}
        task["history"] = make_history(chance, given, chance.choice(({}, ids)))
    return {"task": task | ({"contextId": context} if chance.random() < 0.5 else {})}


@dataclass(slots=True)
class Recorded:
    """The template of the simplest turn, and its inputs."""

    runs: list[Run] = field(default_factory=list[Run])
    turns: list[TemplatedTurn] = field(default_factory=list[TemplatedTurn])
    templates: list[TurnTemplate] = field(default_factory=list[TurnTemplate])
    plans: list[Delegation] = field(default_factory=list[Delegation])


async def record_simplest_turn(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Has the harness process the simplest turn."""
    monkeypatch.setattr(templates, "FEW_ANSWERS", 1_000)
    recorded, take, open_turn = Recorded(), answer_templates.render_answer, TemplatedTurns.open

    def see_take(
        run: Run, turn: TemplatedTurn, result: JsonObject, sent_ms: int
    ) -> Awaitable[bool]:
        recorded.turns.append(turn)
        recorded.templates.append(turn.template)
        recorded.runs.append(run)
        rendering = take(run, turn, result, sent_ms)
        assert rendering is not None, "the simplest response is templated"
        return rendering

    async def see_open(turns: TemplatedTurns, request: TurnRequest) -> OpenedTurn | None:
        recorded.plans.append(request.plan)
        return await open_turn(turns, request)

    monkeypatch.setattr("passerelle.delegation.runs.delivery.render_answer", see_take)
    monkeypatch.setattr(TemplatedTurns, "open", see_open)
    await harness.talk("echo hi")
    assert recorded.runs[0].rendered is not None, "the simplest turn is rendered"
    return recorded


async def test_equal_card_keeps_the_template(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = await record_simplest_turn(harness, monkeypatch)
    card = harness.registry.find("echo").fresh
    assert card is not None

    def read_equal_card(_peer: AgentPeer) -> PeerCard:
        return replace(card, card={**card.card})

    def read_changed_card(_peer: AgentPeer) -> PeerCard:
        return replace(card, sha256="another")

    monkeypatch.setattr(AgentPeer, "fresh", property(read_equal_card))
    for _ in range(3):
        await harness.talk("echo hi")
    assert [template is recorded.templates[0] for template in recorded.templates] == [True] * 4
    monkeypatch.setattr(AgentPeer, "fresh", property(read_changed_card))
    await harness.talk("echo hi")
    assert recorded.templates[-1] is not recorded.templates[0]


async def test_task_whose_id_equals_its_context_is_not_templated(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = await record_simplest_turn(harness, monkeypatch)
    (run,), (turn,) = recorded.runs, recorded.turns
    remote = turn.remote_context_id

    def answer(native: str) -> JsonObject:
        status: JsonObject = {"state": "TASK_STATE_COMPLETED"}
        artifact: JsonObject = {"artifactId": f"a-{context}", "parts": [{"text": "hi"}]}
        return {
            "task": {"id": native, "contextId": remote, "status": status, "artifacts": [artifact]}
        }

    context = replace(run.context, content=None)
    assert answer_templates.read_templated(context, turn, answer("t-1")) is not None
    assert answer_templates.read_templated(context, turn, answer(remote)) is None


async def test_all_callers_of_an_agent_share_a_template(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = await record_simplest_turn(harness, monkeypatch)
    for name in ("bob", 'quote"d', "ada" * 40):
        who = replace(ADA, id=name)
        command = SubmitTurn("echo", harness.message("echo hi"), "a2a", "unary")
        accepted = await harness.service.execute(who, command, None)
        assert isinstance(accepted, TurnAccepted)
        assert "task" in await harness.await_answer(accepted, who=who)
        listed = await harness.store.projections.read_index(who.key, "echo", None, 10)
        assert [facade for facade, _ in listed] == [accepted.facade]
        record = await harness.record(accepted)
        assert (record.owner, record.requested_by) == (who.key, name)
    assert [template is recorded.templates[0] for template in recorded.templates] == [True] * 4


@pytest.mark.parametrize("wanted", [3, 30])
async def test_more_tenants_than_the_limit_do_not_make_a_template_per_message(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, wanted: int
) -> None:
    made: list[str] = []

    def see_make(
        turns: Turns, request: TurnRequest, under: tuple[Incarnation, int], *, knows: bool
    ) -> TurnTemplate | None:
        made.append(request.principal.tenant)
        return make_template(turns, request, under, knows=knows)

    monkeypatch.setattr(turn_templates, "make_template", see_make)
    monkeypatch.setattr(turn_templates, "SHAPES", 8)
    monkeypatch.setattr(turn_templates, "FEW", 4)
    messages = harness.service.messages
    service = replace(
        harness.service, messages=replace(messages, templated_turns=TemplatedTurns(messages.turns))
    )
    for _ in range(3):
        for number in range(wanted):
            who = replace(ADA, tenant=f"house-{number}")
            command = SubmitTurn("echo", harness.message("echo hi"), "a2a", "unary")
            accepted = await service.execute(who, command, None)
            assert isinstance(accepted, TurnAccepted)
            assert "task" in await harness.await_answer(accepted, who=who)
    assert len(made) == min(wanted, 4)


@pytest.mark.requirement("CMD-30", "I2")
async def test_templated_turn_with_an_idempotency_key_is_accepted_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = await record_simplest_turn(harness, monkeypatch)
    command = SubmitTurn("echo", harness.message("echo hi"), "a2a", "unary")
    first = await harness.service.execute(ADA, command, "k-1")
    assert isinstance(first, TurnAccepted)
    answer = await harness.await_answer(first)
    again = await harness.service.execute(ADA, command, "k-1")
    assert isinstance(again, TurnAccepted)
    assert again == replace(first, repeated=True)
    assert await harness.await_answer(again) == answer
    other = await harness.service.execute(ADA, command, "k-2")
    assert isinstance(other, TurnAccepted)
    assert other.task_id != first.task_id
    await harness.await_answer(other)
    assert harness.peer.texts == ["echo hi"] * 3, "the recorded, the first and the other"
    changed = replace(command, message=harness.message("echo ho"))
    with pytest.raises(IdempotencyConflict):
        await harness.service.execute(ADA, changed, "k-1")
    assert isinstance(await harness.service.execute(BOB, changed, "k-1"), TurnAccepted)
    assert len(set(map(id, recorded.templates))) == 2, (
        "one without a key, one for all keys and callers"
    )


def make_trace(chance: random.Random, state: str | None) -> Trace:
    """A random span in a trace of a caller."""
    return Trace(f"{chance.getrandbits(128):032x}", f"{chance.getrandbits(64):016x}", "01", state)


@pytest.mark.requirement("I4", "ENV-8")
@pytest.mark.parametrize("state", [None, 'vendor="%b"'])
@pytest.mark.parametrize("idem", [None, "a key"])
async def test_rendered_turns_and_responses_with_a_trace_equal_decided_ones(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, state: str | None, idem: str | None
) -> None:
    recorded = await record_simplest_turn(harness, monkeypatch)
    (run,), (plan,) = recorded.runs, recorded.plans
    chance, turns = random.Random(8), harness.parts.service.messages.turns  # noqa: S311  a repeatable seed
    under = (recorded.templates[0].samples[0].driver, 0)
    trace = make_trace(chance, state)
    command = SubmitTurn("echo", make_message(chance), "a2a", "unary")
    command = replace(command, traceparent=trace.parent, tracestate=state)
    plan = replace(plan, policy=replace(plan.policy, idle_timeout_ms=90_000))
    traced = replace(plan, trace=trace)
    assert is_templated(command, traced)
    template = make_template(turns, TurnRequest(ADA, command, traced, idem), under)
    assert template is not None
    shapes_rendered: set[AnswerShape] = set()
    for _ in range(10):
        again = replace(plan, trace=make_trace(chance, state))
        key = None if idem is None else f"{idem}{chance.random()}"
        who = replace(ADA, id=chance.choice(TEXTS[1:]))
        decided = render_sample(turns, TurnRequest(who, command, again, key), under)
        assert template.wire.render(decided.example.values) == pack(*decided.example.arguments)
        answer = make_answer(chance, decided.message, decided.remote_context_id)
        shapes_rendered |= compare_answer(run, template, decided, answer)
    assert shapes_rendered, "responses were rendered"


@pytest.mark.requirement("I4", "EXT-7")
async def test_rendered_turns_and_responses_with_a_price_equal_decided_ones(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = await record_simplest_turn(harness, monkeypatch)
    (run,), (plan,) = recorded.runs, recorded.plans
    chance, turns = random.Random(5), harness.parts.service.messages.turns  # noqa: S311  a repeatable seed
    under = (recorded.templates[0].samples[0].driver, 0)
    price = Price("EUR", "per_call", 20_000)
    priced = replace(plan, facts=(price.make_estimate("echo"),))
    command = SubmitTurn("echo", make_message(chance), "a2a", "unary")
    assert is_templated(command, priced)
    template = make_template(turns, TurnRequest(ADA, command, priced), under)
    assert template is not None
    run.context.price = price
    shapes_rendered: set[AnswerShape] = set()
    for _ in range(10):
        submitted = replace(command, message=make_message(chance))
        decided = render_sample(turns, TurnRequest(ADA, submitted, priced), under)
        arguments = pack(*decided.example.arguments)
        assert template.wire.render(decided.example.values) == arguments
        assert b'"amountMicros":20000' in arguments
        answer = make_answer(chance, decided.message, decided.remote_context_id)
        shapes_rendered |= compare_answer(run, template, decided, answer)
    assert shapes_rendered, "responses were rendered"
    # A cost that is known only from the response is computed from it, without a template.
    turn, shape = template.samples[0], AnswerShape(is_task=True)
    answer = sample_result(shape, run.writes.ids, turn.remote_context_id)
    metered: JsonObject = {**object_at(answer, "task"), "metadata": {"adk_usage_metadata": USAGE}}
    with_usage: JsonObject = {"task": metered}
    context = replace(run.context, content=None, answer=None)
    by_time = replace(context, price=Price("EUR", "per_second", 20_000))
    plain = turn.render(template)
    assert answer_templates.read_templated(context, plain, answer) is not None
    assert answer_templates.read_templated(context, plain, with_usage) is None
    assert answer_templates.read_templated(by_time, plain, answer) is None


@pytest.mark.parametrize("is_gated", [False, True])
async def test_rendered_turns_with_conditions_or_a_gate_equal_decided_ones(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, *, is_gated: bool
) -> None:
    recorded = await record_simplest_turn(harness, monkeypatch)
    (plan,) = recorded.plans
    chance, turns = random.Random(6), harness.parts.service.messages.turns  # noqa: S311  a repeatable seed
    under = (recorded.templates[0].samples[0].driver, 0)
    wanted: tuple[JsonObject, ...] = ({"artifact": {"name": "result"}},)
    judged = replace(plan, gated=True) if is_gated else replace(plan, acceptance=wanted)
    command = SubmitTurn("echo", make_message(chance), "a2a", "unary")
    assert is_templated(command, judged)
    template = make_template(turns, TurnRequest(ADA, command, judged), under)
    assert template is not None
    shapes_rendered: set[AnswerShape] = set()
    for _ in range(10):
        submitted = replace(command, message=make_message(chance))
        decided = render_sample(turns, TurnRequest(ADA, submitted, judged), under)
        arguments = pack(*decided.example.arguments)
        assert template.wire.render(decided.example.values) == arguments
        assert (b'"gated":true' if is_gated else b'"acceptance":[') in arguments
        if is_gated:
            answer = make_answer(chance, decided.message, decided.remote_context_id)
            shapes_rendered |= compare_answer(recorded.runs[0], template, decided, answer)
    assert bool(shapes_rendered) == is_gated


@pytest.mark.requirement("TR-13")
@pytest.mark.parametrize("is_met", [True, False])
async def test_condition_of_a_templated_turn_is_checked_with_its_response(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, *, is_met: bool
) -> None:
    await record_simplest_turn(harness, monkeypatch)
    harness.acceptance = ({"artifact": {"name": "result" if is_met else "another"}},)
    rendered_turns, open_templated = list[bool](), TemplatedTurns.open

    async def see_open(turns: TemplatedTurns, request: TurnRequest) -> OpenedTurn | None:
        opened = await open_templated(turns, request)
        rendered_turns.append(opened is not None)
        return opened

    monkeypatch.setattr(TemplatedTurns, "open", see_open)
    for _ in range(3):
        accepted = await harness.send("echo hi")
        record = await harness.until(accepted, Status.COMPLETED if is_met else Status.FAILED)
        assert record.coverage is not None
        assert record.coverage.state == ("met" if is_met else "unmet")
    assert rendered_turns == [True] * 3
    assert (await verify_store(harness.store)).ok


async def test_turn_with_more_ids_than_ordinals_is_decided(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("passerelle.core.mint_log.ORDINALS", ORDINALS[:8])
    rendered_turns = list[bool]()
    open_turn = TemplatedTurns.open

    async def see_open(turns: TemplatedTurns, request: TurnRequest) -> OpenedTurn | None:
        opened = await open_turn(turns, request)
        rendered_turns.append(opened is not None)
        return opened

    monkeypatch.setattr(TemplatedTurns, "open", see_open)
    await harness.until(await harness.send("echo hi"), Status.COMPLETED)
    assert rendered_turns == [False]


async def test_templated_turn_is_stored_at_the_place_of_its_context(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = await record_simplest_turn(harness, monkeypatch)
    (turn,) = recorded.turns
    assert list_places(ADA, turn.place.context_id)[0] == turn.place
    held = await harness.parts.writes.load([turn.place.thread])
    assert isinstance(held[turn.place.thread].record, ThreadRecord)


async def test_known_ids_of_a_templated_turn_equal_the_stored_ones(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended, append = list[PackedBatch](), FaultyLog.append

    async def see_append(log: FaultyLog, batch: Batch | PackedBatch) -> AppendResult:
        assert isinstance(batch, PackedBatch)
        appended.append(batch)
        return await append(log, batch)

    monkeypatch.setattr(FaultyLog, "append", see_append)
    recorded = await record_simplest_turn(harness, monkeypatch)
    (turn,) = recorded.turns
    record = (await harness.parts.writes.load_one(turn.task)).record
    assert isinstance(record, TaskRecord)
    known = (turn.turn_id, turn.remote_context_id)
    assert (record.turn_id, record.attempts[0].remote_context_id) == known
    assert len(appended) == 2, "the turn and its response"
    for packed in appended:
        (written,) = (one for one in unpack(packed.call) if one.startswith(b'{"session"'))
        written_ids = orjson.loads(written)
        assert (written_ids["session"], written_ids["events"][0]) == (
            packed.session,
            packed.first_event,
        )


@pytest.mark.requirement("LT-7")
@pytest.mark.parametrize("is_written", [True, False])
async def test_templated_task_is_listed_before_its_caller_gets_the_response(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    await record_simplest_turn(harness, monkeypatch)
    projections, posted = harness.store.projections, list[str]()
    post = projections.post_index

    async def post_or_not(row: IndexRow, within_s: float) -> bool:
        posted.append(row.facade)
        return is_written and await post(row, within_s)

    monkeypatch.setattr(projections, "post_index", post_or_not)
    task = (await harness.talk("echo again"))[0].task_id
    assert posted == [task]
    listed = await projections.read_index(ADA.key, "echo", None, 10)
    assert task in {facade for facade, _ in listed}


@pytest.mark.requirement("I4")
async def test_rendered_turns_and_responses_equal_decided_ones(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = await record_simplest_turn(harness, monkeypatch)
    (template,), (run,), (plan,) = recorded.templates, recorded.runs, recorded.plans
    chance = random.Random(23)  # noqa: S311  a repeatable seed
    turns, driver = harness.parts.service.messages.turns, template.samples[0].driver
    shapes_rendered: set[AnswerShape] = set()
    for _ in range(MESSAGES):
        command = SubmitTurn("echo", make_message(chance), "a2a", "unary")
        who = replace(ADA, id=f"{chance.choice(TEXTS)}a")
        decided = render_sample(turns, TurnRequest(who, command, plan), (driver, 0))
        assert template.wire.render(decided.example.values) == pack(*decided.example.arguments)
        answer = make_answer(chance, decided.message, decided.remote_context_id)
        shapes_rendered |= compare_answer(run, template, decided, answer)
    assert len(shapes_rendered) > 5, "responses of many shapes were rendered"


def make_thread(chance: random.Random, who: Principal, ids: Ids) -> Held:
    """A random thread as conversations leave it: texts, names, agents and artifacts."""
    shard = draw_shard(ids)
    place = place_context(who, chance.choice(TEXTS) or "c", shard)
    remotes = {name: chance.choice(TEXTS) or "r" for name in ("other", "echo", 'quote"d')}
    named = {
        text: NamedArtifact(ids.mint("art", shard), ids.mint("task", shard), chance.randint(1, 999))
        for text in chance.sample(TEXTS, chance.randint(0, 8))
        if text
    }
    full = {f"n{number}": NamedArtifact("a", "t", 1) for number in range(KEPT_NAMES)}
    record = ThreadRecord(
        schema=1,
        thread_id=place.thread.id,
        session_id=place.session.id,
        context_id=place.context_id,
        owner=who.key,
        tenant=who.tenant,
        principal=who.id,
        status=ThreadStatus.IDLE,
        created_at="2026-01-01T00:00:00.000Z",
        updated_at="2026-01-01T00:00:00.000Z",
        last=chance.randint(1, 10**6),
        turns=chance.randint(1, 1_000),
        last_outcome=chance.choice((None, "completed", "failed")),
        remotes={name: remotes[name] for name in chance.sample(sorted(remotes), 2)},
        artifacts=named | (full if chance.random() < 0.3 else {}),
        rolled_back=(None, RolledBack("bd_1", "turn_1", 7, 9))[len(named) % 2],
        compactions=(None, (CompactedTurns("bd_0", "turn_0", 5, Ref(), "ada"),))[
            len(named) // 2 % 2
        ],
    )
    return Held(Stamp(chance.randint(1, 10**4), ids.mint("op", shard)), record, {})


@pytest.mark.requirement("I4", "LT-17")
@pytest.mark.parametrize("seed", [31, 47, 53])
async def test_rendered_further_turns_equal_decided_ones_for_any_thread_record(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    recorded = await record_simplest_turn(harness, monkeypatch)
    (first,), (run,), (plan,) = recorded.templates, recorded.runs, recorded.plans
    chance = random.Random(seed)  # noqa: S311  a repeatable seed
    turns, under = harness.parts.service.messages.turns, (first.samples[0].driver, 0)
    command = SubmitTurn("echo", harness.message("hi"), "a2a", "unary", context_id="c")
    template = make_template(turns, TurnRequest(ADA, command, plan), under, knows=True)
    assert template is not None
    shapes_rendered, versions = set[AnswerShape](), set[int]()
    for _ in range(MESSAGES):
        who = replace(ADA, id=f"{chance.choice(TEXTS)}a")
        held = make_thread(chance, who, turns.writes.ids)
        submitted = replace(command, message=make_message(chance))
        decided = render_sample(turns, TurnRequest(who, submitted, plan), under, held)
        assert template.wire.render(decided.example.values) == pack(*decided.example.arguments)
        answer = make_answer(chance, decided.message, decided.remote_context_id)
        shapes = compare_answer(run, template, decided, answer)
        shapes_rendered |= shapes
        versions |= {is_named for shape in shapes for _, _, _, is_named in shape.artifacts}
    assert len(shapes_rendered) > 5, "responses of many shapes were rendered"
    assert versions == {False, True}, "with and without names of their contexts"


@pytest.mark.requirement("LT-17")
@pytest.mark.parametrize("context", [None, 'a "name" of the caller\'s'])
async def test_further_messages_of_a_context_are_templated_and_continue_artifact_versions(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, context: str | None
) -> None:
    monkeypatch.setattr(templates, "FEW_ANSWERS", 1_000)
    appended, append = list[PackedBatch](), FaultyLog.append

    async def see_append(log: FaultyLog, batch: Batch | PackedBatch) -> AppendResult:
        if isinstance(batch, PackedBatch):
            appended.append(batch)
        return await append(log, batch)

    monkeypatch.setattr(FaultyLog, "append", see_append)
    first = await harness.send("echo hi", context_id=context)
    assert "task" in await harness.await_answer(first)
    for number in range(1, 5):
        accepted = await harness.send(f"echo {number}", context_id=first.context_id)
        answer = await harness.await_answer(accepted)
        assert object_at(answer, "task")["contextId"] == first.context_id
        assert len(appended) == 2 * (number + 1)
    place = list_places(ADA, first.context_id)[0]
    thread = (await harness.parts.writes.load_one(place.thread)).record
    assert isinstance(thread, ThreadRecord)
    assert (thread.turns, thread.active_turns) == (5, ())
    assert len(set(thread.remotes.values())) == 1
    assert {name: one.version for name, one in thread.artifacts.items()} == {"result": 5}
    assert (await verify_store(harness.store)).ok


@pytest.mark.requirement("LT-14")
async def test_message_into_a_busy_context_is_decided(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record_simplest_turn(harness, monkeypatch)
    harness.peer.hold()
    first = await harness.send("echo hi")
    rendered_turns, open_templated = list[bool](), TemplatedTurns.open

    async def see_open(turns: TemplatedTurns, request: TurnRequest) -> OpenedTurn | None:
        opened = await open_templated(turns, request)
        rendered_turns.append(opened is not None)
        return opened

    monkeypatch.setattr(TemplatedTurns, "open", see_open)
    second = await harness.send("echo hi", context_id=first.context_id)
    assert rendered_turns == [False]
    harness.peer.release_all()
    for accepted in (first, second):
        assert "task" in await harness.await_answer(accepted)


@pytest.mark.requirement("I3", "LT-14")
async def test_context_changed_since_it_was_read_is_read_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = await record_simplest_turn(harness, monkeypatch)
    context = recorded.turns[0].place.context_id
    load, between = Writes.load, ["echo between"]

    async def load_and_change(writes: Writes, refs: Iterable[EntityRef]) -> dict[EntityRef, Held]:
        wanted = list(refs)
        held = await load(writes, wanted)
        if between and [ref.kind for ref in wanted] == [EntityKind.THREAD]:
            await harness.await_answer(await harness.send(between.pop(), context_id=context))
        return held

    monkeypatch.setattr(Writes, "load", load_and_change)
    answer = await harness.await_answer(await harness.send("echo last", context_id=context))
    assert "task" in answer
    assert harness.peer.texts == ["echo hi", "echo between", "echo last"]
    place = list_places(ADA, context)[0]
    thread = (await harness.parts.writes.load_one(place.thread)).record
    assert isinstance(thread, ThreadRecord)
    assert (thread.turns, thread.artifacts["result"].version) == (3, 3)
    assert (await verify_store(harness.store)).ok


@pytest.mark.requirement("I4")
async def test_setting_with_the_digits_of_a_length_is_rendered_unchanged(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = await record_simplest_turn(harness, monkeypatch)
    (template,), (run,), (plan,) = recorded.templates, recorded.runs, recorded.plans
    turns, (sample, _) = harness.parts.service.messages.turns, template.samples
    values, shape = sample.example.values, AnswerShape(is_task=True)
    without_text = sample_result(shape, run.writes.ids, sample.remote_context_id)
    run.context.content = None
    rendered = render_sample_answer(run, sample.render(template), sample, without_text, 0)
    assert rendered is not None
    length = len(rendered.example.values[len(values)])
    policy, under = replace(plan.policy, backoff_ms=length * 10 + 9), (sample.driver, 0)
    slower = replace(plan, policy=policy)
    command = SubmitTurn("echo", make_message(random.Random(1)), "a2a", "unary")  # noqa: S311  always the same
    slower_template = make_template(turns, TurnRequest(ADA, command, slower), under)
    assert slower_template is not None
    turn = render_sample(turns, TurnRequest(ADA, command, slower), under)
    without_text = sample_result(shape, run.writes.ids, turn.remote_context_id)
    assert compare_answer(run, slower_template, turn, without_text) == {shape}


def compare_answer(
    run: Run, template: TurnTemplate, turn: SampleTurn, answer: JsonObject
) -> set[AnswerShape]:
    """The shape of a response whose rendered and decided appends are equal; empty if it cannot be templated."""
    plain = turn.render(template)
    run.context.content, run.context.answer = None, None
    decided = render_sample_answer(run, plain, turn, answer, 0)
    if decided is None:
        return set()
    made = answer_templates.find_template(run, plain, decided.shape, 0)
    assert isinstance(made, AnswerTemplate)
    assert made.wire.render(decided.example.values) == pack(*decided.example.arguments)
    return {decided.shape}
