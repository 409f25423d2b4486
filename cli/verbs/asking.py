"""Verbs of ``passerelle approvals`` for whoever asks: what would policy say, and a question that is taken back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import typer

from passerelle.a2a_mapping.members import object_at, text_at, texts_at
from passerelle.cli.verbs.approval_text import RiskWord, describe_judgement
from passerelle.cli.verbs.link import Link, name_path
from passerelle.cli.verbs.verb import add_verb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import Json, JsonObject

asking: Final = typer.Typer()

_PATH: Final = "/v1/approvals"
_About = Literal["asks", "calls", "delegations", "commands"]


@add_verb(asking, "approvals evaluate --agent payments --tool pay --args '{\"amount\": 40}'")
def evaluate(
    link: Link,
    *,
    about: Annotated[_About, typer.Option(help="What the rules are about.")] = "asks",
    agent: Annotated[str | None, typer.Option(help="The agent that asks, or is called.")] = None,
    text: Annotated[str | None, typer.Option(help="What an agent would be sent.")] = None,
    action_type: Annotated[
        str | None, typer.Option(help="Such as tool_call, command, file_change, network.")
    ] = None,
    tool: Annotated[str | None, typer.Option(help="Name of the tool, or of the command.")] = None,
    args: Annotated[str | None, typer.Option(help="Its arguments, a JSON object.")] = None,
    command: Annotated[str | None, typer.Option(help="A command line.")] = None,
    path: Annotated[str | None, typer.Option(help="A file.")] = None,
    host: Annotated[str | None, typer.Option(help="A host.")] = None,
    risk: Annotated[
        RiskWord | None, typer.Option(help="How grave whoever asks says it is.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="The task: grants may hold for it.")] = None,
    destructive: Annotated[
        bool, typer.Option("--destructive", help="It says that it destroys something.")
    ] = False,
) -> None:
    """Say what policy would decide, and why; nothing is written or asked."""
    subject: dict[str, Json] = {
        "tool": tool,
        "arguments": None if args is None else _read_args(args),
        "command": command,
        "path": path,
        "host": host,
    }
    judged = link.post(
        name_path(_PATH, "evaluate"),
        {
            "about": about,
            "agent": agent,
            "text": text,
            "actionType": action_type or ("command" if command else None),
            "subject": {name: one for name, one in subject.items() if one is not None},
            "risk": risk,
            "destructive": destructive,
            "taskId": task,
        },
    )
    link.tell(judged, _judge(judged))


@add_verb(asking, "approvals cancel act_2f… --token-env WORKER_KEY")
def cancel(
    link: Link,
    question: Annotated[str, typer.Argument(metavar="ID", help="Id of the question.")],
) -> None:
    """Take back an open question, as whoever asked; others deny it."""
    told = link.post(name_path(_PATH, question, "cancel"))
    link.tell(told, [f"{text_at(object_at(told, 'action'), 'state')}  {question}"])


def _read_args(text: str) -> JsonObject:
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"is no JSON: {error}", param_hint="--args") from None
    if not isinstance(found, dict):
        raise typer.BadParameter("is no JSON object", param_hint="--args")
    return cast("JsonObject", found)


def _judge(judged: JsonObject) -> Iterator[str]:
    yield from describe_judgement(judged)
    reasons = "; ".join(texts_at(judged, "riskReasons"))
    yield f"risk: {text_at(judged, 'risk')}{f' ({reasons})' if reasons else ''}"
    yield f"policy: {text_at(judged, 'policyVersion')}"
