"""Turns that differ in ids, times and words alone: their first append is rendered from a template.

A turn is templated when it opens a new context and nothing is asked for beside the message, but that it is taken once
under its key. Two such turns at one agent store the same but for ids, times, words and names of callers. So two samples
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
    Unclaimed,
)
from passerelle.core.commands import SubmitTurn
from passerelle.core.errors import StoreUnavailable, UnsupportedOperation
from passerelle.core.ids import CONTEXT_BITS, compose_context
from passerelle.core.mint_log import RecordedIds, mint_together
from passerelle.core.wire.generated import make_picker
from passerelle.core.wire.record import change
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs.plan import Delegation
from passerelle.delegation.runs.templates import Ordinals, SampleTurn, TemplatedTurn, TurnTemplate
from passerelle.delegation.runs.turns import OpenedTurn, TurnAttempt, TurnRequest, read_task
from passerelle.runtime.common.clock import StoppedClock
from passerelle.runtime.records.blob_overflow import CAP
from passerelle.runtime.records.message_summary import describe, digest_request
from passerelle.runtime.records.places import choose_shard, draw_shard, hash_key, place_context
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
    from passerelle.runtime.records.places import Place

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
FREE: Final = frozenset({0, *range(9, 15)})
"""Where the message, the words and the name of the caller stand among the values, which have any length."""
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
        rendered = self._fill(request)
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
                templated = turn if first == 1 else None
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

    def _fill(self, request: TurnRequest) -> tuple[TemplatedTurn, PackedBatch] | None:
        """A turn, and what is stored of it; None where it has to be decided."""
        principal, command, plan = request.principal, request.command, request.plan
        if not is_templated(command, plan):
            return None
        message = orjson.dumps(command.message)
        writes = self.turns.writes
        shard = choose_shard(principal, writes.ids, request.idem)
        try:
            driver = plan.drives(shard)
        except StoreUnavailable:
            return None  # whoever decides has the lease extended first
        template = self._find(request, (driver, writes.log.shard_epoch(shard)))
        if template is None or len(message) > CAP:
            return None
        now_ms, ordinals = writes.read_ms(shard), template.ordinals
        remote = compose_context(now_ms, writes.ids.draw(CONTEXT_BITS))
        minted = mint_together(writes.ids, shard, now_ms, template.numbers)
        stem = minted[0]
        place = place_context(principal, f"ctx{stem}{ordinals.context}", shard)
        values = list_values(request, place, message, now_ms, remote, minted)
        call = template.wire.render(values)
        if call is None:
            return None
        task = EntityRef(EntityKind.TASK, f"task{stem}{ordinals.task}")
        touched = template.pick_touched((place.session, place.thread, task))
        first_event = f"ev{stem}{ordinals.first_event}"
        packed = PackedBatch(place.session.id, shard, touched, first_event, call)
        turn_id = f"turn{stem}{ordinals.turn}"
        owner = principal.key
        return TemplatedTurn(template, values, place, owner, task, turn_id, remote), packed

    def _find(self, request: TurnRequest, under: tuple[Incarnation, int]) -> TurnTemplate | None:
        """The template of a shape: what may differ and is no value of ``list_values``."""
        (driver, epoch), trace, templates = under, request.plan.trace, self._templates
        shape = (
            request.plan.ground,
            request.idem is None,
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
        template = make_template(self.turns, request, under)
        templates.keep(shape, template)
        return template


def _list_rest(kind: type, *said: str) -> tuple[Callable[[object], object], object]:
    """How the members of a class beside ``said`` are read together, and what they are where nothing is asked for."""
    rest = [one for one in fields(kind) if one.name not in said]
    return attrgetter(*(one.name for one in rest)), tuple(one.default for one in rest)


_read_command, _NO_COMMAND = _list_rest(
    SubmitTurn, "agent", "message", "source", "wait", "params", "traceparent", "tracestate"
)
_read_plan, _NO_PLAN = _list_rest(
    Delegation, "card", "mechanism", "policy", "judge", "drives", "trace", "demands", "ground"
)


def is_templated(command: SubmitTurn, plan: Delegation) -> bool:
    """Whether nothing is asked for beside the message, also by members that these classes may get one day."""
    return _read_command(command) == _NO_COMMAND and _read_plan(plan) == _NO_PLAN


def list_values(
    request: TurnRequest,
    place: Place,
    message: bytes,
    now_ms: int,
    remote_context_id: str,
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
    texts = (
        place.thread.id,
        place.session.id,
        f"{{{place.shard.tag}}}",
        format_ms(now_ms),
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
        principal.key,
        "" if idem is None else hash_key(principal, idem),
        "" if idem is None else digest_request(command),
        remote_context_id,
        *minted,
    )
    return (message, *quote(texts))


def make_template(
    turns: Turns, request: TurnRequest, under: tuple[Incarnation, int]
) -> TurnTemplate | None:
    """The template of a shape, out of two samples; ``under`` which incarnation and shard epoch."""
    ids = turns.writes.ids
    for _ in range(TRIES):
        one, other = (render_sample(turns, sample_request(request, ids), under) for _ in range(2))
        wire = make_wire_template(one.example, other.example, FREE)
        if wire is None or one.asked != other.asked or one.spill.blobs:
            continue
        touched = [_TOUCHED.index(ref.kind) for ref in one.decision.touched]
        return TurnTemplate(
            wire=wire,
            numbers=one.asked.numbers,
            ordinals=Ordinals(*map(one.asked.find, ("ctx", "task", "turn", "ev"))),
            pick_touched=make_picker(touched),
            feed=one.feed,
            mechanism=request.plan.mechanism,
            driver=one.driver,
            samples=(one, other),
        )
    return None


def render_sample(turns: Turns, request: TurnRequest, under: tuple[Incarnation, int]) -> SampleTurn:
    """Decides a turn by the code that decides every turn, and stores nothing."""
    chance = turns.writes.ids
    shard = draw_shard(chance)
    now_ms = sample_ms(chance)
    ids = RecordedIds(chance, shard, now_ms)
    place = place_context(request.principal, ids.mint("ctx", shard), shard)
    message = request.command.message
    driver, epoch = under

    def drives(_shard: Shard) -> Incarnation:
        return driver

    request = change(request, plan=change(request.plan, drives=drives))
    writes = replace(turns.writes, ids=ids, clock=StoppedClock(now_ms), shard_ms=None)
    draft = TurnAttempt(replace(turns, writes=writes), request, place, {}).draft()
    op = ids.mint("op", shard)
    batch, standing = compose(draft.decision, {}, draft.terms, op, epoch)
    call = writes.log.pack(batch).call
    asked, minted = ids.find_in(call)
    packed, remote_context_id = orjson.dumps(message), ids.contexts[0]
    values = list_values(request, place, packed, now_ms, remote_context_id, minted)
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
        remote_context_id=remote_context_id,
    )


def sample_request(request: TurnRequest, ids: Ids) -> TurnRequest:
    """A request of the same shape, in which every text stands for itself."""
    return change(
        request,
        principal=change(request.principal, id=sample_text(ids, _SHORT)),
        command=sample_command(request.command, ids),
        plan=change(request.plan, trace=sample_trace(request.plan.trace, ids)),
        idem=None if request.idem is None else sample_text(ids, _SHORT),
    )


def sample_command(command: SubmitTurn, ids: Ids) -> SubmitTurn:
    """A command of the same shape, in which every text stands for itself."""
    part: JsonObject = {"text": sample_longer(ids, _LONG)}
    message: JsonObject = {
        "messageId": sample_text(ids, _SHORT),
        "role": "ROLE_USER",
        "parts": [part],
    }
    return replace(command, message=message, params=None)


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
