"""What templated turns and answers are made of: their templates, the sample renders behind them, the rendered ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

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
"""Shapes of answers that are remembered for one of turns: agents choose the media types that stand in them."""
FEW_ANSWERS: Final = 4

_LAST: Final = 10**15 + 1
"""In the place of a sequence that the store fills in; no record is that long."""

ArtifactShape: TypeAlias = "tuple[tuple[str, ...], int, bool, bool]"
"""Media types, number of parts, whether it has a name, and whether one of that name stands in its context."""


class AnswerShape(NamedTuple):
    """What decides which facts an answer leads to. A tuple, since templates are found by it."""

    is_task: bool
    says_text: bool = False
    says_id: bool = False
    artifacts: tuple[ArtifactShape, ...] = ()


@value
class KnownThread:
    """The thread of a context that is known, with the turn begun in it; ``stamp`` is that of before."""

    record: ThreadRecord
    stamp: Stamp


def split_thread(record: ThreadRecord, at: str) -> tuple[bytes, bytes]:
    """A thread as it is stored at a time, before and behind the sequence of its last event."""
    written = write_snapshot(change(record, updated_at=at, last=_LAST))
    before, _, behind = written.partition(b'"last":%d' % _LAST)
    return before + b'"last":', behind


@value
class PassedGate:
    """The append that let a message through as it came: the operation, and the time at which it was to be sent."""

    op: str
    at: str


def read_passed(task: Held) -> PassedGate | None:
    """How the message of a task was let through by the append that was its last one."""
    record = task.record
    run = record.run if isinstance(record, TaskRecord) else None
    return (
        None
        if run is None or run.intended_at is None
        else PassedGate(task.stamp.op, run.intended_at)
    )


@dataclass(frozen=True, slots=True)
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
    """The context that the agent would be told."""
    began_ms: int
    first: int
    """The sequence of its first event."""
    known: KnownThread | None
    """None where it would open its context."""

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
    """Of the ids that have to be known, beside being written."""

    context: str
    task: str
    turn: str
    first_event: str
    push: str
    """Of a push config that its caller has not named."""


@dataclass(frozen=True, slots=True)
class TurnTemplate:
    """What every turn of one shape stores first."""

    wire: WireTemplate
    numbers: tuple[tuple[int, str], ...]
    """What has to be drawn (``mint_together``)."""
    ordinals: Ordinals
    pick_touched: Callable[[Sequence[EntityRef]], tuple[EntityRef, ...]]
    """Out of the session, the thread and the task: what is written, in its order."""
    feed: bool
    mechanism: str
    gated: bool
    """Whether somebody has a say in what is sent."""
    driver: Incarnation
    """Who drives the turns of this shape."""
    samples: tuple[SampleTurn, SampleTurn]
    window: BatchWindow = field(default_factory=BatchWindow)
    """Of what their agent answers; noted with each answer."""
    answers: ShapeMemory[AnswerTemplate | None] = field(
        default_factory=lambda: ShapeMemory(_ANSWERS, FEW_ANSWERS)
    )
    """What answers of each shape store last."""


@value
class TemplatedTurn:
    """A rendered turn, so that its answer can be rendered, too. ``values`` are what it was filled with."""

    template: TurnTemplate
    values: tuple[bytes, ...]
    place: Place
    owner: str
    """The key of its caller."""
    task: EntityRef
    turn_id: str
    remote_context_id: str
    """The context that the agent is told."""
    began_ms: int
    known: KnownThread | None
    """None where it has opened its context."""
    first: int = 0
    """The sequence of its first event, once it is stored."""
    passed: PassedGate | None = None
    """None where nobody has a say in what is sent, or somebody has not said it yet."""

    def is_gated(self) -> bool:
        """Whether its message has to be let through first."""
        return self.template.gated and self.passed is None


@value
class TemplatedAnswer:
    """A templated answer in our ids.

    ``packed`` is its frame as it is stored, ``texts`` are the further texts in which answers of a shape differ.
    ``versions`` are the names of its artifacts, and which version of that name each is.
    """

    shape: AnswerShape
    frame: JsonObject
    packed: bytes
    texts: tuple[str, ...]
    versions: tuple[tuple[str | None, int], ...] = ()


@value
class TurnEnd:
    """What the end of a turn depends on beside its answer: the same for all answers of a shape."""

    artifacts: tuple[str, ...]
    """The ordinals of the ids of its artifacts."""
    sequences: tuple[int, ...]
    """Which events of the turn are named, counted from its first one."""
    outcome: str
    """How the thread says that it has ended."""


@dataclass(frozen=True, slots=True)
class AnswerTemplate:
    """What every answer of one shape stores, on a turn of one shape."""

    wire: WireTemplate
    numbers: tuple[tuple[int, str], ...]
    """What has to be drawn (``mint_together``)."""
    pick_touched: Callable[[Sequence[EntityRef]], tuple[EntityRef, ...]]
    """Out of the task and the thread: what is written, in its order."""
    end: TurnEnd
    first_event: str
    """The ordinal of its id."""
    feed: bool
    row: IndexRow | None
    """The sample row of the owner's list: another owner, another task, another time."""
    seen: SeenBehaviour | None
