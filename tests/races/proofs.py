"""What the store says of every race, held against what the racers were told and what the agent was sent."""

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
    from tests.races.racers import Result, Told

_ALLOWED: Final = {"pay": "allowed", "leave": "rejected"}
_OVER: Final = frozenset({"returned", "undeliverable"})
_AGENTS_WILL: Final = frozenset({Story.SUPERSEDE, Story.MOVED_ON, Story.CANCEL})
"""Stories in which the agent may be past its question when the answer to it is ready."""


@dataclass(slots=True)
class Question:
    """The facts of one question: how it was opened, every closing, and the end of each way back."""

    native: str = ""
    closings: list[ActionResolved] = field(default_factory=list[ActionResolved])
    ends: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Judgement:
    """What was found. ``strange`` are the tasks with faults; the rest counts closings, and what racers were told."""

    faults: list[str] = field(default_factory=list[str])
    strange: list[str] = field(default_factory=list[str])
    causes: Counter[str] = field(default_factory=Counter[str])
    told: Counter[str] = field(default_factory=Counter[str])
    winners: Counter[str] = field(default_factory=Counter[str])


async def read_questions(store: Store, sessions: Iterable[str]) -> dict[str, Question]:
    """Every question of these sessions, by its id."""
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
    """Holds every race against the facts."""
    judgement = Judgement()
    for result in results:
        label = f"{result.race.label} ({result.race.story})"
        faults = list(result.faults)
        for action_id, tolds in result.tolds.items():
            question = questions.get(action_id)
            if question is None or len(question.closings) != 1:
                count = len(question.closings) if question else "unknown, not"
                faults.append(f"{action_id} was closed {count} times")
                continue
            decision = question.closings[0].decision
            judgement.causes[decision.cause] += 1
            judgement.told.update(told.code for told in tolds)
            judgement.winners.update(told.device for told in tolds if told.outcome == "won")
            faults += _judge_tolds(decision, tolds)
            faults += _judge_return(question, cashier, result.race.story)
        judgement.strange += [result.task_id] if faults else []
        judgement.faults += [f"{label}: {fault}" for fault in faults]
    return judgement


def _judge_tolds(decision: ApprovalDecision, tolds: list[Told]) -> list[str]:
    """Exactly one has won if a person did, and everybody was told of the decision that is stored."""
    won = [told for told in tolds if told.outcome == "won"]
    # Whose channel was cut before it was told sends its answer again, and is told that it is known.
    won = won or [told for told in tolds if told.outcome == "replayed" and told.was_cut][:1]
    by_answer = decision.source == "answer"
    faults = [f"{len(won)} won, closed by {decision.cause}"] if len(won) != by_answer else []
    stored = {
        "outcome": decision.outcome,
        "optionId": decision.option_id,
        "decidedBy": decision.decided_by,
        "deviceName": decision.device_name,
        "decidedAt": decision.decided_at,
    }
    for told in tolds:
        shown = {name: told.winner.get(name) for name in stored}
        if told.outcome == "refused":
            faults.append(f"{told.device} was told {told.code}: {told.winner}")
        elif shown != stored:
            faults.append(f"{told.device} was told {told.code} and {shown}, stored is {stored}")
        elif told.outcome != "lost" and told.device != decision.device_name:
            faults.append(f"{told.device} was told that it won, {decision.device_name} did")
    return faults


def _judge_return(question: Question, cashier: Cashier, story: Story) -> list[str]:
    """One way back with one end for an answer that is owed; the agent does what was decided, once, or nothing."""
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
