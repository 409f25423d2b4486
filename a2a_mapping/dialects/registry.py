"""The dialects in the order in which they are tried; the first match determines the dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from passerelle.a2a_mapping.dialects import (
    adk,
    agentstack,
    cuga,
    kagent,
    kagent_parts,
    langgraph,
    mastra,
    permission,
    plain_text,
    schema,
    strands,
)
from passerelle.a2a_mapping.dialects.native import NativeAnswer, keep_native
from passerelle.a2a_mapping.dialects.pause import AgentPause, DecidedQuestion, read_pause
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import JsonObject


@frozen
class Dialect:
    """The questions and answers of one family of agents."""

    name: str
    detect: Callable[[AgentPause], list[PeerPrompt]]
    encode: Callable[[Sequence[DecidedQuestion], str, str], JsonObject | None]
    read: Callable[[JsonObject], list[NativeAnswer]] | None = None
    """Reads a caller's answers in this form; None if the form is the gateway's, or its answers are no decisions."""
    refuses_text: bool = False
    """Whether an agent that waits takes nothing but this form."""


DIALECTS: Final = (
    Dialect(permission.NAME, permission.detect, permission.encode),
    Dialect(agentstack.NAME, agentstack.detect, agentstack.encode, agentstack.read_answers),
    Dialect(kagent.NAME, kagent.detect, kagent.encode, kagent.read_answers),
    Dialect(kagent_parts.NAME, kagent_parts.detect, kagent_parts.encode, refuses_text=True),
    Dialect(adk.NAME, adk.detect, adk.encode, adk.read_answers),
    Dialect(strands.NAME, strands.detect, strands.encode, strands.read_answers, refuses_text=True),
    Dialect(langgraph.NAME, langgraph.detect, langgraph.encode, langgraph.read_answers),
    Dialect(mastra.NAME, mastra.detect, mastra.encode, mastra.read_answers),
    Dialect(cuga.NAME, cuga.detect, cuga.encode),
    Dialect(schema.NAME, schema.detect, schema.encode),
    Dialect(plain_text.NAME, plain_text.detect, plain_text.encode),
)


def detect(peer: str, task: JsonObject) -> list[PeerPrompt]:
    """The questions of an agent's Task, with the agent's own ids; empty unless it waits.

    Several questions in one pause are a group: one message must answer them all.
    """
    pause = read_pause(peer, task)
    if pause is None:
        return []
    found: list[PeerPrompt] = []
    for dialect in DIALECTS:
        found = found or dialect.detect(pause)
    # Some agents report the waiting state later without the question: then the time identifies the pause.
    said_at = pause.at or None
    return [
        one if one.dialect == plain_text.NAME else replace(one, said_at=said_at) for one in found
    ]


def encode(replies: Sequence[DecidedQuestion], task: str, context: str) -> JsonObject | None:
    """The message that answers a pause, for the agent's task and context id.

    ``replies`` are all questions of one pause, at least one. None: the dialect cannot express it, and CancelTask is
    sent instead.
    """
    message = _find(replies[0].prompt.dialect).encode(replies, task, context)
    return None if message is None else keep_native(message, [reply.native for reply in replies])


def refuses_text(dialect: str) -> bool:
    """Whether a waiting agent of this dialect refuses an answer in words: they have to be in its form."""
    return _find(dialect).refuses_text


def _find(name: str) -> Dialect:
    return next(dialect for dialect in DIALECTS if dialect.name == name)


def read_native(message: JsonObject) -> list[NativeAnswer]:
    """The decisions in a caller's message that are in an agent's form; empty for any other message."""
    for dialect in DIALECTS:
        if dialect.read is not None and (found := dialect.read(message)):
            return found
    return []
