"""One question of a peer: judged by policy, opened, and closed in the same append where policy has the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from passerelle.core import approval
from passerelle.core import task as tasks
from passerelle.core.approval_commands import OpenAction, SettleAction
from passerelle.core.approval_record import ActionRecord
from passerelle.core.batch import DueChange
from passerelle.core.events import Fact
from passerelle.delegation.runs.step import Step, find_action
from passerelle.permission_bridge.answers.action_rows import open_rows
from passerelle.permission_bridge.cases import PeerAsks, read_prompt
from passerelle.permission_bridge.granting import make_offer
from passerelle.permission_bridge.policy import Evaluation, PolicyFacts, evaluate
from passerelle.permission_bridge.recorded_cases import state_case
from passerelle.permission_bridge.requests import Asking, make_request
from passerelle.permission_bridge.subject import find_whole
from passerelle.runtime.records.spill import keep_subject, write_notes

if TYPE_CHECKING:
    from passerelle.core.payloads.approval import Request
    from passerelle.core.prompt import PeerPrompt
    from passerelle.runtime.records.spill import Note


@dataclass(frozen=True, slots=True)
class Judged:
    """A question that is ready to be opened, and what policy says of it."""

    request: Request
    evaluation: Evaluation
    notes: tuple[Note, ...] = ()
    """The facts of those who were heard."""
    whole: bytes | None = None
    """What the question is about, where it is too large to stand in it."""

    @property
    def asks(self) -> bool:
        """Whether it is for a person."""
        return self.evaluation.decision == "ask"


def read_case(step: Step, prompt: PeerPrompt) -> PeerAsks:
    """What the rules are asked about a prompt."""
    record, sight = step.record, step.sight
    card_hash = record.run.worker.card_hash if record.run else None
    return read_prompt(prompt, record.scope.principal, sight.peer, sight.peer_tags, card_hash)


def judge(step: Step, prompt: PeerPrompt, group: str | None) -> Judged:
    """Makes the question of a prompt, by the rules as they stand now; nothing is added to the step."""
    record, sight, now_ms = step.record, step.sight, step.decision.now_ms
    case, rules = read_case(step, prompt), sight.find_rules()
    heard = sight.consulted.get(prompt.occurrence) if sight.consulted else None
    facts = heard.facts if heard else PolicyFacts(sight.mint("eval"))
    evaluation = replace(evaluate(case, facts, now_ms, rules), case=state_case(case))
    asking = Asking(
        action_id=sight.mint("act"),
        owner=record.owner,
        tenant=record.scope.tenant,
        principal=record.scope.principal,
        peer=sight.peer,
        scope=tasks.scope_of(record, step.step_id),
        card_hash=case.card_hash,
        group_id=group,
        offer=make_offer(case, evaluation, rules.grants),
        tier=rules.find_tier(evaluation.rules, evaluation.risk),
    )
    request = make_request(prompt, asking, evaluation, now_ms)
    whole = find_whole(prompt, request.subject)
    return Judged(request, evaluation, heard.notes if heard else (), whole)


def open_question(step: Step, judged: Judged) -> None:
    """Adds the facts of a question, with its expiry or, where policy answers, with the debt of telling the peer."""
    request, now_ms = judged.request, step.decision.now_ms
    scope, ref = tasks.scope_of(step.record, step.step_id), find_action(request.action_id)
    step.decision.introduce(ref)
    step.add(write_notes(step.spill, scope, judged.notes))
    step.add([Fact(scope, judged.evaluation.to_payload())])
    opening = approval.decide(None, OpenAction(request, scope), now_ms)
    step.add(keep_subject(step.spill, opening, judged.whole))
    if judged.asks:
        step.due.extend(open_rows(request))
        return
    opened = step.decision.state(ref)
    evaluation = judged.evaluation
    settling = SettleAction(evaluation.decision == "allow", evaluation.cause, evaluation.grant_id)
    step.add(
        approval.decide(opened if isinstance(opened, ActionRecord) else None, settling, now_ms)
    )
    step.due.append(DueChange(f"return:{request.action_id}", now_ms))
