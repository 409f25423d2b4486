"""Where a gateway dies in the life of a question, and in which dialect the question is asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

if TYPE_CHECKING:
    from random import Random

    from passerelle.core.json import JsonObject

_VECTORS: Final = Path(__file__).parents[1] / "vectors" / "dialects.json"
OWN: Final = "permission"


class Death(StrEnum):
    """A moment that a proxy can see, at the store or at the agent."""

    BEFORE_OPEN = "before the question is stored"
    AFTER_OPEN = "after the question is stored"
    BEFORE_INBOX = "before the question is in the inbox"
    AFTER_INBOX = "after the question is in the inbox"
    BEFORE_RESOLVE = "before the answer is stored"
    AFTER_RESOLVE = "after the answer is stored, before anybody is told"
    AFTER_CLAIM = "after the attempt to return it is stored"
    BEFORE_ARRIVAL = "after the look at the agent, before the answer arrives"
    AFTER_ARRIVAL = "after the answer has arrived, before the agent's word"
    BEFORE_RETURNED = "after the agent's word, before it is stored"
    IN_EXPIRY = "before the end of the question is stored"
    IN_LAST_OF_GROUP = "before the last answer of a group is stored"
    IN_SUPERSEDE = "before the next question is stored in its place"
    STORE = "with the store, right after the answer is stored"


Where: TypeAlias = Literal["write", "reply", "call", "answer"]

PLACES: Final[dict[Death, tuple[Where, tuple[bytes, ...]]]] = {
    Death.BEFORE_OPEN: ("write", (b'"action.required"',)),
    Death.AFTER_OPEN: ("reply", (b'"action.required"',)),
    Death.BEFORE_INBOX: ("write", (b'"inbox":[{',)),
    Death.AFTER_INBOX: ("reply", (b'"inbox":[{',)),
    Death.BEFORE_RESOLVE: ("write", (b'"action.resolved"', b'"answer"')),
    Death.AFTER_RESOLVE: ("reply", (b'"action.resolved"', b'"answer"')),
    Death.AFTER_CLAIM: ("reply", (b'"channel.permission_returned"', b'"returning"')),
    Death.BEFORE_ARRIVAL: ("call", ()),
    Death.AFTER_ARRIVAL: ("answer", ()),
    Death.BEFORE_RETURNED: ("write", (b'"channel.permission_returned"', b'"outcome":"returned"')),
    Death.IN_EXPIRY: ("write", (b'"action.resolved"', b'"expired"')),
    Death.IN_LAST_OF_GROUP: ("write", (b'"action.resolved"', b'"owed"')),
    Death.IN_SUPERSEDE: ("write", (b'"action.required"', b'"superseded"')),
    Death.STORE: ("reply", (b'"action.resolved"', b'"answer"')),
}
"""What passes there: bytes of the label, and all of these."""

_SAYS: Final = {
    "adk": ("one confirmation of a tool call", "delete_rows"),
    "agentstack": ("an approval in the metadata", "delete_rows"),
    "strands": ("an interrupt that is an approval by its name", '"delete"'),
    "langgraph": ("one tool call to be reviewed", '"send"'),
    "cuga": ("an action that waits to be confirmed", '"book"'),
    "schema": ("a form to be filled in", "Which colour?"),
}
DIALECTS: Final = (OWN, *_SAYS)
_GROUP: Final = ("adk", "two confirmations in one message", '"pay"')
_ONLY_OWN: Final = frozenset({Death.IN_EXPIRY, Death.IN_SUPERSEDE})


@dataclass(frozen=True, slots=True)
class Errand:
    """One question of one task; ``label`` stands in whatever is said and stored of it."""

    label: str
    death: Death
    dialect: str


def plan(draw: Random, *, whole: bool) -> list[Errand]:
    """Every death in every dialect, or each once with the dialects in turn."""
    pairs: list[tuple[Death, str]] = []
    first = draw.randrange(len(DIALECTS))
    for number, death in enumerate(Death):
        dialects = DIALECTS if whole else (DIALECTS[(first + number) % len(DIALECTS)],)
        if death is Death.IN_LAST_OF_GROUP:
            dialects = (_GROUP[0],)
        elif death in _ONLY_OWN:
            dialects = (OWN,)
        pairs += [(death, dialect) for dialect in dialects]
    return [
        Errand(f"q{number:03}x", death, dialect) for number, (death, dialect) in enumerate(pairs)
    ]


def read_pause(errand: Errand) -> JsonObject:
    """The Task with which an agent of the dialect asks, with the label in what it asks; own questions are made."""
    says, token = _SAYS[errand.dialect]
    if errand.death is Death.IN_LAST_OF_GROUP:
        _, says, token = _GROUP
    for vector in cast("list[JsonObject]", json.loads(_VECTORS.read_text("utf-8"))):
        if (vector["dialect"], vector["says"]) == (errand.dialect, says):
            labelled = token.replace(token.strip('"'), errand.label)
            text = json.dumps(vector["task"]).replace(token, labelled)
            return cast("JsonObject", json.loads(text))
    raise LookupError(says)
