"""``passerelle turns``: the waiting turns of a thread, their order, and the policy for further messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from passerelle.a2a_mapping.members import objects_at, text_at, texts_at
from passerelle.cli.verbs.verb import GatewayLink, add_verb, format_rows, make_group, name_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject

turns: Final = make_group(
    "Turns that wait in a thread: list, promote, remove, policy.", "turns list th_2f…"
)

ThreadArgument = Annotated[str, typer.Argument(metavar="THREAD", help="Id of the thread.")]
TurnArgument = Annotated[str, typer.Argument(metavar="TURN", help="Id of the turn that waits.")]
PolicyArgument = Annotated[
    Literal["parallel", "queue", "reject", "interrupt"],
    typer.Argument(metavar="POLICY", help="parallel, queue, reject or interrupt."),
]
_PATH: Final = "/v1/threads"


@add_verb(turns, "turns list th_2f…", "list")
def list_all(link: GatewayLink, thread: ThreadArgument) -> None:
    """List the waiting turns of a thread in order.

    Below them are turns that have started and wait for an approval.
    """
    answer = link.read(name_path(_PATH, thread, "queue"))
    link.print_answer(answer, describe_queue(answer))


@add_verb(turns, "turns promote th_2f… turn_2f…", changes=True)
def promote(link: GatewayLink, thread: ThreadArgument, turn: TurnArgument) -> None:
    """Move a waiting turn to the front."""
    answer = link.post(name_path(_PATH, thread, "queue", turn, "promote"))
    link.print_answer(answer, describe_queue(answer))


@add_verb(turns, "turns remove th_2f… turn_2f…", changes=True)
def remove(link: GatewayLink, thread: ThreadArgument, turn: TurnArgument) -> None:
    """Remove a waiting turn; its task is cancelled."""
    answer = link.delete(name_path(_PATH, thread, "queue", turn))
    link.print_answer(answer, describe_queue(answer))


@add_verb(turns, "turns policy th_2f… queue", changes=True)
def policy(link: GatewayLink, thread: ThreadArgument, wanted: PolicyArgument) -> None:
    """Set the policy for messages to a thread that is working.

    They start concurrently (parallel), wait (queue), are refused (reject), or stop the
    running work (interrupt).
    """
    answer = link.post(name_path(_PATH, thread, "queue", "policy"), {"policy": wanted})
    link.print_answer(answer, describe_queue(answer))


def describe_queue(queue: JsonObject) -> Iterator[str]:
    """Formats one line per waiting turn, then per turn that waits for an approval, then the counts."""
    waiting = objects_at(queue, "turns")
    yield from format_rows(
        waiting,
        {
            "PLACE": "position",
            "TURN": "turnId",
            "TASK": "taskId",
            "AGENT": "agent",
            "SINCE": "since",
            "STATE": "resumeState",
        },
    )
    gated = objects_at(queue, "gated")
    for one in gated:
        rules = texts_at(one, "rules")
        required_by = f" (rule {', '.join(rules)})" if rules else ""
        yield f"{text_at(one, 'turnId')} waits for approval {text_at(one, 'actionId')}{required_by}"
    active = len(texts_at(queue, "activeTurns"))
    approval = f", {len(gated)} for approval" if gated else ""
    yield f"policy {text_at(queue, 'policy')}, {active} under way, {len(waiting)} waiting{approval}"
