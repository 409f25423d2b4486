"""Turns like a thousand before them: what the first append writes is decided once for each shape, and filled in.

A turn is plain when it opens a new context and nothing is asked for beside the message. Of two plain turns of one
caller at one agent, all that is stored is the same but ids, times and words. So a shape is rehearsed twice, by the code
that decides every other turn; a stencil is cut from what it would store, and from then on the ids, times and words of a
turn are filled in. Where there is no stencil, or a turn is not plain, it is decided like any other.
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
from passerelle.core.ids import REMOTE_CONTEXT
from passerelle.core.minting import RecordedIds, Wanted
from passerelle.core.record import change, value
from passerelle.core.times import format_ms
from passerelle.gateway.clock import StoppedClock
from passerelle.gateway.control.places import mint_place
from passerelle.gateway.control.plan import Delegation
from passerelle.gateway.control.turn_opening import Draft, Opened, Opening
from passerelle.gateway.control.words import describe
from passerelle.gateway.control.writes import Unread, compose
from passerelle.gateway.delegation.spill import CAP
from passerelle.store.connection import unpack
from passerelle.store.stencil import Example, Stencil, cut_stencil, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from passerelle.core.batch import Incarnation
    from passerelle.core.ids import Shard
    from passerelle.core.json import JsonObject
    from passerelle.core.ports.chance import Ids
    from passerelle.core.principal import Principal
    from passerelle.core.trace import Trace
    from passerelle.gateway.control.places import Place
    from passerelle.gateway.control.turns import Turns

_SHAPES: Final = 512
"""Shapes that are remembered; then the oldest makes room."""
TRIES: Final = 4
"""Of cutting: a number of one example may stand somewhere else in it by chance."""
_LONG: Final = 3000
"""Characters of a rehearsed message: more than is read off it anywhere, so that each reading is a text of its own."""
_SHORT: Final = 24
_FROM_MS: Final = 1_000_000_000_000
_FROM_BITS: Final = 38
_SESSION: Final = 2
"""Where the session stands among the values."""
FREE: Final = frozenset(range(9, 15))
"""Where the words of the caller stand among them, which have any length."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A plain turn that was decided and not stored."""

    place: Place
    driver: Incarnation
    message: JsonObject
    draft: Draft
    op: str
    asked: tuple[str | int, ...]
    example: Example
    feed: bool

    @property
    def remote_context_id(self) -> str:
        """The context that the agent would be told."""
        begin = len(self.example.values) - len(self.asked)
        return self.example.values[begin + self.asked.index(REMOTE_CONTEXT)].decode()


@dataclass(frozen=True, slots=True)
class Form:
    """What every turn of one shape stores first."""

    stencil: Stencil
    wanted: Wanted
    """What has to be minted, in its order."""
    at: Mapping[str, int]
    """Prefix of an id -> where the first one stands among the values."""
    kinds: tuple[EntityKind, ...]
    feed: bool
    mechanism: str
    rehearsals: tuple[Rehearsal, Rehearsal]
    answers: dict[Hashable, object] = field(default_factory=dict["Hashable", object])
    """What answers of each shape store last; whoever takes answers keeps it here."""

    @property
    def driver(self) -> Incarnation:
        """Who drives the turns of this shape."""
        return self.rehearsals[0].driver


@value
class PlainTurn:
    """A turn that was filled in, so that its answer can be, too. ``values`` are what it was filled with."""

    form: Form
    values: tuple[bytes, ...]

    def read(self, prefix: str) -> str:
        """The first id of this kind that was minted for it."""
        return self.values[self.form.at[prefix]].decode()

    @property
    def remote_context_id(self) -> str:
        """The context that the agent is told."""
        return self.read(REMOTE_CONTEXT)

    @property
    def session(self) -> str:
        """The session that it opened."""
        return self.values[_SESSION].decode()


@dataclass(slots=True)
class PlainTurns:
    """Opens plain turns, and knows their forms."""

    turns: Turns
    _forms: dict[Hashable, Form | None] = field(default_factory=dict["Hashable", "Form | None"])

    async def open(
        self, principal: Principal, command: SubmitTurn, plan: Delegation
    ) -> Opened | None:
        """The stored turn; None where nothing is stored and the turn has to be decided.

        Raises:
            StoreUnavailable: nothing is known to be written, and no peer was called.
        """
        filled = self._fill(principal, command, plan)
        if filled is None:
            return None
        place, task, turn, packed = filled
        driver, writes = turn.form.driver, self.turns.writes
        turn_id, held = turn.read("turn"), (task, place.thread)
        try:
            result = await writes.append(packed, feed=turn.form.feed)
        except StoreUnavailable as error:
            if error.wrote == "unknown":
                self.turns.doubt(task)
            raise
        match result:
            case Appended(first=first):
                unread = Unread(writes.log, packed, first, held)
                plain = turn if first == 1 else None
                return Opened(place, task, turn_id, unread, driver, plain=plain)
            case Again():
                return Opened(place, task, turn_id, await writes.load(held), driver)
            case Conflict() | StaleEpoch():
                return None
            case Fenced():
                raise StoreUnavailable("the lease of this instance is lost", "no")
            case Late() | Unclaimed():
                raise UnsupportedOperation("the turn could not be stored; try again")
            case _:
                assert_never(result)

    def _fill(
        self, principal: Principal, command: SubmitTurn, plan: Delegation
    ) -> tuple[Place, EntityRef, PlainTurn, PackedBatch] | None:
        """Where a turn lives, its task, and what is stored; None where it has to be decided."""
        if not is_plain(command, plan):
            return None
        message = orjson.dumps(command.message)
        writes = self.turns.writes
        place = mint_place(principal, writes.ids, None, None)
        shard = place.shard
        driver = plan.drives(shard)
        form = self._find(principal, command, plan, (driver, writes.log.shard_epoch(shard)))
        if form is None or len(message) > CAP:
            return None
        given = list_values(place, command, message, writes.clock.now_ms(), plan)
        turn = PlainTurn(form, (*given, *form.wanted.ask(writes.ids, shard)))
        call = form.stencil.fill(turn.values)
        if call is None:
            return None
        task = EntityRef(EntityKind.TASK, turn.read("task"))
        entities = tuple([_find_entity(kind, place, task) for kind in form.kinds])
        packed = PackedBatch(place.session.id, shard, entities, turn.read("ev"), call)
        return place, task, turn, packed

    def _find(
        self,
        principal: Principal,
        command: SubmitTurn,
        plan: Delegation,
        under: tuple[Incarnation, int],
    ) -> Form | None:
        """The form of a shape: whatever may differ and is no value of ``list_values``."""
        card, (driver, epoch) = plan.card, under
        shape = (
            (principal.id, principal.tenant, command.agent, command.source, command.wait),
            (card.endpoint, card.sha256, card.protocol, plan.mechanism, plan.policy),
            (driver.instance, driver.number, epoch),
            None if plan.trace is None else (plan.trace.flags, plan.trace.state is None),
        )
        try:
            return self._forms[shape]
        except KeyError:
            form = make_form(self.turns, principal, command, plan, under)
        if len(self._forms) >= _SHAPES:
            del self._forms[next(iter(self._forms))]
        self._forms[shape] = form
        return form


def _list_rest(kind: type, *said: str) -> tuple[Callable[[object], object], object]:
    """How the members of a class beside ``said`` are read together, and what they are where nothing is asked for."""
    rest = [one for one in fields(kind) if one.name not in said]
    return attrgetter(*(one.name for one in rest)), tuple(one.default for one in rest)


_read_command, _NO_COMMAND = _list_rest(
    SubmitTurn, "agent", "message", "source", "wait", "params", "traceparent", "tracestate"
)
_read_plan, _NO_PLAN = _list_rest(
    Delegation, "card", "mechanism", "policy", "judge", "drives", "trace"
)


def is_plain(command: SubmitTurn, plan: Delegation) -> bool:
    """Whether nothing is asked for beside the message, also by members that these classes may get one day."""
    return _read_command(command) == _NO_COMMAND and _read_plan(plan) == _NO_PLAN


def list_values(
    place: Place, command: SubmitTurn, message: bytes, now_ms: int, plan: Delegation
) -> tuple[bytes, ...]:
    """The texts in which plain turns of a shape differ, beside what is minted, as they stand in what is written."""
    words, trace, idle_ms = describe(command), plan.trace, plan.policy.idle_timeout_ms
    return (
        place.context_id.encode(),
        place.thread.id.encode(),
        place.session.id.encode(),
        b"{%b}" % place.shard.tag.encode(),
        format_ms(now_ms).encode(),
        b"%d" % (now_ms + plan.policy.total_timeout_ms),
        b"" if idle_ms is None else b"%d" % (now_ms + idle_ms),
        trace.trace_id.encode() if trace else b"",
        trace.span_id.encode() if trace else b"",
        quote(words.objective),
        quote(words.title),
        quote(words.preview),
        message,
        quote(str(command.message["messageId"])),
        quote(trace.state or "") if trace else b"",
    )


def make_form(
    turns: Turns,
    principal: Principal,
    command: SubmitTurn,
    plan: Delegation,
    under: tuple[Incarnation, int],
) -> Form | None:
    """The form of a shape, out of two rehearsals; ``under`` which incarnation and shard epoch."""
    ids = turns.writes.ids
    for _ in range(TRIES):
        one, other = (
            rehearse(
                turns,
                principal,
                rehearse_command(command, ids),
                change(plan, trace=rehearse_trace(plan.trace, ids)),
                under,
            )
            for _ in range(2)
        )
        stencil = cut_stencil(one.example, other.example, FREE)
        if stencil is None or one.asked != other.asked or one.draft.spill.blobs:
            continue
        begin = len(one.example.values) - len(one.asked)
        asked = keep_asked(stencil, one.asked, one.example)
        at = {
            what: begin + place
            for place, what in reversed([*enumerate(asked)])
            if isinstance(what, str)
        }
        kinds = tuple(ref.kind for ref in one.draft.decision.touched)
        return Form(stencil, Wanted(asked), at, kinds, one.feed, plan.mechanism, (one, other))
    return None


def keep_asked(
    stencil: Stencil, asked: tuple[str | int, ...], example: Example
) -> tuple[str | int | None, ...]:
    """What has to be minted for the stencil; None stands for what was asked and not written."""
    begin = len(example.values) - len(asked)
    return tuple(
        what if begin + place in stencil.holes else None for place, what in enumerate(asked)
    )


def rehearse(
    turns: Turns,
    principal: Principal,
    command: SubmitTurn,
    plan: Delegation,
    under: tuple[Incarnation, int],
) -> Rehearsal:
    """Decides a turn by the code that decides every turn, and stores nothing."""
    chance = turns.writes.ids
    place = mint_place(principal, chance, None, None)
    ids, now_ms = RecordedIds(chance, place.shard), rehearse_ms(chance)
    message = command.message
    driver, epoch = under

    def drives(_shard: Shard) -> Incarnation:
        return driver

    plan = change(plan, drives=drives)
    writes = replace(turns.writes, ids=ids, clock=StoppedClock(now_ms))
    draft = Opening(replace(turns, writes=writes), principal, command, plan, place, {}).draft(None)
    op = ids.mint("op", place.shard)
    batch, standing = compose(draft.decision, {}, draft.terms, op, epoch)
    values = list_values(place, command, orjson.dumps(message), now_ms, plan)
    example = Example(unpack(writes.log.pack(batch).call), (*values, *ids.values))
    return Rehearsal(place, driver, message, draft, op, tuple(ids.asked), example, standing.feed)


def rehearse_command(command: SubmitTurn, ids: Ids) -> SubmitTurn:
    """A command of the same shape, in which every text stands for itself."""
    part: JsonObject = {"text": rehearse_text(ids, _LONG)}
    message: JsonObject = {
        "messageId": rehearse_text(ids, _SHORT),
        "role": "ROLE_USER",
        "parts": [part],
    }
    return replace(command, message=message, params=None)


def rehearse_trace(trace: Trace | None, ids: Ids) -> Trace | None:
    """A trace of the same shape."""
    if trace is None:
        return None
    return replace(
        trace,
        trace_id=rehearse_text(ids, len(trace.trace_id)),
        span_id=rehearse_text(ids, len(trace.span_id)),
        state=None if trace.state is None else rehearse_text(ids, _SHORT),
    )


def rehearse_text(ids: Ids, length: int) -> str:
    """A text that stands nowhere else."""
    return "".join(f"{ids.draw(64):016x}" for _ in range(-(-length // 16)))[:length]


def rehearse_ms(ids: Ids) -> int:
    """A time that stands nowhere else."""
    return _FROM_MS + ids.draw(_FROM_BITS)


def _find_entity(kind: EntityKind, place: Place, task: EntityRef) -> EntityRef:
    match kind:
        case EntityKind.SESSION:
            return place.session
        case EntityKind.THREAD:
            return place.thread
        case EntityKind.TASK:
            return task
        case EntityKind.ACTION | EntityKind.DEVICES | EntityKind.GRANTS | EntityKind.RULES:
            raise ValueError("no turn opens with a question, or changes devices, grants or rules")
        case _:
            assert_never(kind)
