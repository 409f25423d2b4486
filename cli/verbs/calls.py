"""``passerelle call``: sends a message to an agent over A2A and prints the response as text."""

from __future__ import annotations

import json
import secrets
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.cli.exit_status import ExitStatus
from passerelle.cli.verbs.short_ids import expand_id
from passerelle.cli.verbs.tasks import ContextFlag, TextArgument, read_text
from passerelle.cli.verbs.verb import GatewayLink, add_verb, name_path
from passerelle.core.wire.display import escape_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject

calls: Final = typer.Typer()

_BAD: Final = frozenset({"failed", "rejected", "canceled"})
_ASKS: Final = frozenset({"input required", "auth required"})
_TYPED: Final = frozenset({"permission", "confirmation"})
"""Kinds of approvals that a text message cannot decide."""


@add_verb(calls, 'call echo "say hello"', "call", changes=True)
def call(
    link: GatewayLink,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Name of the agent.")],
    text: TextArgument,
    task: Annotated[
        str | None, typer.Option(help="Answer this task, which waits for input.")
    ] = None,
    context: ContextFlag = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds to wait for the answer; the task continues.")
    ] = 300.0,
) -> None:
    """Call an agent and print its answer.

    The answer goes to standard output, the task and its state to standard error.
    """
    message: JsonObject = {
        "messageId": f"cli-{secrets.token_hex(12)}",
        "role": "ROLE_USER",
        "parts": [{"text": read_text(text)}],
    }
    gateway = link.open()
    if task is not None:
        message["taskId"] = expand_id(gateway, "tasks", task)
    if context is not None:
        message["contextId"] = context
    path = f"{name_path('/agents', agent)}/message:send"
    answer = gateway.call_agent(path, {"message": message}, link.key, timeout)
    link.print_answer(answer, describe_answer(answer))
    if found := object_at(answer, "task"):
        _finish(agent, found)


def describe_answer(answer: JsonObject) -> Iterator[str]:
    """Formats the output of the agent; also its message if it has no artifact, needs input, or failed.

    The chunks of an artifact are joined as received. Each part of a message is one line. Data parts in a task's message
    are omitted.
    """
    task = object_at(answer, "task")
    if not task:
        for part in objects_at(object_at(answer, "message"), "parts"):
            yield from _describe_parts([part])
        return
    artifacts = objects_at(task, "artifacts")
    for one in artifacts:
        yield from _describe_parts(objects_at(one, "parts"))
    if not artifacts or _name_state(task) in _BAD | _ASKS:
        for part in objects_at(object_at(object_at(task, "status"), "message"), "parts"):
            yield from text_at(part, "text").splitlines()


def _describe_parts(parts: list[JsonObject]) -> Iterator[str]:
    text = ""
    for part in parts:
        if "text" in part:
            text += text_at(part, "text")
        else:
            yield from text.splitlines()
            text = ""
            yield _describe_part(part)
    yield from text.splitlines()


def _describe_part(part: JsonObject) -> str:
    if "data" in part:
        return json.dumps(part["data"], ensure_ascii=False)
    named = text_at(part, "filename") or text_at(part, "url") or text_at(part, "mediaType")
    return f"({named or 'a file'}; --json shows it)"


def _finish(agent: str, task: JsonObject) -> None:
    word = _name_state(task)
    task_id = text_at(task, "id")
    # on a terminal, print the output before the state
    sys.stdout.flush()
    print(f"{escape_line(task_id)}  {escape_line(word)}", file=sys.stderr)
    if word in _ASKS:
        print(f"passerelle: hint: {describe_next_step(agent, task)}", file=sys.stderr)
    if word in _BAD:
        raise typer.Exit(ExitStatus.REMOTE)


def describe_next_step(agent: str, task: JsonObject) -> str:
    """Returns how to continue a waiting task: an approval needs a decision, other questions a text."""
    parts = objects_at(object_at(object_at(task, "status"), "message"), "parts")
    forms = [object_at(object_at(part, "data"), PERMISSION) for part in parts]
    typed = [one for one in forms if text_at(one, "kind") in _TYPED]
    if typed:
        words = shlex.join(["passerelle", "approvals", "show", text_at(typed[0], "action_id")])
        return f"{words} shows what is asked; approvals allow or deny decides it"
    words = shlex.join(["passerelle", "call", agent, "--task", text_at(task, "id")])
    return f"answer it with {words} TEXT"


def _name_state(task: JsonObject) -> str:
    state = text_at(object_at(task, "status"), "state").removeprefix("TASK_STATE_")
    return state.lower().replace("_", " ")
