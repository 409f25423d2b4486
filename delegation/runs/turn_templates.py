"""Turns that differ only in ids, times and texts: their first append is rendered from a template.

A turn is templated when it opens a new context or continues an idle one, and has nothing more than its message, an
idempotency key, a webhook, a price, conditions of the task and a gate. Two such turns at one agent store the same
except for ids, times, texts, names of callers, addresses of webhooks and the content of their threads. The next state
of a thread is folded, and inserted whole. A gate's judgements, and the answers of tasks with conditions, are decided by
the general code. So two samples of a shape are rendered by the code that decides every other turn, and a wire template
is made of what they would store; from then on only the ids, times, texts and names of a turn are inserted.
Without a template, a turn is decided like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
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
from passerelle.core.decision import Held
from passerelle.core.errors import StoreUnavailable, UnsupportedOperation
from passerelle.core.ids import CONTEXT_BITS, TaskId, compose_context, expose
from passerelle.core.mint_log import mint_together
from passerelle.core.payloads.limit import CostEstimated
from passerelle.core.session.thread import ThreadRecord, has_tools
from passerelle.core.wire.generated import make_picker
from passerelle.core.wire.record import change
from passerelle.delegation.runs.plan import Delegation
from passerelle.delegation.runs.templates import (
    Ordinals,
    TemplatedTurn,
    TurnTemplate,
)
from passerelle.delegation.runs.turn_request import OpenedTurn, TurnRequest, read_task
from passerelle.delegation.runs.turn_samples import make_sample, sample_request
from passerelle.delegation.runs.turn_values import FREE, begin_known, list_values, locate_thread
from passerelle.runtime.records.blob_overflow import CAP
from passerelle.runtime.records.places import (
    Place,
    choose_shard,
    list_places,
    place_context,
)
from passerelle.runtime.records.shape_memory import ShapeMemory
from passerelle.runtime.records.writes import Unread
from passerelle.store.wire_template import make_wire_template
from passerelle.webhooks.push_configs import PushName

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.batch import Incarnation
    from passerelle.core.ids import Shard
    from passerelle.delegation.runs.turns import Turns

SHAPES: Final = 512
"""Shapes that are cached: each agent has its own, with and without a key."""
FEW: Final = 16
"""The first shapes, which get a template at once."""
TRIES: Final = 4
"""Attempts to build a template: a number of one example may occur elsewhere in it by chance."""
_TOUCHED: Final = (EntityKind.SESSION, EntityKind.THREAD, EntityKind.TASK)
"""Entities that a turn may open or change; no question, device, grant or rule."""


@dataclass(slots=True)
class TemplatedTurns:
    """Opens templated turns, and caches their templates."""

    turns: Turns
    _templates: ShapeMemory[TurnTemplate | None] = field(
        default_factory=lambda: ShapeMemory(SHAPES, FEW)
    )

    async def open(self, request: TurnRequest) -> OpenedTurn | None:
        """The stored turn; None where nothing is stored and the turn has to be decided by the general code.

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
                self.turns.on_unknown_outcome(task)
            raise
        match result:
            case Appended(first=first):
                unread = Unread(writes.log, packed, first, held)
                # The answer to a task with conditions is decided by the general code.
                templated = None if request.plan.acceptance else change(turn, first=first)
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
        """A turn, and its packed append; None where it has to be decided by the general code."""
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
            return None  # the general code has the lease extended first
        if places:
            thread = places[0].thread
            known = request.known
            held = await writes.load_one(thread) if known is None else known
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
        """Renders the append; ``held`` is the thread of a named context, which may be new."""
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
        task = EntityRef(EntityKind.TASK, f"task{stem}{ordinals.task}")
        push = None
        if command.push is not None:
            config_id = command.push.id or f"push{stem}{ordinals.push}"
            facade = expose(TaskId(task.id), 1)
            push = self.turns.push_configs.seal(
                command.push, PushName(facade, config_id), principal
            )
            if len(push.stored) > CAP:
                return None
        values = list_values(request, place, message, now_ms, remote, known, minted, push)
        call = template.wire.render(values)
        if call is None:
            return None
        touched = template.pick_touched((place.session, place.thread, task))
        first_event = f"ev{stem}{ordinals.first_event}"
        packed = PackedBatch(place.session.id, shard, touched, first_event, call)
        owner = principal.key
        turn = TemplatedTurn(template, values, place, owner, task, turn_id, remote, now_ms, known)
        return turn, packed

    def _find(
        self, request: TurnRequest, under: tuple[Incarnation, int], *, knows: bool
    ) -> TurnTemplate | None:
        """The template of a shape: everything that may differ and is no value of ``list_values``."""
        (driver, epoch), trace, templates = under, request.plan.trace, self._templates
        shape = (
            request.plan.template_key,
            _list_prices(request.plan),
            orjson.dumps(request.plan.acceptance) if request.plan.acceptance else b"",
            request.idem is None,
            request.command.context_id is None,
            names_webhook(request.command),
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


def _list_rest(kind: type, *handled: str) -> tuple[Callable[[object], object], object]:
    """A reader for the members of a class other than ``handled``, and their values when nothing is requested."""
    rest = [one for one in fields(kind) if one.name not in handled]
    return attrgetter(*(one.name for one in rest)), tuple(one.default for one in rest)


_read_command, _NO_COMMAND = _list_rest(
    SubmitTurn,
    "agent",
    "message",
    "source",
    "context_id",
    "wait",
    "params",
    "push",
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
    "template_key",
    "catalog",
    "route",
    "facts",
    "acceptance",
    "gated",
)


def is_templated(command: SubmitTurn, plan: Delegation) -> bool:
    """Whether the command and the plan have only the message and defaults. Fields added later count."""
    return (
        _read_command(command) == _NO_COMMAND
        and _read_plan(plan) == _NO_PLAN
        and len(_list_prices(plan)) == len(plan.facts)
    )


def _list_prices(plan: Delegation) -> tuple[tuple[str, int, str, str], ...]:
    """The estimated prices of the call: the only facts of a turn that are the same for the next one."""
    return tuple(
        (one.peer, one.amount_micros, one.currency, one.basis)
        for one in plan.facts
        if isinstance(one, CostEstimated)
    )


def names_webhook(command: SubmitTurn) -> bool | None:
    """Whether the caller has named the push config of its message; None without a config."""
    return None if command.push is None else bool(command.push.id)


def rests(held: Held) -> bool:
    """Whether nothing is running or waiting in a context; true for a new one."""
    thread = held.record
    is_idle = not isinstance(thread, ThreadRecord) or not (
        thread.active_turns or thread.waiting_turns
    )
    return is_idle and not held.fields


def knows_tools(held: Held | None, plan: Delegation) -> bool:
    """Whether no tool facts are needed for a turn; a new context knows no tools."""
    thread = held.record if held is not None else None
    return has_tools(thread if isinstance(thread, ThreadRecord) else None, plan.catalog)


def make_template(
    turns: Turns, request: TurnRequest, under: tuple[Incarnation, int], *, knows: bool = False
) -> TurnTemplate | None:
    """Builds the template of a shape from two samples.

    ``under``: the incarnation and the shard epoch; ``knows``: whether the named context is known.
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
                context=one.asked.find("ctx") if request.command.context_id is None else "",
                task=one.asked.find("task"),
                turn=one.asked.find("turn"),
                first_event=one.asked.find("ev"),
                push=one.asked.find("push") if names_webhook(request.command) is False else "",
            ),
            pick_touched=make_picker(touched),
            feed=one.feed,
            mechanism=request.plan.mechanism,
            gated=request.plan.gated,
            driver=one.driver,
            samples=(one, other),
        )
    return None
