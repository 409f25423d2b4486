"""Compares the stored facts of every race with the racers' replies and the agent's messages."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.events import decode_event
from passerelle.core.payloads.approval import (
    ActionRequired,
    ActionResolved,
    ChannelPermissionReturned,
)
from tests.races.plan import Story
from tests.support.proof import read_stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.payloads.approval import ApprovalDecision
    from passerelle.store.store import Store
    from tests.races.agent import Cashier
    from tests.races.racers import RacerReply, Result

_ALLOWED: Final = {"pay": "allowed", "leave": "rejected"}
_OVER: Final = frozenset({"returned", "undeliverable"})
_AGENTS_WILL: Final = frozenset({Story.SUPERSEDE, Story.MOVED_ON, Story.CANCEL})
"""Stories in which the agent may have moved on when the answer to its request is ready."""


@dataclass(slots=True)
class Question:
    """The facts of one approval: its opening, every closing, and the end of each delivery."""

    native: str = ""
    closings: list[ActionResolved] = field(default_factory=list[ActionResolved])
    ends: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Judgement:
    """The result. ``strange`` are the tasks with faults; the rest counts closings and replies."""

    faults: list[str] = field(default_factory=list[str])
    strange: list[str] = field(default_factory=list[str])
    causes: Counter[str] = field(default_factory=Counter[str])
    codes: Counter[str] = field(default_factory=Counter[str])
    winners: Counter[str] = field(default_factory=Counter[str])


async def read_questions(store: Store, sessions: Iterable[str]) -> dict[str, Question]:
    """Every approval of these sessions, by id."""
    found: dict[str, Question] = defaultdict(Question)
    for session in sessions:
        for entry in await read_stream(store.log, session):
            event = decode_event(entry.data, entry.frame, entry.facade)
            question = found[event.fact.scope.action_id or ""]
            match event.fact.payload:
                case ActionRequired(request=request) if request.remote is not None:
                    question.native = (request.remote.native_id or "").partition(" ")[0]
                case ActionResolved() as closing:
                    question.closings.append(closing)
                case ChannelPermissionReturned(direction="delivery", outcome=outcome):
                    question.ends += [outcome] if outcome in _OVER else []
                case _:
                    pass
    return found


def judge(results: Iterable[Result], questions: dict[str, Question], cashier: Cashier) -> Judgement:
    """Compares every race with the facts."""
    judgement = Judgement()
    for result in results:
        label = f"{result.race.label} ({result.race.story})"
        faults = list(result.faults)
        for action_id, replies in result.replies.items():
            question = questions.get(action_id)
            if question is None or len(question.closings) != 1:
                count = len(question.closings) if question else "unknown, not"
                faults.append(f"{action_id} was closed {count} times")
                continue
            decision = question.closings[0].decision
            judgement.causes[decision.cause] += 1
            judgement.codes.update(reply.code for reply in replies)
            judgement.winners.update(reply.device for reply in replies if reply.outcome == "won")
            faults += _judge_replies(decision, replies)
            faults += _judge_return(question, cashier, result.race.story)
        judgement.strange += [result.task_id] if faults else []
        judgement.faults += [f"{label}: {fault}" for fault in faults]
    return judgement


def _judge_replies(decision: ApprovalDecision, replies: list[RacerReply]) -> list[str]:
    """Exactly one racer has won if a person decided, and every racer received the stored decision."""
    won = [reply for reply in replies if reply.outcome == "won"]
    # A racer whose channel was cut before the reply sends its answer again, and the reply reports a repeat.
    won = won or [reply for reply in replies if reply.outcome == "replayed" and reply.was_cut][:1]
    by_answer = decision.source == "answer"
    faults = [f"{len(won)} won, closed by {decision.cause}"] if len(won) != by_answer else []
    stored = {
        "outcome": decision.outcome,
        "optionId": decision.option_id,
        "decidedBy": decision.decided_by,
        "deviceName": decision.device_name,
        "decidedAt": decision.decided_at,
    }
    for reply in replies:
        shown = {name: reply.winner.get(name) for name in stored}
        if reply.outcome == "refused":
            faults.append(f"{reply.device} received {reply.code}: {reply.winner}")
        elif shown != stored:
            faults.append(f"{reply.device} received {reply.code} and {shown}, stored is {stored}")
        elif reply.outcome != "lost" and reply.device != decision.device_name:
            faults.append(f"{reply.device} received that it won, but {decision.device_name} did")
    return faults


def _judge_return(question: Question, cashier: Cashier, story: Story) -> list[str]:
    """One delivery with one end for a pending answer; the agent does what was decided, once, or nothing."""
    closing = question.closings[0]
    decision = closing.decision
    done = cashier.done[question.native]
    faults: list[str] = []
    if len(question.ends) != closing.returns:
        faults.append(f"its answer came to {question.ends}, owed: {closing.returns}")
    if len(cashier.answers[question.native]) > 1:
        faults.append(f"the agent was sent {cashier.answers[question.native]}")
    if question.ends == ["undeliverable"] and story not in _AGENTS_WILL:
        faults.append("its answer could not be returned")
    outcome = "rejected" if decision.outcome == "expired" else decision.outcome
    if done and [_ALLOWED[one] for one in done] != [outcome]:
        faults.append(f"the agent did {done}, decided was {decision.outcome}")
    if not done and story not in _AGENTS_WILL:
        faults.append("the agent has done nothing")
    return faults
