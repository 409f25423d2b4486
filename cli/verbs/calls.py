"""``passerelle call``: a message to an agent as any A2A caller sends it, and the answer as text."""

from __future__ import annotations

import json
import secrets
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

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
    link.tell(answer, _say_answer(answer))
    if found := object_at(answer, "task"):
        _finish(agent, found)


def _say_answer(answer: JsonObject) -> Iterator[str]:
    """What the agent brought; where it brought nothing, what it said."""
    task = object_at(answer, "task")
    said = object_at(object_at(task, "status"), "message") if task else object_at(answer, "message")
    for holder in objects_at(task, "artifacts") or [said]:
        parts = objects_at(holder, "parts")
        for part in parts:
            if "text" in part:
                yield from text_at(part, "text").splitlines()
            elif holder is not said:
                yield _describe_part(part)


def _describe_part(part: JsonObject) -> str:
    if "data" in part:
        return json.dumps(part["data"], ensure_ascii=False)
    named = text_at(part, "filename") or text_at(part, "url") or text_at(part, "mediaType")
    return f"({named or 'a file'}; --json shows it)"


def _finish(agent: str, task: JsonObject) -> None:
    state = text_at(object_at(task, "status"), "state").removeprefix("TASK_STATE_")
    word = state.lower().replace("_", " ")
    task_id = text_at(task, "id")
    # In one terminal the answer stands before its state.
    sys.stdout.flush()
    print(f"{escape_line(task_id)}  {escape_line(word)}", file=sys.stderr)
    if word in _ASKS:
        words = shlex.join(["passerelle", "call", agent, "--task", task_id])
        print(f"passerelle: hint: answer it with {words} TEXT", file=sys.stderr)
    if word in _BAD:
        raise typer.Exit(ExitStatus.REMOTE)
