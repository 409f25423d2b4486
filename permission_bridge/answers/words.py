"""Words with which somebody answers an agent are judged before they count: they are sent to it like any message.

An option that is chosen has none, and is governed as a decision. A message to a task that answers in words has been
judged as what it is (``follow_ups``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.inbound import ROLE_USER
from passerelle.core.errors import Forbidden
from passerelle.core.ids import shard_of
from passerelle.permission_bridge.send_judgement import (
    SendCase,
    check_judgement,
    judge_send,
    note_judgement,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.approval.commands import AnswerAction
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.permission_bridge.hooks.consultation import PolicyConsultation
    from passerelle.permission_bridge.send_judgement import JudgedSend
    from passerelle.runtime.records.writes import Writes


@dataclass(frozen=True, slots=True)
class AnswerTextPolicy:
    """Asks rules, hooks and the classifier about the words of answers; ``find_tags`` are those of an agent."""

    writes: Writes
    blobs: Blobs
    consulting: PolicyConsultation
    find_tags: Callable[[str], frozenset[str]]

    def concerns(self, question: ActionRecord, answer: AnswerAction) -> bool:
        """Whether the answer takes words to an agent, and somebody has a say in what is sent."""
        asks = question.is_open and question.request.origin.asked_by == "peer"
        return asks and bool(_list_parts(answer)) and self.consulting.find_rules().judges_sends

    async def judge(self, question: ActionRecord, answer: AnswerAction) -> None:
        """Has the words judged, and stores what was said to them.

        Raises:
            Forbidden: somebody speaks against them, a hook wants them asked about, or would change them: what was
                decided is what is sent.
        """
        request, shard = question.request, shard_of(question.scope.session_id)
        peer = request.origin.peer or ""
        send = SendCase(
            peer=peer,
            agent=peer,
            caller=request.principal,
            tags=self.find_tags(peer),
            card_hash=request.origin.card_hash,
            scope=question.scope,
            is_call=False,
        )
        message: JsonObject = {
            "messageId": answer.decision_id,
            "role": ROLE_USER,
            "parts": _list_parts(answer),
        }
        judged = await judge_send(
            self.consulting, send, message, lambda name: self.writes.ids.mint(name, shard)
        )
        if judged.strictest.decision != "allow" or judged.hook_results.notes:
            await note_judgement(self.writes, self.blobs, question.scope, judged)
        if not self._is_content(judged, answer):
            check_judgement(judged)
        if judged.hook_results.message is not None:
            raise Forbidden(
                "the answer is not sent: a hook would change its words; send them as a message to the task",
                why="policy",
            )

    def _is_content(self, judged: JudgedSend, answer: AnswerAction) -> bool:
        """Whether what asks has what it wants: a person has looked, and it names nobody else who has to.

        A hook that asks, or that has failed, has not: it has seen what nobody weighed.
        """
        found = judged.strictest
        is_person = answer.who.kind == "person" and not answer.is_host
        named = {one.ref for one in self.consulting.find_rules().rules if one.tier is not None}
        is_asked = any(one.verdict == "ask" for one in judged.hook_results.verdicts)
        return (
            found.decision == "ask" and is_person and not is_asked and named.isdisjoint(found.rules)
        )


def _list_parts(answer: AnswerAction) -> list[Json]:
    """The words of an answer as the parts of a message; none where it is an option alone."""
    content = answer.content or {}
    parts: list[Json] = []
    text = content.get("text")
    if isinstance(text, str):
        parts.append({"text": text})
    if rest := {name: said for name, said in content.items() if name != "text" or said != text}:
        parts.append({"data": rest})
    if answer.comment:
        parts.append({"text": answer.comment})
    if answer.native:
        parts.append({"data": answer.native})
    return parts
