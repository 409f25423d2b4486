"""The points in the life of an approval at which a gateway dies, and the dialect of the request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tests.support.stored_events import mark_type

if TYPE_CHECKING:
    from random import Random

OWN: Final = "permission"
WORDS: Final = "words"
"""The request of an agent in a plain conversation, in which its caller answers over A2A."""
DIALECTS: Final = (
    *(OWN, "adk", "kagent", "kagent_parts", "agentstack", "strands", "langgraph", "mastra"),
    *("cuga", "schema"),
)
_GROUPS: Final = ("adk", "kagent", "kagent_parts", "langgraph")
"""Dialects with several requests in one pause, answered by one message."""


class Death(StrEnum):
    """A moment visible outside the gateway: to a proxy at the store or at the agent, or to a person."""

    BEFORE_OPEN = "before the question is stored"
    AFTER_OPEN = "after the question is stored"
    BEFORE_INBOX = "before the question is in the inbox"
    AFTER_INBOX = "after the question is in the inbox"
    AFTER_NOTIFY = "after the act of telling people is claimed"
    AFTER_PUSH = "after a push was sent, before that is stored"
    IN_WELCOME = "while the inbox is read for a device that comes back"
    IN_ESCALATION = "before it is stored that more people may answer"
    BEFORE_RESOLVE = "before the answer is stored"
    AFTER_RESOLVE = "after the answer is stored, before any notification"
    AFTER_REPLY = "after the person is notified, before other people are"
    AFTER_CLAIM = "after the attempt to return it is stored"
    BEFORE_ARRIVAL = "after the look at the agent, before the answer arrives"
    AFTER_ARRIVAL = "after the answer has arrived, before the agent's word"
    BEFORE_RETURNED = "after the agent's word, before it is stored"
    IN_EXPIRY = "before the end of the question is stored"
    IN_LAST_OF_GROUP = "before the last answer of a group is stored"
    IN_SUPERSEDE = "before the next question is stored in its place"
    BEFORE_CONSUME = "before it is stored that what was allowed is done"
    AFTER_CONSUME = "after it is stored that what was allowed is done, before it is"
    BEFORE_MINT = "before the grant of an answer for always is stored"
    AFTER_MINT = "after the grant is stored, before its act is settled"
    IN_GRANT_USE = "after the use of a grant is stored, before what relies on it"
    STORE = "with the store, right after the answer is stored"


Where: TypeAlias = Literal["write", "reply", "read", "call", "answer", "person"]


@dataclass(frozen=True, slots=True)
class Place:
    """The bytes that pass at that point: they contain all ``marks``, and a name of the errand unless ``anybodys``."""

    where: Where
    marks: tuple[bytes, ...] = ()
    anybodys: bool = False


_RESOLVE: Final = (mark_type("action.resolved"), b'"answer"')
_CONSUME: Final = (mark_type("permission.evaluated"), b'"consumes":true')
_MINT: Final = (mark_type("policy.changed"), b'"created"')

PLACES: Final[dict[Death, Place]] = {
    Death.BEFORE_OPEN: Place("write", (mark_type("action.required"),)),
    Death.AFTER_OPEN: Place("reply", (mark_type("action.required"),)),
    Death.BEFORE_INBOX: Place("write", (b'"inbox":[{',)),
    Death.AFTER_INBOX: Place("reply", (b'"inbox":[{',)),
    Death.AFTER_NOTIFY: Place("read", (b"notify:",)),
    Death.AFTER_PUSH: Place(
        "write", (mark_type("channel.permission_forwarded"), b'"webpush"', b'"outcome":"sent"')
    ),
    Death.IN_WELCOME: Place("reply", (b"ZRANGE", b":inz:", b"REV"), anybodys=True),
    Death.IN_ESCALATION: Place("write", (b'"outcome":"escalated"',)),
    Death.BEFORE_RESOLVE: Place("write", _RESOLVE),
    Death.AFTER_RESOLVE: Place("reply", _RESOLVE),
    Death.AFTER_REPLY: Place("person"),
    Death.AFTER_CLAIM: Place("reply", (mark_type("channel.permission_returned"), b'"returning"')),
    Death.BEFORE_ARRIVAL: Place("call"),
    Death.AFTER_ARRIVAL: Place("answer"),
    Death.BEFORE_RETURNED: Place(
        "write", (mark_type("channel.permission_returned"), b'"outcome":"returned"')
    ),
    Death.IN_EXPIRY: Place("write", (mark_type("action.resolved"), b'"expired"')),
    Death.IN_LAST_OF_GROUP: Place("write", (mark_type("action.resolved"), b'"owed"')),
    Death.IN_SUPERSEDE: Place("write", (mark_type("action.required"), b'"superseded"')),
    Death.BEFORE_CONSUME: Place("write", _CONSUME),
    Death.AFTER_CONSUME: Place("reply", _CONSUME),
    Death.BEFORE_MINT: Place("write", _MINT),
    Death.AFTER_MINT: Place("reply", _MINT),
    Death.IN_GRANT_USE: Place("reply", (mark_type("policy.changed"), b'"used"')),
    Death.STORE: Place("reply", _RESOLVE),
}

FOR_ALWAYS: Final = frozenset({Death.BEFORE_MINT, Death.AFTER_MINT, Death.IN_GRANT_USE})
"""Deaths around an answer that covers more than one request."""
HELD_BACK: Final = frozenset({Death.BEFORE_CONSUME, Death.AFTER_CONSUME})
"""Deaths around a message that is sent to the agent after a person has allowed it."""
NOTIFIED: Final[dict[Death, tuple[str, str]]] = {
    Death.AFTER_NOTIFY: ("ws", "queued"),
    Death.AFTER_PUSH: ("webpush", "sent"),
}
"""Deaths after which people are still to be notified before anyone answers: the way, and the stored outcome."""
_SLOW: Final = (
    Death.AFTER_CLAIM,
    Death.BEFORE_ARRIVAL,
    Death.AFTER_NOTIFY,
    Death.AFTER_PUSH,
    Death.AFTER_CONSUME,
    Death.IN_EXPIRY,
)
"""Deaths followed by a wait: for a message in flight, or until an act is due again."""


CONVERSED: Final = (
    Death.AFTER_CLAIM,
    Death.BEFORE_ARRIVAL,
    Death.BEFORE_OPEN,
    Death.AFTER_OPEN,
    Death.BEFORE_INBOX,
    Death.AFTER_INBOX,
    Death.BEFORE_RESOLVE,
    Death.AFTER_RESOLVE,
    Death.AFTER_ARRIVAL,
    Death.BEFORE_RETURNED,
    Death.STORE,
)
"""Deaths in a conversation that are awaited first: the others concern people other than the caller."""
Way: TypeAlias = Literal["", "unary", "stream"]


@dataclass(frozen=True, slots=True)
class Errand:
    """One task, and the approval that a death is about; ``label`` is in all of its texts and records.

    ``way`` is how the caller itself answers; it is empty if a person answers over ``/v1``. ``streams`` is a property
    of the agent.
    """

    label: str
    death: Death
    dialect: str
    way: Way = ""
    streams: bool = True


def plan(draw: Random, *, whole: bool) -> list[Errand]:
    """Every death in every possible dialect, or each death once with the dialects in turn.

    Errands that take longest begin first.
    """
    pairs: list[tuple[Death, str]] = []
    first = draw.randrange(len(DIALECTS))
    for number, death in enumerate(Death):
        fitting = _list_dialects(death)
        wanted = fitting if whole else (fitting[(first + number) % len(fitting)],)
        pairs += [(death, dialect) for dialect in wanted]
    pairs.sort(key=lambda pair: pair[0] not in _SLOW)
    asked = [
        Errand(f"q{number:03}x", death, dialect) for number, (death, dialect) in enumerate(pairs)
    ]
    return [*asked, *_plan_conversations(draw, whole=whole)]


def _plan_conversations(draw: Random, *, whole: bool) -> list[Errand]:
    """Every death with every way to answer and kind of agent, or each death once with these in turn."""
    ways: list[tuple[Way, bool]] = [
        (way, streams) for way in ("unary", "stream") for streams in (True, False)
    ]
    first = draw.randrange(len(ways))
    planned: list[Errand] = []
    for number, death in enumerate(CONVERSED):
        for way, streams in ways if whole else (ways[(first + number) % len(ways)],):
            label = f"w{len(planned):03}x"
            planned.append(Errand(label, death, WORDS, way, streams))
    return planned


def _list_dialects(death: Death) -> tuple[str, ...]:
    if death is Death.IN_LAST_OF_GROUP:
        return _GROUPS
    if death is Death.IN_EXPIRY:
        return (OWN,)  # no other dialect has a form for the withdrawal of a request
    if death in FOR_ALWAYS | {Death.IN_ESCALATION}:
        # Text answers hold once, and are those of the principal that the work is done for.
        return tuple(one for one in DIALECTS if one != "schema")
    return DIALECTS
