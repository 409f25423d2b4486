"""Answering a question: what is sent, and what the result means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.client.items import (
    AnswerResult,
    CallRefused,
    Lost,
    Refused,
    Replayed,
    Voted,
    Won,
)

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject


def compose_answer(
    action: JsonObject,
    decision_id: str,
    option: str | None,
    content: JsonObject | None,
    comment: str | None,
) -> JsonObject:
    """The data of ``respond_action``: the answer, and the exact state of the question that was shown."""
    given: JsonObject = {
        "actionId": action["actionId"],
        "rev": action["rev"],
        "digest": action["digest"],
        "decisionId": decision_id,
        "optionId": option,
        "content": content,
        "comment": comment,
    }
    return {name: value for name, value in given.items() if value is not None}


def read_result(answer: JsonObject) -> AnswerResult:
    """What a carried-out answer came to."""
    found = answer.get("decision")
    decision = found if isinstance(found, dict) else {}
    votes, need = answer.get("votes"), answer.get("need")
    if (
        answer.get("outcome") == "vote_recorded"
        and isinstance(votes, int)
        and isinstance(need, int)
    ):
        return Voted(votes, need)
    return Replayed(decision) if answer.get("outcome") == "replayed" else Won(decision)


def read_refusal(error: CallRefused) -> AnswerResult:
    """A refused answer: lost to somebody else, or not valid."""
    winner = error.data.get("winner")
    return Lost(winner) if isinstance(winner, dict) else Refused(error.code, str(error))
