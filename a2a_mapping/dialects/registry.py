"""The dialects in the order in which they are tried; the first that finds a question has found them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from passerelle.a2a_mapping.dialects import (
    adk,
    agentstack,
    cuga,
    langgraph,
    permission,
    plain_text,
    schema,
    strands,
)
from passerelle.a2a_mapping.dialects.pause import Pause, Reply, read_pause
from passerelle.core.json import JsonObject
from passerelle.core.prompt import PeerPrompt


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one family of peers asks and is answered."""

    name: str
    detect: Callable[[Pause], list[PeerPrompt]]
    encode: Callable[[Sequence[Reply], str, str], JsonObject | None]


DIALECTS: Final = (
    Dialect(permission.NAME, permission.detect, permission.encode),
    Dialect(agentstack.NAME, agentstack.detect, agentstack.encode),
    Dialect(adk.NAME, adk.detect, adk.encode),
    Dialect(strands.NAME, strands.detect, strands.encode),
    Dialect(langgraph.NAME, langgraph.detect, langgraph.encode),
    Dialect(cuga.NAME, cuga.detect, cuga.encode),
    Dialect(schema.NAME, schema.detect, schema.encode),
    Dialect(plain_text.NAME, plain_text.detect, plain_text.encode),
)


def detect(peer: str, task: JsonObject) -> list[PeerPrompt]:
    """The questions of a peer's Task, with the peer's own ids in it; none unless it waits.

    Several questions in one pause are a group: one message has to answer them all.
    """
    pause = read_pause(peer, task)
    if pause is None:
        return []
    found: list[PeerPrompt] = []
    for dialect in DIALECTS:
        found = found or dialect.detect(pause)
    return found


def encode(replies: Sequence[Reply], task: str, context: str) -> JsonObject | None:
    """The message that answers a pause, for the peer's task and context id.

    ``replies`` are all questions of one pause, at least one. None means that the dialect has no words
    for it, and CancelTask takes its place.
    """
    name = replies[0].prompt.dialect
    dialect = next(dialect for dialect in DIALECTS if dialect.name == name)
    return dialect.encode(replies, task, context)
