"""``passerelle tasks bulk``: one verb for all tasks that match a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.cli.verbs.verb import GatewayLink, add_verb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import Json, JsonObject

bulk_verb: Final = typer.Typer()


@add_verb(
    bulk_verb,
    "tasks bulk cancel --agent echo --status running --expect 12 --reason 'wrong input'",
    changes=True,
)
def bulk(  # noqa: PLR0917  the flags of a verb
    link: GatewayLink,
    verb: Annotated[
        Literal["cancel", "pause", "resume", "retry"],
        typer.Argument(metavar="VERB", help="cancel, pause, resume or retry."),
    ],
    expect: Annotated[
        int, typer.Option(min=0, help="Expected number of tasks; otherwise nothing is changed.")
    ],
    status: Annotated[
        list[str] | None, typer.Option(help="Only in this status; may be repeated.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only for this agent.")] = None,
    session: Annotated[str | None, typer.Option(help="Only of this session.")] = None,
    text: Annotated[str | None, typer.Option(help="Only with this text in the title.")] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="This task, with no other filter; may be given again."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only since: 2026-01-31T12:00:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only before.")] = None,
    reason: Annotated[str | None, typer.Option(help="Reason.")] = None,
) -> None:
    """Cancel, pause, resume or retry every task that the flags match.

    Nothing is changed if the number of matching tasks differs from --expect: run tasks list first.
    """
    members: dict[str, Json] = {
        "status": [*status] if status else None,
        "agent": agent,
        "sessionId": session,
        "text": text,
        "taskIds": [*task] if task else None,
        "since": since,
        "until": until,
    }
    given: JsonObject = {name: value for name, value in members.items() if value is not None}
    body: dict[str, Json] = {"verb": verb, "filter": given, "expect": expect, "reason": reason}
    answer = link.post("/v1/tasks:bulk", body)
    link.print_answer(answer, _describe(answer))


def _describe(answer: JsonObject) -> Iterator[str]:
    yield f"{text_at(answer, 'verb')}: {answer.get('changed')} of {answer.get('matched')} tasks"
    for one in objects_at(answer, "unchanged"):
        yield "  ".join(text_at(one, name) for name in ("taskId", "code", "message"))
