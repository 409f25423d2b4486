"""Turns that differ in ids, times and words alone: their first append is rendered from a template.

A turn is templated when it opens a new context, or goes on with one that rests, and nothing is asked for beside the
message, but that it is taken once under its key. Two such turns at one agent store the same but for ids, times, words,
names of callers and what their threads know. What a thread becomes is folded, and filled in whole. So two samples
of a shape are rendered by the code that decides every other turn, and a wire template is made of what they would
store; from then on the ids, times, words and names of a turn are filled in. Where there is no template, or a turn is
not templated, it is decided like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, assert_never

import orjson

from passerelle.core.batch import (
    Again,
    Appended,
    Conflict,
    Early,
    EntityKind,
    EntityRef,
    Fenced,
    Late,
    PackedBatch,
    StaleEpoch,
    Stamp,
    Unclaimed,
)
from passerelle.core.commands import SubmitTurn
from passerelle.core.decision import Held
from passerelle.core.errors import StoreUnavailable, UnsupportedOperation
from passerelle.core.ids import CONTEXT_BITS, compose_context, shard_of
from passerelle.core.mint_log import RecordedIds, mint_together
from passerelle.core.session.thread import SCHEMA, ThreadRecord, ThreadStatus, begin_turn, has_tools
from passerelle.core.wire.generated import make_picker
from passerelle.core.wire.record import change
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs.plan import Delegation
from passerelle.delegation.runs.templates import (
    KnownThread,
    Ordinals,
    SampleTurn,
    TemplatedTurn,
    TurnTemplate,
    split_thread,
)
from passerelle.delegation.runs.turns import OpenedTurn, TurnAttempt, TurnRequest, read_task
from passerelle.runtime.common.clock import StoppedClock
from passerelle.runtime.records.blob_overflow import CAP
from passerelle.runtime.records.message_summary import describe, digest_request
from passerelle.runtime.records.places import (
    Place,
    choose_shard,
    draw_shard,
    hash_key,
    list_places,
    place_context,
)
from passerelle.runtime.records.shape_memory import ShapeMemory
from passerelle.runtime.records.writes import Unread, compose
from passerelle.store.connection import unpack
from passerelle.store.wire_template import Example, make_wire_template, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.core.batch import Incarnation
    from passerelle.core.ids import Shard
    from passerelle.core.ports.chance import Ids
    from passerelle.core.wire.json import JsonObject
    from passerelle.core.wire.trace import Trace
    from passerelle.delegation.runs.turns import Turns

SHAPES: Final = 512
"""Shapes that are remembered: each agent has its own, with and without a key."""
FEW: Final = 16
"""Shapes that are learnt when they come first."""
TRIES: Final = 4
"""Of cutting: a number of one example may stand somewhere else in it by chance."""
_LONG: Final = 3000
"""Characters of a sample message, at least: more than is read off it anywhere; each reading is a text of its own."""
_MORE_BITS: Final = 9
"""Of a length, so that two examples differ in their sizes, too."""
_SHORT: Final = 24
_FROM_MS: Final = 1_000_000_000_000
_FROM_BITS: Final = 38
FREE: Final = frozenset({0, 1, 2, *range(11, 21)})
"""Where the message, the thread, the words, the name of the caller and the contexts stand among the values, which have
any length.
"""
_TOUCHED: Final = (EntityKind.SESSION, EntityKind.THREAD, EntityKind.TASK)
"""What a turn may open; no question, and no change of devices, grants or rules."""


@dataclass(slots=True)
class TemplatedTurns:
    """Opens templated turns, and keeps their templates."""

    turns: Turns
    _templates: ShapeMemory[TurnTemplate | None] = field(
        default_factory=lambda: ShapeMemory(SHAPES, FEW)
    )

    async def open(self, request: TurnRequest) -> OpenedTurn | None:
        """The stored turn; None where nothing is stored and the turn has to be decided.

        Raises:
            StoreUnavailable: nothing is known to be written, and no peer was called.
        """
        rendered = await self._render(request)
        if rendered is None:
            return None
        turn, packed = rendered
        place, task, turn_id = turn.place, turn.task, turn.turn_id
        driver, writes = turn.template.driver, self.turns.writes
        held = (task, place.thread)
        try:
            result = await writes.append(packed, feed=turn.template.feed)
        except StoreUnavailable as error:
            if error.wrote == "unknown":
                self.turns.doubt(task)
            raise
        match result:
            case Appended(first=first):
                unread = Unread(writes.log, packed, first, held)
                templated = change(turn, first=first)
                return OpenedTurn(place, task, turn_id, unread, driver, templated=templated)
            case Again(result=bytes(stored)) if read_task(stored) != task.id:
                return await self.turns.repeat(stored, request.plan)
            case Again():
                return OpenedTurn(place, task, turn_id, await writes.load(held), driver)
            case Conflict() | StaleEpoch() | Early():
                return None
            case Fenced():
                raise StoreUnavailable("the lease of this instance is lost", "no")
            case Late() | Unclaimed():
                raise UnsupportedOperation("the turn could not be stored; try again")
            case _:
                assert_never(result)

    async def _render(self, request: TurnRequest) -> tuple[TemplatedTurn, PackedBatch] | None:
        """A turn, and what is stored of it; None where it has to be decided."""
        principal, command, plan = request.principal, request.command, request.plan
        if not is_templated(command, plan):
            return None
        writes, places, held = self.turns.writes, list[Place](), None
        if command.context_id is None:
            shard = choose_shard(principal, writes.ids, request.idem)
        else:
            places = list_places(principal, command.context_id)
            shard = places[0].shard
        try:
            driver = plan.drives(shard)
        except StoreUnavailable:
            return None  # whoever decides has the lease extended first
        if places:
            thread = places[0].thread
            known = request.known
            held = (await writes.load([thread]))[thread] if known is None else known
            if not rests(held) or (held.record is None and len(places) > 1):
                return None
        if not knows_tools(held, plan):
            return None
        under = (driver, writes.log.shard_epoch(shard))
        knows = held is not None and held.record is not None
        template = self._find(request, under, knows=knows)
        return None if template is None else self._fill(request, template, shard, held)

    def _fill(
        self, request: TurnRequest, template: TurnTemplate, shard: Shard, held: Held | None
    ) -> tuple[TemplatedTurn, PackedBatch] | None:
        """``held`` is the thread of a context that was named, which may be new."""
        principal, command, writes = request.principal, request.command, self.turns.writes
        message = orjson.dumps(command.message)
        if len(message) > CAP:
            return None
        now_ms, ordinals = writes.read_ms(shard), template.ordinals
        minted = mint_together(writes.ids, shard, now_ms, template.numbers)
        stem = minted[0]
        turn_id = f"turn{stem}{ordinals.turn}"
        fresh = compose_context(now_ms, writes.ids.draw(CONTEXT_BITS))
        agent = request.plan.find_agent(command)
        known = None if held is None else begin_known(held, turn_id, agent, fresh)
        if known is not None:
            place, remote = locate_thread(known.record, shard), known.record.remotes[agent]
        else:
            name = command.context_id or f"ctx{stem}{ordinals.context}"
            place, remote = place_context(principal, name, shard), fresh
        values = list_values(request, place, message, now_ms, remote, known, minted)
        call = template.wire.render(values)
        if call is None:
            return None
        task = EntityRef(EntityKind.TASK, f"task{stem}{ordinals.task}")
        touched = template.pick_touched((place.session, place.thread, task))
        first_event = f"ev{stem}{ordinals.first_event}"
        packed = PackedBatch(place.session.id, shard, touched, first_event, call)
        owner = principal.key
        turn = TemplatedTurn(template, values, place, owner, task, turn_id, remote, known)
        return turn, packed

    def _find(
        self, request: TurnRequest, under: tuple[Incarnation, int], *, knows: bool
    ) -> TurnTemplate | None:
        """The template of a shape: what may differ and is no value of ``list_values``."""
        (driver, epoch), trace, templates = under, request.plan.trace, self._templates
        shape = (
            request.plan.ground,
            request.idem is None,
            request.command.context_id is None,
            knows,
            request.principal.tenant,
            request.command.source,
            driver.instance,
            driver.number,
            epoch,
            None if trace is None else (trace.flags, trace.state is None),
        )
        try:
            return templates.recall(shape)
        except KeyError:
            if not templates.is_worth(shape):
                return None
        template = make_template(self.turns, request, under, knows=knows)
        templates.keep(shape, template)
        return template


def _list_rest(kind: type, *said: str) -> tuple[Callable[[object], object], object]:
    """How the members of a class beside ``said`` are read together, and what they are where nothing is asked for."""
    rest = [one for one in fields(kind) if one.name not in said]
    return attrgetter(*(one.name for one in rest)), tuple(one.default for one in rest)


_read_command, _NO_COMMAND = _list_rest(
    SubmitTurn,
    "agent",
    "message",
    "source",
    "context_id",
    "wait",
    "params",
    "traceparent",
    "tracestate",
)
_read_plan, _NO_PLAN = _list_rest(
    Delegation,
    "card",
    "mechanism",
    "policy",
    "judge",
    "drives",
    "trace",
    "demands",
    "ground",
    "catalog",
    "route",
)


def is_templated(command: SubmitTurn, plan: Delegation) -> bool:
    """Whether nothing is asked for beside the message, also by members that these classes may get one day."""
    return _read_command(command) == _NO_COMMAND and _read_plan(plan) == _NO_PLAN


def rests(held: Held) -> bool:
    """Whether nothing is under way in a context; nothing is in one that is new."""
    thread = held.record
    is_idle = not isinstance(thread, ThreadRecord) or not thread.active_turns
    return is_idle and not held.fields


def knows_tools(held: Held | None, plan: Delegation) -> bool:
    """Whether nothing is to be said of the tools of a turn; a context that is new knows of none."""
    thread = held.record if held is not None else None
    return has_tools(thread if isinstance(thread, ThreadRecord) else None, plan.catalog)


def begin_known(held: Held, turn_id: str, agent: str, fresh: str) -> KnownThread | None:
    """The thread with a turn begun in it, None for a new one; ``fresh`` is for an agent that it does not know."""
    thread = held.record
    if not isinstance(thread, ThreadRecord):
        return None
    remote = thread.remotes.get(agent) or fresh
    return KnownThread(begin_turn(thread, turn_id, agent, remote), held.stamp)


def locate_thread(thread: ThreadRecord, shard: Shard) -> Place:
    """Where a thread stands."""
    ref = EntityRef(EntityKind.THREAD, thread.thread_id)
    return Place(shard, thread.context_id, ref, EntityRef(EntityKind.SESSION, thread.session_id))


def list_values(
    request: TurnRequest,
    place: Place,
    message: bytes,
    now_ms: int,
    remote_context_id: str,
    known: KnownThread | None,
    minted: Sequence[str],
) -> tuple[bytes, ...]:
    """In what turns of a shape differ, as it stands in what is written; what is minted comes last."""
    principal, command, plan, idem = (
        request.principal,
        request.command,
        request.plan,
        request.idem,
    )
    words, trace, idle_ms = describe(command), plan.trace, plan.policy.idle_timeout_ms
    at = format_ms(now_ms)
    before, behind = (b"", b"") if known is None else split_thread(known.record, at)
    texts = (
        place.thread.id,
        place.session.id,
        f"{{{place.shard.tag}}}",
        at,
        f"{now_ms + plan.policy.total_timeout_ms}",
        "" if idle_ms is None else f"{now_ms + idle_ms}",
        trace.trace_id if trace else "",
        trace.span_id if trace else "",
        words.objective,
        words.title,
        words.preview,
        str(command.message["messageId"]),
        (trace.state or "") if trace else "",
        principal.id,
        remote_context_id,
        "" if command.context_id is None else place.context_id,
        "" if known is None else f"{known.stamp.version}",
        "" if known is None else known.stamp.op,
        principal.key,
        "" if idem is None else hash_key(principal, idem),
        "" if idem is None else digest_request(command),
        *minted,
    )
    return (message, before, behind, *quote(texts))


def make_template(
    turns: Turns, request: TurnRequest, under: tuple[Incarnation, int], *, knows: bool = False
) -> TurnTemplate | None:
    """The template of a shape, out of two samples.

    ``under`` which incarnation and shard epoch; ``knows``: whether the context that is named is known.
    """
    ids = turns.writes.ids
    for _ in range(TRIES):
        one, other = (
            make_sample(turns, sample_request(request, ids), under, knows=knows) for _ in range(2)
        )
        wire = make_wire_template(one.example, other.example, FREE)
        if wire is None or one.asked != other.asked or one.spill.blobs:
            continue
        touched = [_TOUCHED.index(ref.kind) for ref in one.decision.touched]
        return TurnTemplate(
            wire=wire,
            numbers=one.asked.numbers,
            ordinals=Ordinals(
                one.asked.find("ctx") if request.command.context_id is None else "",
                *map(one.asked.find, ("task", "turn", "ev")),
            ),
            pick_touched=make_picker(touched),
            feed=one.feed,
            mechanism=request.plan.mechanism,
            driver=one.driver,
            samples=(one, other),
        )
    return None


def make_sample(
    turns: Turns, request: TurnRequest, under: tuple[Incarnation, int], *, knows: bool
) -> SampleTurn:
    """Renders a sample of such a request; ``knows``: in a context that is known."""
    ids = turns.writes.ids
    if not knows or request.command.context_id is None:
        return render_sample(turns, request, under)
    shard = draw_shard(ids)
    place = place_context(request.principal, request.command.context_id, shard)
    return render_sample(turns, request, under, sample_thread(request, place, ids))


def render_sample(
    turns: Turns, request: TurnRequest, under: tuple[Incarnation, int], known: Held | None = None
) -> SampleTurn:
    """Decides a turn by the code that decides every turn, and stores nothing; ``known`` is its thread, if there is one.

    The shard of a thread is the one that its id names.
    """
    chance = turns.writes.ids
    thread = known.record if known else None
    shard = shard_of(thread.thread_id) if isinstance(thread, ThreadRecord) else draw_shard(chance)
    now_ms = sample_ms(chance)
    ids = RecordedIds(chance, shard, now_ms)
    held = dict[EntityRef, Held]()
    if known is not None and isinstance(thread, ThreadRecord):
        place = locate_thread(thread, shard)
        held[place.thread] = known
    else:
        name = request.command.context_id or ids.mint("ctx", shard)
        place = place_context(request.principal, name, shard)
    message = request.command.message
    driver, epoch = under

    def drives(_shard: Shard) -> Incarnation:
        return driver

    request = change(request, plan=change(request.plan, drives=drives))
    writes = replace(turns.writes, ids=ids, clock=StoppedClock(now_ms), shard_ms=None)
    draft = TurnAttempt(replace(turns, writes=writes), request, place, held).draft()
    op = ids.mint("op", shard)
    batch, standing = compose(draft.decision, held, draft.terms, op, epoch)
    call = writes.log.pack(batch).call
    asked, minted = ids.find_in(call)
    agent, fresh = request.plan.find_agent(request.command), next(iter(ids.contexts), "")
    begun = begin_known(known, draft.turn_id, agent, fresh) if known else None
    remote = begun.record.remotes[agent] if begun else fresh
    values = list_values(request, place, orjson.dumps(message), now_ms, remote, begun, minted)
    return SampleTurn(
        place=place,
        owner=request.principal.key,
        driver=driver,
        message=message,
        decision=draft.decision,
        spill=draft.spill,
        task=draft.task,
        turn_id=draft.turn_id,
        op=op,
        asked=asked,
        example=Example(unpack(call), values),
        feed=standing.feed,
        remote_context_id=remote,
        first=sample_ms(chance),
        known=begun,
    )


def sample_request(request: TurnRequest, ids: Ids) -> TurnRequest:
    """A request of the same shape, in which every text stands for itself."""
    return change(
        request,
        principal=change(request.principal, id=sample_text(ids, _SHORT)),
        command=sample_command(request.command, ids),
        plan=change(request.plan, trace=sample_trace(request.plan.trace, ids), catalog=None),
        idem=None if request.idem is None else sample_text(ids, _SHORT),
    )


def sample_thread(request: TurnRequest, place: Place, ids: Ids) -> Held:
    """A thread that rests, in which every text and number stands for itself."""
    who, at = request.principal, format_ms(sample_ms(ids))
    record = ThreadRecord(
        schema=SCHEMA,
        thread_id=place.thread.id,
        session_id=place.session.id,
        context_id=place.context_id,
        owner=who.key,
        tenant=who.tenant,
        principal=who.id,
        status=ThreadStatus.IDLE,
        created_at=at,
        updated_at=at,
        last=sample_ms(ids),
        turns=1,
        remotes={request.plan.find_agent(request.command): sample_text(ids, _SHORT)},
    )
    return Held(Stamp(sample_ms(ids), sample_text(ids, _SHORT)), record, {})


def sample_command(command: SubmitTurn, ids: Ids) -> SubmitTurn:
    """A command of the same shape, in which every text stands for itself."""
    part: JsonObject = {"text": sample_longer(ids, _LONG)}
    message: JsonObject = {
        "messageId": sample_text(ids, _SHORT),
        "role": "ROLE_USER",
        "parts": [part],
    }
    context = None if command.context_id is None else sample_text(ids, _SHORT)
    return replace(command, message=message, context_id=context, params=None)


def sample_trace(trace: Trace | None, ids: Ids) -> Trace | None:
    """A trace of the same shape."""
    if trace is None:
        return None
    return replace(
        trace,
        trace_id=sample_text(ids, len(trace.trace_id)),
        span_id=sample_text(ids, len(trace.span_id)),
        state=None if trace.state is None else sample_text(ids, _SHORT),
    )


def sample_text(ids: Ids, length: int) -> str:
    """A text that stands nowhere else."""
    return "".join(f"{ids.draw(64):016x}" for _ in range(-(-length // 16)))[:length]


def sample_longer(ids: Ids, length: int) -> str:
    """Such a text, of any length from this one on."""
    return sample_text(ids, length + ids.draw(_MORE_BITS))


def sample_ms(ids: Ids) -> int:
    """A time that stands nowhere else."""
    return _FROM_MS + ids.draw(_FROM_BITS)
