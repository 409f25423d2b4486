"""Sample turns, from which templates are made: decided by the general code, and not stored."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.core.batch import EntityRef, Stamp
from passerelle.core.commands import SubmitTurn
from passerelle.core.decision import Held
from passerelle.core.ids import TaskId, expose, shard_of
from passerelle.core.mint_log import RecordedIds
from passerelle.core.push import PushConfig
from passerelle.core.session.thread import SCHEMA, ThreadRecord, ThreadStatus
from passerelle.core.wire.record import change
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs.templates import SampleTurn
from passerelle.delegation.runs.turn_request import TurnRequest
from passerelle.delegation.runs.turn_values import begin_known, list_values, locate_thread
from passerelle.delegation.runs.turns import TurnAttempt
from passerelle.runtime.common.clock import StoppedClock
from passerelle.runtime.records.places import Place, draw_shard, place_context
from passerelle.runtime.records.writes import compose
from passerelle.store.connection import unpack
from passerelle.store.wire_template import Example
from passerelle.webhooks.push_configs import find_sealed

if TYPE_CHECKING:
    from passerelle.core.batch import Incarnation
    from passerelle.core.ids import Shard
    from passerelle.core.ports.chance import Ids
    from passerelle.core.wire.json import JsonObject
    from passerelle.core.wire.trace import Trace
    from passerelle.delegation.runs.turns import Turns

_LONG: Final = 3000
"""Minimum length of a sample message, in characters: more than any preview; each preview is a text of its own."""
_MORE_BITS: Final = 9
"""Random bits added to a length, so that two examples differ in their sizes, too."""
_SHORT: Final = 24
_FROM_MS: Final = 1_000_000_000_000
_FROM_BITS: Final = 38


def make_sample(
    turns: Turns, request: TurnRequest, under: tuple[Incarnation, int], *, knows: bool
) -> SampleTurn:
    """Renders a sample of such a request; ``knows``: in a known context."""
    ids = turns.writes.ids
    if not knows or request.command.context_id is None:
        return render_sample(turns, request, under)
    shard = draw_shard(ids)
    place = place_context(request.principal, request.command.context_id, shard)
    return render_sample(turns, request, under, sample_thread(request, place, ids))


def render_sample(
    turns: Turns, request: TurnRequest, under: tuple[Incarnation, int], known: Held | None = None
) -> SampleTurn:
    """Decides a turn with the general code, and stores nothing; ``known`` is its thread, if there is one.

    The shard of a thread is the one in its id.
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
    (task,) = (one for one in batch.entities if one.ref == draft.task)
    push = find_sealed(expose(TaskId(draft.task.id), 1), task.fields)
    written = orjson.dumps(message)
    values = list_values(request, place, written, now_ms, remote, begun, minted, push)
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
        began_ms=now_ms,
        first=sample_ms(chance),
        known=begun,
    )


def sample_request(request: TurnRequest, ids: Ids) -> TurnRequest:
    """A request of the same shape, in which every text is unique."""
    return change(
        request,
        principal=change(request.principal, id=sample_text(ids, _SHORT)),
        command=sample_command(request.command, ids),
        plan=change(request.plan, trace=sample_trace(request.plan.trace, ids), catalog=None),
        idem=None if request.idem is None else sample_text(ids, _SHORT),
    )


def sample_thread(request: TurnRequest, place: Place, ids: Ids) -> Held:
    """An idle thread, in which every text and number is unique."""
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
    """A command of the same shape, in which every text is unique."""
    part: JsonObject = {"text": sample_longer(ids, _LONG)}
    message: JsonObject = {
        "messageId": sample_text(ids, _SHORT),
        "role": "ROLE_USER",
        "parts": [part],
    }
    context = None if command.context_id is None else sample_text(ids, _SHORT)
    push = sample_push(command.push, ids)
    return replace(command, message=message, context_id=context, params=None, push=push)


def sample_push(push: PushConfig | None, ids: Ids) -> PushConfig | None:
    """A push config of the same shape: it is stored as one value, whatever its content is."""
    if push is None:
        return None
    name = sample_text(ids, _SHORT) if push.id else None
    return PushConfig(url=sample_text(ids, _SHORT), id=name)


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
    """A unique text."""
    return "".join(f"{ids.draw(64):016x}" for _ in range(-(-length // 16)))[:length]


def sample_longer(ids: Ids, length: int) -> str:
    """A unique text of random length, at least ``length``."""
    return sample_text(ids, length + ids.draw(_MORE_BITS))


def sample_ms(ids: Ids) -> int:
    """A unique time."""
    return _FROM_MS + ids.draw(_FROM_BITS)
