"""The plan of a round, by seed: the errands of callers, and the fault that each meets at a named point.

A fault waits for bytes that may never come, if another fault was there first. It is then planned again at the end of
the round, when little else happens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Final

GATEWAYS: Final = ("one", "two")
LASTING: Final = ("alpha", "beta")
"""Scripted agents, which keep their tasks when they are killed. Only the second one ever answers with a bare Message:
an empty list of the first one proves that a message has not arrived.
"""
TALKER: Final = LASTING[1]
SDK: Final = "report"
"""An SDK agent. It keeps its tasks in memory, so it is never killed."""
ERRANDS: Final = 60
"""Errands of the shortest round: every fault has one, and half of the errands have no fault."""
SPREAD_S: Final = 24.0
"""Period over which errands outside the line begin, in seconds."""
_DEADLY_S: Final = 8.0
"""Period over which errands that kill an agent begin: the freeze waits for their end."""


class Point(StrEnum):
    """A moment in the life of a task that a proxy can see, at the store or at the agent."""

    BEFORE_APPEND = "before append"
    AFTER_APPEND = "after append, before send"
    ON_THE_WAY = "send on its way"
    UNANSWERED = "after send, before its answer"
    UNSTORED = "before the answer is stored"
    MID_STREAM = "mid-stream"
    BEFORE_COMPLETION = "before completion"
    CANCEL_ASKED = "cancel on its way"
    CANCEL_TOLD = "cancel, before its answer"
    AT_WORK = "while holding a lease"


AT_STORE: Final = frozenset(
    {Point.BEFORE_APPEND, Point.AFTER_APPEND, Point.UNSTORED, Point.BEFORE_COMPLETION}
)


class Action(StrEnum):
    """The action at that point."""

    KILL_GATEWAY = "gateway killed"
    LATE = "gateway killed, and its bytes late"
    KILL_PEER = "agent killed"
    CUT = "connection cut"
    HOLD = "network held"
    FREEZE = "gateway frozen"


@dataclass(frozen=True, slots=True)
class Fault:
    """One action at one point."""

    action: Action
    point: Point

    def __str__(self) -> str:
        return f"{self.action} {self.point}"


class Way(StrEnum):
    """How a caller runs its errand."""

    SEND = "send"
    STREAM = "stream"
    BEGIN = "begin"
    CANCEL = "cancel"
    ASK = "ask"
    SAY = "say"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Errand:
    """One message to an agent, and what follows. Proxies recognize it by ``label``, which is in all relevant bytes."""

    label: str
    agent: str
    gateway: int
    way: Way
    text: str
    begins_s: float
    fault: Fault | None = None

    @property
    def in_line(self) -> bool:
        """Whether its fault affects a whole gateway: these run one after the other."""
        return self.fault is not None and self.fault.action in {
            Action.KILL_GATEWAY,
            Action.LATE,
            Action.FREEZE,
        }


FAULTS: Final = (
    *(Fault(Action.KILL_GATEWAY, point) for point in Point),
    Fault(Action.LATE, Point.ON_THE_WAY),
    Fault(Action.KILL_PEER, Point.ON_THE_WAY),
    Fault(Action.KILL_PEER, Point.UNANSWERED),
    Fault(Action.KILL_PEER, Point.MID_STREAM),
    Fault(Action.KILL_PEER, Point.CANCEL_TOLD),
    Fault(Action.CUT, Point.BEFORE_APPEND),
    Fault(Action.CUT, Point.AFTER_APPEND),
    Fault(Action.CUT, Point.BEFORE_COMPLETION),
    Fault(Action.CUT, Point.ON_THE_WAY),
    Fault(Action.CUT, Point.UNANSWERED),
    Fault(Action.CUT, Point.MID_STREAM),
    Fault(Action.HOLD, Point.AFTER_APPEND),
    Fault(Action.HOLD, Point.ON_THE_WAY),
    Fault(Action.HOLD, Point.UNANSWERED),
    Fault(Action.HOLD, Point.MID_STREAM),
    Fault(Action.HOLD, Point.BEFORE_COMPLETION),
    Fault(Action.FREEZE, Point.ON_THE_WAY),
)
"""Points at which every fault occurs in each round."""

_CANCELS: Final = frozenset({Point.CANCEL_ASKED, Point.CANCEL_TOLD})
_STREAMS: Final = frozenset({Point.MID_STREAM, Point.AT_WORK})


def plan_round(number: int, draw: Random, errands: int = ERRANDS) -> list[Errand]:
    """The errands of one round: those in line first, in order, then the others by start time."""
    faults: list[Fault | None] = [*FAULTS]
    faults += [None] * (errands - len(faults))
    draw.shuffle(faults)
    planned = [
        _plan(f"r{number:02d}t{place:03d}", fault, draw) for place, fault in enumerate(faults)
    ]
    # The freeze lasts longest and nothing else may be down meanwhile: it comes last.
    line = sorted(
        (errand for errand in planned if errand.in_line),
        key=lambda errand: errand.fault is not None and errand.fault.action is Action.FREEZE,
    )
    others = [errand for errand in planned if not errand.in_line]
    return [*line, *sorted(others, key=lambda errand: errand.begins_s)]


def plan_again(missed: list[Errand], number: int, first: int) -> list[Errand]:
    """Errands for faults that did not occur; ``first`` is their first index in the round."""
    labels = [f"r{number:02d}t{first + place:03d}" for place in range(len(missed))]
    pairs = zip(labels, missed, strict=True)
    return [replace(_plan(label, one.fault, Random(label)), begins_s=0) for label, one in pairs]


def _plan(label: str, fault: Fault | None, draw: Random) -> Errand:
    way = _choose_way(fault, draw)
    agent = TALKER if way is Way.SAY else draw.choice(LASTING)
    if fault is not None and fault.action is Action.FREEZE:
        agent = LASTING[0]
    if fault is None and way in {Way.SEND, Way.STREAM, Way.BEGIN} and draw.random() < 0.3:
        agent = SDK
    is_deadly = fault is not None and fault.action is Action.KILL_PEER
    return Errand(
        label,
        agent,
        draw.randrange(len(GATEWAYS)),
        way,
        f"{label} {_choose_words(fault, way, draw)}",
        round(draw.random() * (_DEADLY_S if is_deadly else SPREAD_S), 2),
        fault,
    )


def _choose_way(fault: Fault | None, draw: Random) -> Way:
    if fault is None:
        # The ways that take longest are most frequent, so that every kill finds running work.
        ways: list[Way] = [*Way, Way.STREAM, Way.STREAM, Way.BEGIN, Way.BEGIN, Way.SEND]
        return draw.choice(ways)
    if fault.point in _CANCELS:
        return Way.CANCEL
    if fault.point in _STREAMS:
        return draw.choice([Way.STREAM, Way.BEGIN])
    return draw.choice([Way.SEND, Way.STREAM, Way.BEGIN])


def _choose_words(fault: Fault | None, way: Way, draw: Random) -> str:
    """The agent's script: number of chunks, and seconds between them."""
    match way:
        case Way.SAY | Way.FAIL:
            return way.value
        case Way.CANCEL:
            return "work chunks=900 every=0.2"
        case Way.ASK:
            return f"ask chunks={draw.randint(1, 5)} every=0.1"
        case Way.SEND | Way.STREAM | Way.BEGIN:
            if fault is not None and fault.point in _STREAMS:
                return "work chunks=12 every=0.25"
            return f"work chunks={draw.randint(1, 30)} every={draw.choice([0.02, 0.1, 0.3])}"
