"""Opens what a waiting peer asks as questions to people, in the append that makes the task wait (EVC-10). Pure.

Policy judges each question first; if policy has the answer, the same append opens and closes it. A question is
opened once, however often it is seen: the record of the task has the occurrences that it has opened. A new question in
another pause supersedes the old one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.dialects import permission, plain_text
from passerelle.a2a_mapping.dialects.presentation import list_request_parts, relabel_prompt
from passerelle.a2a_mapping.dialects.recall import recall
from passerelle.a2a_mapping.dialects.registry import detect
from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.a2a_mapping.states import map_peer_state
from passerelle.core.approval import machine as approval
from passerelle.core.approval.commands import OpenAction, SettleAction, SupersedeAction
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import DueChange
from passerelle.core.events import Fact
from passerelle.core.frozen import frozen
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import WaitFor
from passerelle.core.task.status import WAITING, Status
from passerelle.delegation.runs.draft import DecisionDraft, OpenedQuestions, find_action
from passerelle.delegation.runs.observation import relabel_for
from passerelle.delegation.runs.remarks import make_waiting
from passerelle.permission_bridge.answers.action_rows import close_rows, open_rows
from passerelle.permission_bridge.cases import PeerAsks, read_prompt
from passerelle.permission_bridge.grants import make_offer
from passerelle.permission_bridge.hooks.consultation import ConsultationRequired, asks_others
from passerelle.permission_bridge.policy import Evaluation, PolicyFacts, evaluate
from passerelle.permission_bridge.recorded_cases import state_case
from passerelle.permission_bridge.requests import Asking, make_request
from passerelle.permission_bridge.return_machine import REFUSED
from passerelle.permission_bridge.subject import find_whole
from passerelle.runtime.records.blob_overflow import keep_subject, write_notes

if TYPE_CHECKING:
    from passerelle.core.approval.prompt import PeerPrompt
    from passerelle.core.payloads.approval import ApprovalRequest, RemotePause
    from passerelle.core.payloads.run import RunStatus
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.records.blob_overflow import Note

FIRST_REVISION: Final = 1


def open_questions(
    draft: DecisionDraft, native: JsonObject, reported: RunStatus
) -> OpenedQuestions:
    """The facts of a waiting peer, the last one for callers to see; none if all of it is known already."""
    prompts = detect(draft.context.peer, native)
    known_by = draft.record.occurrences
    recalled = recall(native, _list_pauses(draft))
    fresh = [
        prompt
        for prompt in prompts
        if not recalled
        and (prompt.occurrence not in known_by or _is_repeated(draft, prompt, native))
    ]
    facts = [Fact(tasks.scope_of(draft.record, draft.step_id), reported)]
    known = draft.record.open_actions
    if not fresh and known:
        if draft.record.status in WAITING and not _waits_otherwise(draft, prompts[0]):
            return OpenedQuestions([])
        shown = _list_open(draft)
        again = [*facts, *_wait(draft, prompts[0], known)]
        return OpenedQuestions(again, _present(shown), native=_shows_native(shown))
    if not fresh:
        return OpenedQuestions([] if recalled or _answer_is_under_way(draft, prompts) else facts)
    ids = relabel_for(draft, text_at(native, "id"), text_at(native, "contextId"))
    fresh = [relabel_prompt(prompt, ids) for prompt in fresh]
    _require_consultation(draft, fresh)
    # Questions of one pause are answered by one message, so they share a group.
    group = draft.context.mint("grp") if len(fresh) > 1 else None
    judged = [judge_question(draft, prompt, group) for prompt in fresh]
    opened = [one.request for one in judged]
    is_waiting = any(one.asks for one in judged)
    if is_waiting:
        draft.add(facts)
    for one in judged:
        open_question(draft, one)
    _supersede(draft, {request.action_id for request in opened})
    if not is_waiting:
        # Policy has answered all of it: callers see the task working.
        return OpenedQuestions(facts, _present(opened), settled=True)
    waiting = [one.request for one in judged if one.asks]
    actions = tuple(request.action_id for request in waiting)
    said_so = _wait(draft, fresh[0], actions, waiting[0].title)
    return OpenedQuestions(said_so, _present(waiting), native=_shows_native(waiting))


def _require_consultation(draft: DecisionDraft, fresh: list[PeerPrompt]) -> None:
    """Raises ConsultationRequired if hooks or grants have to be consulted about a prompt and were not.

    There is no grant for free text that cannot be allowed in advance.
    """
    consulted, rules = draft.context.consulted, draft.context.find_rules()
    if consulted is None or all(prompt.occurrence in consulted for prompt in fresh):
        return
    cases = [(prompt, read_case(draft, prompt)) for prompt in fresh]
    if asks_others(rules) or any(case.is_allowable for _, case in cases):
        raise ConsultationRequired(cases)


def _wait(
    draft: DecisionDraft, prompt: PeerPrompt, actions: tuple[str, ...], reason: str | None = None
) -> list[Fact]:
    waiting = make_waiting(_choose_status(prompt), actions, prompt.native_status, reason)
    return draft.decide(WaitFor(waiting, draft.step_id))


def _choose_status(prompt: PeerPrompt) -> Status:
    row = map_peer_state(prompt.native_status)
    credential = prompt.kind == "auth" and row.for_credential is not None
    return row.for_credential if credential and row.for_credential else row.status


def _waits_otherwise(draft: DecisionDraft, prompt: PeerPrompt) -> bool:
    """Whether the peer has moved from one waiting state to another with the same question."""
    run = draft.record.run
    state = run.native_status if run else None
    return state != prompt.native_status and _choose_status(prompt) is not draft.record.status


def _list_open(draft: DecisionDraft) -> list[ApprovalRequest]:
    actions = [draft.decision.state(find_action(action)) for action in draft.record.open_actions]
    return [action.request for action in actions if isinstance(action, ActionRecord)]


def _list_pauses(draft: DecisionDraft) -> list[RemotePause]:
    known = map(draft.decision.state, map(find_action, draft.record.occurrences.values()))
    requests = [action.request for action in known if isinstance(action, ActionRecord)]
    return [request.remote for request in requests if request.remote is not None]


def _present(opened: list[ApprovalRequest]) -> list[Json] | None:
    """The parts that callers read in place of a typed question of the peer: ours, which they can answer. Text stays."""
    parts: list[Json] = []
    for request in opened:
        if request.remote is not None and request.remote.dialect != plain_text.NAME:
            parts += list_request_parts(request, FIRST_REVISION)
    return parts or None


def _shows_native(opened: list[ApprovalRequest]) -> bool:
    """Whether the agent's own form is shown with ours: not if it is ours, and not if a secret is requested."""
    return all(
        request.remote is not None
        and request.remote.dialect != permission.NAME
        and request.kind != "auth"
        for request in opened
    )


def _is_repeated(draft: DecisionDraft, prompt: PeerPrompt, native: JsonObject) -> bool:
    """Whether a question that has our answer is asked again.

    True if the peer did not take the answer of a person, or is finished with it and waits as before; and if it has no
    id and no time that identifies it.
    """
    action = draft.decision.state(find_action(draft.record.occurrences[prompt.occurrence]))
    if not isinstance(action, ActionRecord):
        return False
    is_of_somebody = action.decision is not None and action.decision.source == "answer"
    if (action.return_error or "").startswith(REFUSED):
        return is_of_somebody
    if draft.is_done_with_answer and is_of_somebody:
        return True
    said_when = text_at(object_at(native, "status"), "timestamp")
    if prompt.native_id is not None or prompt.message_id is not None or said_when:
        return False
    return action.return_state == "returned"


def _answer_is_under_way(draft: DecisionDraft, prompts: list[PeerPrompt]) -> bool:
    """Whether the peer still waits because our answer has not reached it: no news, and no new question."""
    return any(prompt.occurrence in draft.record.occurrences for prompt in prompts)


def _supersede(draft: DecisionDraft, fresh: set[str]) -> None:
    by = min(fresh)
    for action_id in draft.record.open_actions:
        action = draft.decision.state(find_action(action_id))
        if not isinstance(action, ActionRecord) or action.request.remote is None:
            continue  # it waits for a worker or a caller, not for the peer
        if action_id not in fresh and action.is_open:
            draft.add(approval.decide(action, SupersedeAction(by), draft.decision.now_ms))
            draft.due.extend(close_rows(action, draft.decision.now_ms))


@frozen
class JudgedQuestion:
    """A question that is ready to be opened, and the policy's evaluation of it."""

    request: ApprovalRequest
    evaluation: Evaluation
    notes: tuple[Note, ...]
    """The facts of the hooks that were consulted."""
    whole: bytes | None
    """The subject of the question, if it is too large to be part of it."""

    @property
    def asks(self) -> bool:
        """Whether a person has to decide it."""
        return self.evaluation.decision == "ask"


def read_case(draft: DecisionDraft, prompt: PeerPrompt) -> PeerAsks:
    """The case of a prompt for the rules."""
    record, context = draft.record, draft.context
    card_hash = record.run.worker.card_hash if record.run else None
    return read_prompt(prompt, record.scope.principal, context.peer, context.peer_tags, card_hash)


def judge_question(draft: DecisionDraft, prompt: PeerPrompt, group: str | None) -> JudgedQuestion:
    """Builds the question of a prompt by the current rules; adds nothing to the step."""
    record, context, now_ms = draft.record, draft.context, draft.decision.now_ms
    case, rules = read_case(draft, prompt), context.find_rules()
    consulted = context.consulted.get(prompt.occurrence) if context.consulted else None
    facts = consulted.facts if consulted else PolicyFacts(context.mint("eval"))
    evaluation = replace(evaluate(case, facts, now_ms, rules), case=state_case(case))
    asking = Asking(
        action_id=context.mint("act"),
        owner=record.owner,
        tenant=record.scope.tenant,
        principal=record.scope.principal,
        peer=context.peer,
        scope=tasks.scope_of(record, draft.step_id),
        card_hash=case.card_hash,
        group_id=group,
        offer=make_offer(case, evaluation, rules.grants),
        tier=rules.find_tier(evaluation.rules, evaluation.risk),
    )
    request = make_request(prompt, asking, evaluation, now_ms)
    whole = find_whole(prompt, request.subject)
    return JudgedQuestion(request, evaluation, consulted.notes if consulted else (), whole)


def open_question(draft: DecisionDraft, judged: JudgedQuestion) -> None:
    """Adds the facts of a question, with its expiry or, if policy answers, with the due row that returns the answer."""
    request, now_ms = judged.request, draft.decision.now_ms
    scope, ref = tasks.scope_of(draft.record, draft.step_id), find_action(request.action_id)
    draft.decision.introduce(ref)
    draft.add(write_notes(draft.spill, scope, judged.notes))
    draft.add([Fact(scope, judged.evaluation.to_payload())])
    opening = approval.decide(None, OpenAction(request, scope), now_ms)
    draft.add(keep_subject(draft.spill, opening, judged.whole))
    if judged.asks:
        draft.due.extend(open_rows(request))
        return
    opened = draft.decision.state(ref)
    evaluation = judged.evaluation
    settling = SettleAction(evaluation.decision == "allow", evaluation.cause, evaluation.grant_id)
    draft.add(
        approval.decide(opened if isinstance(opened, ActionRecord) else None, settling, now_ms)
    )
    draft.due.append(DueChange(f"return:{request.action_id}", now_ms))
