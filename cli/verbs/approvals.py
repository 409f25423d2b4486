"""``passerelle approvals``: lists, explanations, and standing approvals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from passerelle.a2a_mapping.members import object_at, objects_at, text_at, texts_at
from passerelle.cli.verbs.approval_text import RiskWord, describe_judgement
from passerelle.cli.verbs.verb import (
    GatewayLink,
    add_verb,
    flatten,
    format_fields,
    format_rows,
    make_group,
    name_next,
    name_path,
    name_title,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject

_MOST: Final = 1_000
_State = Literal[
    "pending",
    "closed",
    "resolved",
    "allowed",
    "rejected",
    "answered",
    "answered_by_caller",
    "expired",
    "cancelled",
    "superseded",
]
_Kind = Literal["permission", "input", "auth", "confirmation"]

approvals: Final = make_group(
    "Approvals: list, decide, watch; standing approvals, and rules tried on past ones.",
    "approvals list",
)

ActionArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the approval.")]


@add_verb(approvals, "approvals list", "list")
def list_pending(
    link: GatewayLink,
    *,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Highest number of rows.")] = 100,
    kind: Annotated[_Kind | None, typer.Option(help="Only this kind.")] = None,
    risk: Annotated[RiskWord | None, typer.Option(help="Only this risk and above.")] = None,
    task: Annotated[str | None, typer.Option(help="Only those of this task.")] = None,
    state: Annotated[
        _State, typer.Option(help="Pending ones, or those that ended this way.")
    ] = "pending",
    page: Annotated[str | None, typer.Option(help="Token of the next page.")] = None,
    all_owners: Annotated[
        bool, typer.Option("--all-owners", help="Approvals of all owners; needs approvals:oversee.")
    ] = False,
) -> None:
    """List pending approvals, the newest first.

    With --state those that ended, the last to end first.
    """
    query = {"pageSize": limit, "kind": kind, "risk": risk, "taskId": task, "pageToken": page}
    owners = "all" if all_owners else None
    answer = link.read("/v1/approvals", {**query, "state": state, "owners": owners})
    token = text_at(answer, "nextPageToken")
    if all_owners:
        link.print_answer(answer, _list_waiting(objects_at(answer, "pending"), token))
        return
    if state == "pending":
        link.print_answer(answer, _list(objects_at(answer, "pending"), token))
    else:
        link.print_answer(answer, _list_closed(objects_at(answer, "closed"), token))


@add_verb(approvals, "approvals explain act_2f…")
def explain(link: GatewayLink, question: ActionArgument) -> None:
    """Explain why an approval was requested, and how it ended."""
    answer = link.read(name_path("/v1/approvals", question, "explain"))
    link.print_answer(answer, _explain(answer))


@add_verb(approvals, "approvals grants")
def grants(link: GatewayLink) -> None:
    """List standing approvals with their uses, including recently ended ones."""
    answer = link.read("/v1/grants")
    link.print_answer(answer, _list_grants(answer))


@add_verb(approvals, "approvals revoke gr_2f…", changes=True)
def revoke(
    link: GatewayLink,
    grant: Annotated[str, typer.Argument(metavar="GRANT", help="As the list names it.")],
) -> None:
    """Revoke a standing approval; what it has approved already stays approved."""
    answer = link.delete(name_path("/v1/grants", grant))
    link.print_answer(answer, [f"{text_at(answer, 'outcome')}  {grant}"])


@add_verb(approvals, "approvals bypass --seconds 1800", changes=True)
def bypass(
    link: GatewayLink,
    seconds: Annotated[
        int, typer.Option(min=0, max=28_800, help="Duration in seconds; 0 ends it.")
    ] = 3_600,
) -> None:
    """Approve everything for a while, except critical and destructive actions."""
    answer = link.post("/v1/policy/bypass", {"seconds": seconds})
    until = text_at(answer, "until")
    link.print_answer(answer, [f"bypass until {until}" if until else "bypass is off"])


def _list(found: list[JsonObject], token: str) -> Iterator[str]:
    yield from format_rows(
        found,
        {"APPROVAL": "actionId", "RISK": "risk", "EXPIRES": "expiresAt", "TITLE": name_title},
    )
    yield f"approvals: {len(found)} pending{' on this page' if token else ''}"
    yield from name_next(token)


def _list_waiting(found: list[JsonObject], token: str) -> Iterator[str]:
    yield from format_rows(
        found,
        {
            "APPROVAL": "actionId",
            "RISK": "risk",
            "ASKED": "createdAt",
            "EXPIRES": "expiresAt",
            "OWNER": lambda one: flatten(text_at(one, "owner"), 20),
            "FOR": lambda one: flatten(", ".join(texts_at(one, "audience"))),
        },
    )
    yield f"approvals: {len(found)} pending{' on this page' if token else ''}"
    yield from name_next(token)


def _list_closed(found: list[JsonObject], token: str) -> Iterator[str]:
    yield from format_rows(
        found,
        {
            "APPROVAL": "actionId",
            "ENDED": "state",
            "BY": "decision.decidedBy",
            "AT": "decision.decidedAt",
            "TITLE": name_title,
        },
    )
    yield f"approvals: {len(found)} ended{' on this page' if token else ''}"
    yield from name_next(token)


def _describe(view: JsonObject) -> Iterator[str]:
    names = ("actionId", "state", "title", "actionType", "risk", "peer", "taskId", "expiresAt")
    yield from format_fields([(name, text_at(view, name)) for name in names])
    for option in objects_at(view, "options"):
        yield f"option  {text_at(option, 'optionId')}: {text_at(option, 'name')}"
    decision = object_at(view, "decision")
    if decision:
        cells = (text_at(decision, name) for name in ("outcome", "cause", "decidedBy", "decidedAt"))
        yield f"decided {'  '.join(cells)}"


def _explain(answer: JsonObject) -> Iterator[str]:
    yield from _describe(object_at(answer, "action"))
    judged = object_at(answer, "evaluation")
    if judged:
        yield ""
        yield from describe_judgement(judged)
    yield ""
    for fact in objects_at(answer, "facts"):
        yield f"{fact.get('sequence')}  {text_at(fact, 'at')}  {text_at(fact, 'type')}"


def _list_grants(answer: JsonObject) -> Iterator[str]:
    found = objects_at(answer, "grants")
    yield from format_rows(
        found,
        {
            "GRANT": "grantId",
            "STATE": "state",
            "WHERE": "scope",
            "USES": lambda one: f"{one.get('uses', 0)}/{one.get('maxUses', '-')}",
            "EXPIRES": "expiresAt",
            "AGENT": lambda one: text_at(one, "peer") or "every agent",
            "WHAT": lambda one: text_at(one, "tool") or "the same subject",
        },
    )
    until = text_at(answer, "bypassUntil")
    if until:
        yield f"bypass until {until}"
    live = sum(text_at(one, "state") == "live" for one in found)
    yield f"grants: {live} of {len(found)} valid"
