"""Decides an approval: the request that is sent, and the meaning of its result."""

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
    """Returns the data of ``respond_action``: the decision, with revision and digest of the approval as shown."""
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
    """Returns the result of a decision that was accepted."""
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
    """Returns the result of a refused decision: ``Lost`` if another decision came first, else ``Refused``."""
    winner = error.data.get("winner")
    return Lost(winner) if isinstance(winner, dict) else Refused(error.code, str(error))
