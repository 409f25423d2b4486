"""Verbs of ``passerelle approvals`` for requesters of approvals, and for muting the pushes of an agent.

A requester can evaluate policy in advance, and withdraw an approval.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import typer

from passerelle.a2a_mapping.members import object_at, text_at, texts_at
from passerelle.cli.verbs.approval_text import RiskWord, describe_judgement
from passerelle.cli.verbs.verb import GatewayLink, add_verb, name_path
from passerelle.core.agent_name import find_base

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import Json, JsonObject

asking: Final = typer.Typer()

_PATH: Final = "/v1/approvals"
_About = Literal["asks", "calls", "delegations", "commands"]


@add_verb(asking, "approvals evaluate --agent payments --tool pay --args '{\"amount\": 40}'")
def evaluate(
    link: GatewayLink,
    *,
    about: Annotated[_About, typer.Option(help="What the rules are about.")] = "asks",
    agent: Annotated[str | None, typer.Option(help="The agent that asks, or is called.")] = None,
    text: Annotated[str | None, typer.Option(help="The message to the agent.")] = None,
    action_type: Annotated[
        str | None, typer.Option(help="Such as tool_call, command, file_change, network.")
    ] = None,
    tool: Annotated[str | None, typer.Option(help="Name of the tool, or of the command.")] = None,
    args: Annotated[str | None, typer.Option(help="Its arguments, a JSON object.")] = None,
    command: Annotated[str | None, typer.Option(help="A command line.")] = None,
    path: Annotated[str | None, typer.Option(help="A file.")] = None,
    host: Annotated[str | None, typer.Option(help="A host.")] = None,
    risk: Annotated[RiskWord | None, typer.Option(help="The risk that the caller states.")] = None,
    task: Annotated[
        str | None, typer.Option(help="The task, for grants that are limited to it.")
    ] = None,
    destructive: Annotated[
        bool, typer.Option("--destructive", help="The caller states that it is destructive.")
    ] = False,
) -> None:
    """Show what policy would decide, and why; nothing is recorded."""
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
    link.print_answer(judged, _judge(judged))


@add_verb(asking, "approvals cancel act_2f… --token-env WORKER_KEY")
def cancel(
    link: GatewayLink,
    question: Annotated[str, typer.Argument(metavar="ID", help="Id of the approval.")],
) -> None:
    """Withdraw a pending approval that you requested; others deny it."""
    result = link.post(name_path(_PATH, question, "cancel"))
    link.print_answer(result, [f"{text_at(object_at(result, 'action'), 'state')}  {question}"])


def _read_args(text: str) -> JsonObject:
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"is not valid JSON: {error}", param_hint="--args") from None
    if not isinstance(found, dict):
        raise typer.BadParameter("is not a JSON object", param_hint="--args")
    return cast("JsonObject", found)


def _judge(judged: JsonObject) -> Iterator[str]:
    yield from describe_judgement(judged)
    reasons = "; ".join(texts_at(judged, "riskReasons"))
    yield f"risk: {text_at(judged, 'risk')}{f' ({reasons})' if reasons else ''}"
    yield f"policy: {text_at(judged, 'policyVersion')}"


_MUTES_PATH: Final = "/v1/mutes"
MOST_MIN: Final = 480

mutes: Final = typer.Typer()

AgentArgument = Annotated[
    str, typer.Argument(metavar="AGENT", help="The agent, with all of its tenants.")
]
MuteFlag = Annotated[
    int | None,
    typer.Option(
        "--mute",
        min=1,
        max=MOST_MIN,
        metavar="MINUTES",
        help="Also mute pushes for this agent, except at high risk.",
    ),
]


@add_verb(mutes, "approvals mute echo --minutes 60", changes=True)
def mute(
    link: GatewayLink,
    agent: AgentArgument,
    minutes: Annotated[int, typer.Option(min=1, max=MOST_MIN, help="Duration in minutes.")] = 60,
) -> None:
    """Send no pushes for an agent's approvals, except at high risk.

    It decides nothing: approvals stay in the inbox and expire as usual.
    """
    result = link.put(name_path(_MUTES_PATH, find_base(agent)), {"minutes": minutes})
    link.print_answer(
        result, [f"muted  {text_at(result, 'peer')}  until {text_at(result, 'until')}"]
    )


@add_verb(mutes, "approvals unmute echo", changes=True)
def unmute(link: GatewayLink, agent: AgentArgument) -> None:
    """Send pushes for an agent's approvals again."""
    result = link.delete(name_path(_MUTES_PATH, find_base(agent)))
    link.print_answer(result, [f"not muted  {text_at(result, 'peer')}"])


@add_verb(mutes, "approvals mutes", "mutes")
def list_mutes(link: GatewayLink) -> None:
    """List the agents that are muted now."""
    result = link.read(_MUTES_PATH)
    link.print_list(result, "mutes", {"AGENT": "peer", "UNTIL": "until"})
