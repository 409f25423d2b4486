"""Verbs of ``passerelle approvals`` that show and decide an approval."""

from __future__ import annotations

import secrets
import sys
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.cli.verbs.approval_text import describe_audit, describe_question
from passerelle.cli.verbs.questions import MuteFlag
from passerelle.cli.verbs.verb import GatewayLink, add_verb, name_path
from passerelle.core.errors import Forbidden, StaleAnswer

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject

_PATH: Final = "/v1/approvals"
_MAX_CONTENT_BYTES: Final = 1024 * 1024
_HIGH_RISK: Final = frozenset({"high", "critical"})

answers: Final = typer.Typer()

QuestionArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the approval.")]
OptionFlag = Annotated[
    str | None, typer.Option("--option", help="Id of the option, if there are several.")
]
CommentFlag = Annotated[str | None, typer.Option(help="Comment, recorded with the decision.")]
DigestFlag = Annotated[
    str | None,
    typer.Option(help="Only if the approval still has this digest; skips the confirmation."),
]


@add_verb(answers, "approvals show act_2f…")
def show(link: GatewayLink, question: QuestionArgument) -> None:
    """Show an approval in full, with its options and its decision."""
    answer = link.read(name_path(_PATH, question))
    link.print_answer(
        answer, describe_question(answer if link.as_json else _read_whole(link, answer))
    )


@add_verb(answers, "approvals allow act_2f… --comment 'as agreed'")
def allow(
    link: GatewayLink,
    question: QuestionArgument,
    option: OptionFlag = None,
    comment: CommentFlag = None,
    digest: DigestFlag = None,
) -> None:
    """Approve.

    At high risk the whole approval is shown and has to be confirmed; with --digest it need not be.
    """
    view = link.read(name_path(_PATH, question))
    _check_digest(view, digest)
    if digest is None:
        _confirm_high_risk(link, view)
    _decide(link, view, option or _find_option(view, ("allow_once",)), comment)


@add_verb(answers, "approvals deny act_2f…")
def deny(
    link: GatewayLink,
    question: QuestionArgument,
    option: OptionFlag = None,
    comment: CommentFlag = None,
    digest: DigestFlag = None,
    mute: MuteFlag = None,
) -> None:
    """Reject."""
    view = link.read(name_path(_PATH, question))
    _check_digest(view, digest)
    chosen = option or _find_option(view, ("reject_once", "reject_always", "cancel"))
    _decide(link, view, chosen, comment, mute_min=mute)


@add_verb(answers, "approvals answer act_2f… 'the blue one'")
def answer(
    link: GatewayLink,
    question: QuestionArgument,
    words: Annotated[str, typer.Argument(metavar="WORDS", help="The answer.")],
    option: OptionFlag = None,
) -> None:
    """Answer an approval that asks for text."""
    view = link.read(name_path(_PATH, question))
    chosen = option or _find_option(view, ("answer",))
    _decide(link, view, chosen, None, {"text": words})


@add_verb(answers, "approvals retry-return act_2f…", "retry-return")
def retry_return(link: GatewayLink, question: QuestionArgument) -> None:
    """Retry delivery of a decision to the agent."""
    result = link.post(name_path(_PATH, question, "return"))
    link.print_answer(result, [f"{text_at(result, 'delivery')}  {question}"])


@add_verb(answers, "approvals audit act_2f…")
def audit(
    link: GatewayLink,
    question: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="An approval; default: the events of devices."),
    ] = None,
) -> None:
    """Show every recorded event of an approval, and whether the record is complete."""
    result = link.read("/v1/audit", {"actionId": question})
    link.print_answer(result, describe_audit(result))
    if text_at(object_at(result, "proof"), "state") == "broken":
        raise typer.Exit(1)


def sign_answer(link: GatewayLink, body: dict[str, Json], action: str) -> dict[str, Json]:
    """Adds the signature of this machine, if it is a paired device."""
    from passerelle.permission_bridge.devices.own_device import is_device

    data_dir = link.find_local().data_dir
    if not is_device(data_dir):
        return body

    from passerelle.core.approval.signed_decision import compose_decision
    from passerelle.core.commands import RespondAction
    from passerelle.core.wire.codec import from_wire
    from passerelle.permission_bridge.devices.device_keys import load_own_device

    own = load_own_device(data_dir)
    if own is None:
        return body
    command = from_wire(RespondAction, {**body, "actionId": action})
    iat = time.time_ns() // 1_000_000  # noqa: TID251  the clock of the device, which is this machine
    value = own.sign(compose_decision(command, command.option_id, own.device_id, iat))
    signature: dict[str, Json] = {"deviceId": own.device_id, "value": value, "iat": iat}
    return {**body, "signature": signature}


def _decide(
    link: GatewayLink,
    view: JsonObject,
    option: str,
    comment: str | None,
    content: JsonObject | None = None,
    mute_min: int | None = None,
) -> None:
    action = text_at(view, "actionId")
    body: dict[str, Json] = {
        "rev": view.get("rev"),
        "digest": text_at(view, "digest"),
        "optionId": option,
        "decisionId": f"dec_{secrets.token_hex(16)}",
        **({"comment": comment} if comment else {}),
        **({"content": content} if content else {}),
        **({"muteMinutes": mute_min} if mute_min else {}),
    }
    signed = sign_answer(link, body, action)
    result = link.post(name_path(_PATH, action, "decision"), signed, key=str(body["decisionId"]))
    link.print_answer(result, [_describe_outcome(result)])


def _read_whole(link: GatewayLink, view: JsonObject) -> JsonObject:
    """Returns the approval with its full content if the view was truncated and the content is not too large."""
    subject = object_at(view, "subject")
    size = subject.get("bytes")
    if "contentDigest" not in subject or not isinstance(size, int) or size > _MAX_CONTENT_BYTES:
        return view
    whole = link.read(name_path(_PATH, text_at(view, "actionId"), "content"))
    return {**view, "subject": {**subject, "content": object_at(whole, "content")}}


def _describe_outcome(result: JsonObject) -> str:
    outcome = text_at(result, "outcome")
    if outcome == "vote_recorded":
        return f"vote recorded: {result.get('votes')} of {result.get('need')}"
    decision = object_at(result, "decision")
    return f"{outcome}  {text_at(decision, 'outcome')}  {text_at(decision, 'decidedAt')}"


def _check_digest(view: JsonObject, digest: str | None) -> None:
    if digest is not None and text_at(view, "digest") != digest:
        raise StaleAnswer("digest_mismatch", "--digest")


def _confirm_high_risk(link: GatewayLink, view: JsonObject) -> None:
    """At high risk, shows the whole approval and asks for confirmation. The gateway refuses a closed one."""
    if text_at(view, "risk") not in _HIGH_RISK or text_at(view, "state") != "pending":
        return
    if not sys.stdin.isatty():
        raise Forbidden(
            "at high risk pass the --digest of the approval as read, or decide in a terminal"
        )
    if not link.as_json:
        link.print_answer(view, describe_question(view))
    if not typer.confirm("Allow this?", default=False, err=True):
        raise typer.Abort


def _find_option(view: JsonObject, kinds: tuple[str, ...]) -> str:
    """Returns the first option of the kinds, in their order."""
    offered = objects_at(view, "options")
    for kind in kinds:
        for one in offered:
            if text_at(one, "kind") == kind:
                return text_at(one, "optionId")
    names = ", ".join(f"{text_at(one, 'optionId')} ({text_at(one, 'kind')})" for one in offered)
    raise typer.BadParameter(
        f"the approval has no option of that kind; options: {names}", param_hint="--option"
    )
