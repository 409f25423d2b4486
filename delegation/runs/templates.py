"""The types of templated turns and answers: templates, the sample renders behind them, and rendered ones."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from passerelle.core.frozen import frozen
from passerelle.core.machine import write_snapshot
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.record import change, value
from passerelle.runtime.records.batch_window import BatchWindow
from passerelle.runtime.records.shape_memory import ShapeMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.core.batch import EntityRef, Incarnation, Stamp
    from passerelle.core.decision import Decision, Held
    from passerelle.core.mint_log import MintRecord
    from passerelle.core.ports.projections import IndexRow
    from passerelle.core.session.thread import ThreadRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.peer_profile import SeenBehaviour
    from passerelle.runtime.records.blob_overflow import BlobOverflow
    from passerelle.runtime.records.places import Place
    from passerelle.store.wire_template import Example, WireTemplate

_ANSWERS: Final = 64
"""Shapes of answers that are cached per shape of turn: agents choose the media types in them."""
FEW_ANSWERS: Final = 4

_LAST: Final = 10**15 + 1
"""A placeholder for the sequence that the store fills in; no record contains a number this long."""

ArtifactShape: TypeAlias = "tuple[tuple[str, ...], int, bool, bool]"
"""Media types, number of parts, whether it has a name, and whether its context has an artifact of that name."""


class AnswerShape(NamedTuple):
    """What decides the facts of an answer. A tuple, since templates are looked up by it."""

    is_task: bool
    says_text: bool = False
    says_id: bool = False
    artifacts: tuple[ArtifactShape, ...] = ()


@value
class KnownThread:
    """The thread of a known context, with the new turn begun in it; ``stamp`` is that of the stored thread."""

    record: ThreadRecord
    stamp: Stamp


def split_thread(record: ThreadRecord, at: str) -> tuple[bytes, bytes]:
    """A thread as stored at a time, before and behind the sequence of its last event."""
    written = write_snapshot(change(record, updated_at=at, last=_LAST))
    before, _, behind = written.partition(b'"last":%d' % _LAST)
    return before + b'"last":', behind


@value
class PassedGate:
    """The append that let an unchanged message pass: the operation, and the intended time of the send."""

    op: str
    at: str


def read_passed(task: Held) -> PassedGate | None:
    """How the last append of a task let its message pass; None if it did not."""
    record = task.record
    run = record.run if isinstance(record, TaskRecord) else None
    return (
        None
        if run is None or run.intended_at is None
        else PassedGate(task.stamp.op, run.intended_at)
    )


@frozen
class SampleTurn:
    """A templated turn that was decided and not stored."""

    place: Place
    owner: str
    driver: Incarnation
    message: JsonObject
    decision: Decision
    spill: BlobOverflow
    task: EntityRef
    turn_id: str
    op: str
    asked: MintRecord
    example: Example
    feed: bool
    remote_context_id: str
    """The context id for the agent."""
    began_ms: int
    first: int
    """The sequence of its first event."""
    known: KnownThread | None
    """None if it opens its context."""

    def render(self, template: TurnTemplate) -> TemplatedTurn:
        """The turn as if it had been rendered."""
        values = self.example.values
        return TemplatedTurn(
            template,
            values,
            self.place,
            self.owner,
            self.task,
            self.turn_id,
            self.remote_context_id,
            self.began_ms,
            self.known,
            self.first,
        )


class Ordinals(NamedTuple):
    """Ordinals of the ids that are needed apart from the written bytes."""

    context: str
    task: str
    turn: str
    first_event: str
    push: str
    """Of a push config without an id of its caller."""


@frozen
class TurnTemplate:
    """What every turn of one shape stores first."""

    wire: WireTemplate
    numbers: tuple[tuple[int, str], ...]
    """The random numbers to draw (``mint_together``)."""
    ordinals: Ordinals
    pick_touched: Callable[[Sequence[EntityRef]], tuple[EntityRef, ...]]
    """Picks the written entities out of the session, the thread and the task, in write order."""
    feed: bool
    mechanism: str
    gated: bool
    """Whether a rule or hook judges what is sent."""
    driver: Incarnation
    """The driver of the turns of this shape."""
    samples: tuple[SampleTurn, SampleTurn]
    window: BatchWindow = field(default_factory=BatchWindow)
    """Timing of their agent's answers; updated with each answer."""
    answers: ShapeMemory[AnswerTemplate | None] = field(
        default_factory=lambda: ShapeMemory(_ANSWERS, FEW_ANSWERS)
    )
    """The templates of the last append, by shape of answer."""


@value
class TemplatedTurn:
    """A rendered turn, so that its answer can be rendered, too. ``values`` are the rendered values."""

    template: TurnTemplate
    values: tuple[bytes, ...]
    place: Place
    owner: str
    """The key of its caller."""
    task: EntityRef
    turn_id: str
    remote_context_id: str
    """The context id for the agent."""
    began_ms: int
    known: KnownThread | None
    """None if it has opened its context."""
    first: int = 0
    """The sequence of its first event, once it is stored."""
    passed: PassedGate | None = None
    """None without a gate, or before it has passed."""

    def is_gated(self) -> bool:
        """Whether its message has to pass the gate first."""
        return self.template.gated and self.passed is None


@value
class TemplatedAnswer:
    """A templated answer in our ids.

    ``packed`` is its frame as stored, ``texts`` are the further texts that differ between answers of a shape.
    ``versions`` are the names of its artifacts, with the version of each name.
    """

    shape: AnswerShape
    frame: JsonObject
    packed: bytes
    texts: tuple[str, ...]
    versions: tuple[tuple[str | None, int], ...] = ()


@value
class TurnEnd:
    """What the end of a turn depends on apart from its answer: equal for all answers of a shape."""

    artifacts: tuple[str, ...]
    """The ordinals of the ids of its artifacts."""
    sequences: tuple[int, ...]
    """The events of the turn that are named, counted from its first one."""
    outcome: str
    """The outcome in the thread."""


@frozen
class AnswerTemplate:
    """What every answer of one shape stores, for turns of one shape."""

    wire: WireTemplate
    numbers: tuple[tuple[int, str], ...]
    """The random numbers to draw (``mint_together``)."""
    pick_touched: Callable[[Sequence[EntityRef]], tuple[EntityRef, ...]]
    """Picks the written entities out of the task and the thread, in write order."""
    end: TurnEnd
    first_event: str
    """The ordinal of its id."""
    feed: bool
    row: IndexRow | None
    """The sample row of the owner's list; owner, task and time are replaced."""
    seen: SeenBehaviour | None
