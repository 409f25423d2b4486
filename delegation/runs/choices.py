"""A message that names an artifact of its context: the name is resolved before the message is sent (LT-19).

Names are in the metadata of the message (``NAMED``). A name that fits one artifact becomes a reference to its task,
with a part that identifies the artifact. A name that fits several opens a question: the task waits for input, and
callers read the artifacts with their numbers. The answer selects one by its number or id; an answer that fits none is
asked again. A name that fits nothing is recorded as an unknown reference, and the message is sent without it.

No state is kept except the questions: their ids derive from the task, so a driver that takes the run over, and a
further attempt, find what was asked and answered.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.a2a_mapping.dialects.presentation import list_request_parts
from passerelle.a2a_mapping.extensions import NAMED, REFERENCE
from passerelle.a2a_mapping.inbound import read_named
from passerelle.a2a_mapping.members import as_list, object_at, objects_at, text_at, texts_at
from passerelle.a2a_mapping.states import INPUT_REQUIRED
from passerelle.core.approval import machine as approval
from passerelle.core.approval.commands import OpenAction
from passerelle.core.approval.guards import MAX_LIFETIME_MS
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.approval.record import ActionRecord
from passerelle.core.events import Fact
from passerelle.core.frozen import frozen
from passerelle.core.ids import derive_id, parse_facade
from passerelle.core.payloads.approval import ApprovalRequest, Origin
from passerelle.core.payloads.task import TaskWaiting
from passerelle.core.read_models.named_artifacts import ArtifactCandidate, list_candidates, pick
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import WaitFor
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.codec import from_wire, to_wire
from passerelle.core.wire.display import escape_line
from passerelle.delegation.runs.draft import find_action
from passerelle.delegation.runs.finish import refuse_send, show_gateway_status
from passerelle.delegation.runs.own_questions import await_closing, make_asking
from passerelle.permission_bridge.answers.action_rows import open_rows
from passerelle.permission_bridge.cases import read_prompt
from passerelle.permission_bridge.policy import PolicyFacts, evaluate
from passerelle.permission_bridge.recorded_cases import state_case
from passerelle.permission_bridge.requests import make_request, quote
from passerelle.permission_bridge.views import seal_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.draft import DecisionDraft

FIRST_REVISION: Final = 1
MOST_LOOKED_AT: Final = 128
"""Newest earlier tasks of a session that are searched."""
_SHOWN_CHARS: Final = 80
"""Longest title or name in the question."""
_BLOCKED_BY: Final = "blocked_by"

_Chosen: TypeAlias = "tuple[ArtifactCandidate | None, bool]"
"""What a name means, if anything, and whether the message may still be sent."""
_BY_MESSAGE: Final = "turn_"
"""Prefix of the decision id of an answer that came as a message to the task."""


async def resolve_names(active: ActiveRun, message: JsonObject) -> JsonObject | None:
    """The message with references in place of names; None where it is not sent any more.

    Raises:
        StoreUnavailable: the rest is done by a retry.
    """
    names = read_named(message)
    if not names:
        return message
    found: list[ArtifactCandidate] = []
    parts: list[JsonObject] = []
    answers: list[str] = []
    for place, name in enumerate(names):
        meant, goes_on = await _choose(active, message, (place, name), answers)
        if not goes_on:
            return None
        if meant is None:
            reason = "the message names an artifact that no task of its context has; it is sent without the name"
            await active.warn("reference_unknown", reason)
            continue
        found.append(meant)
        reference: JsonObject = {
            "name": name,
            "artifactId": meant.name_at_peer,
            "version": meant.version,
        }
        mark: JsonObject = {REFERENCE: {"artifact": name}}
        parts.append({"data": reference, "mediaType": "application/json", "metadata": mark})
    metadata = {key: one for key, one in object_at(message, "metadata").items() if key != NAMED}
    references = dict.fromkeys(
        (*texts_at(message, "referenceTaskIds"), *(one.task for one in found))
    )
    parts = [*_leave_out(active, message, answers), *parts]
    bare = {key: one for key, one in message.items() if key != "metadata"}
    return {
        **bare,
        "parts": as_list(parts),
        **({"metadata": metadata} if metadata else {}),
        **({"referenceTaskIds": [*references]} if references else {}),
    }


def _leave_out(active: ActiveRun, message: JsonObject, answers: Sequence[str]) -> list[JsonObject]:
    """The message's parts without answers to the gateway: a further attempt gets all messages to its task."""
    first, *later = active.run.context.accepted
    parts = objects_at(message, "parts")
    own = len(objects_at(first, "parts")) if later else len(parts)
    return [
        part
        for place, part in enumerate(parts)
        if place < own or not (text := text_at(part, "text")) or text not in answers
    ]


async def _choose(
    active: ActiveRun, message: JsonObject, named: tuple[int, str], answers: list[str]
) -> _Chosen:
    """Asks until the answer selects one of them; earlier questions and answers are used again.

    Appends answers that came in messages to the task to ``answers``.
    """
    place, name = named
    candidates: tuple[ArtifactCandidate, ...] | None = None
    refused = ""
    for number in count():
        action = await _load(active, place, number)
        if action is None:
            if candidates is None:
                candidates = await _find(active, message, name)
                if len(candidates) <= 1:
                    return next(iter(candidates), None), True
            action_id = _name_action(active, place, number)
            asked = _Asked(action_id, name, candidates, refused)
            await active.append(partial(_ask, active=active, asked=asked))
        action = await await_closing(active, _name_action(active, place, number))
        if action is None:
            return None, False
        decision = action.decision
        if action.state != "answered" or decision is None:
            reason = f"the question which “{_cut(name)}” is meant was not answered: {action.state}"
            await active.append(partial(refuse_send, reason=reason))
            return None, False
        candidates = _read_candidates(action)
        text = decision.content.get("text") if decision.content else None
        refused = text if isinstance(text, str) else ""
        if decision.decision_id.startswith(_BY_MESSAGE):
            answers.append(refused)
        meant = pick(candidates, refused)
        if meant is not None:
            return meant, True
    raise AssertionError("counts for ever")


def _name_action(active: ActiveRun, place: int, number: int) -> str:
    run = active.run
    seed = ("choice", run.context.task.id, str(place), str(number))
    return derive_id("act", run.shard, *seed)


async def _load(active: ActiveRun, place: int, number: int) -> ActionRecord | None:
    ref = find_action(_name_action(active, place, number))
    found = (await active.run.writes.load_one(ref)).record
    return found if isinstance(found, ActionRecord) else None


async def _find(active: ActiveRun, message: JsonObject, name: str) -> tuple[ArtifactCandidate, ...]:
    """The candidates for the name among the earlier tasks of the thread."""
    record, writes = active.run.record, active.run.writes
    listed = await writes.log.read_session_tasks(record.session_id)
    parsed = (parse_facade(facade) for facade, _ in listed)
    ids = sorted({one[0] for one in parsed if one and one[0] < record.task_id}, reverse=True)
    tasks = await writes.read_all(TaskRecord, ids[:MOST_LOOKED_AT])
    contents = active.deps.references.contents
    earlier = [
        await contents.name_artifacts(one)
        for one in tasks.values()
        if one.thread_id == record.thread_id
    ]
    referenced = {one[0] for one in map(parse_facade, texts_at(message, "referenceTaskIds")) if one}
    after = {edge.target for edge in record.relationships if edge.kind == _BLOCKED_BY}
    return list_candidates(earlier, name, referenced or after)


@frozen
class _Asked:
    """One question: what ``name`` means. ``refused``: the previous answer, which fitted none."""

    action_id: str
    name: str
    candidates: tuple[ArtifactCandidate, ...]
    refused: str


def _ask(draft: DecisionDraft, active: ActiveRun, asked: _Asked) -> None:
    run = draft.record.run
    if run is None or not run.gated:
        return
    request = _make_request(draft, active, asked)
    scope = tasks.scope_of(draft.record)
    draft.decision.introduce(find_action(request.action_id))
    draft.add(approval.decide(None, OpenAction(request, scope), draft.decision.now_ms))
    draft.due.extend(open_rows(request))
    waiting = TaskWaiting(
        waiting_for="input",
        status=Status.WAITING_INPUT,
        reason=request.title,
        action_ids=(request.action_id,),
        send_options=active.options or run.send_options,
    )
    parts = list_request_parts(request, FIRST_REVISION)
    show_gateway_status(draft, draft.decide(WaitFor(waiting)), INPUT_REQUIRED, parts)


def _make_request(draft: DecisionDraft, active: ActiveRun, asked: _Asked) -> ApprovalRequest:
    record, context, now_ms = draft.record, draft.context, draft.decision.now_ms
    listed: list[Json] = [to_wire(one) for one in asked.candidates]
    prompt = PeerPrompt(
        dialect="gateway",
        occurrence=asked.action_id,
        native_status=INPUT_REQUIRED,
        kind="input",
        action_type="free_input",
        options=(),
        subject={"name": asked.name, "candidates": listed},
    )
    rules = active.deps.consulting.find_rules()
    card_hash = record.run.worker.card_hash if record.run else None
    case = read_prompt(prompt, record.scope.principal, context.peer, context.peer_tags, card_hash)
    facts = PolicyFacts(context.mint("eval"))
    evaluation = replace(evaluate(case, facts, now_ms, rules), case=state_case(case))
    asking = make_asking(draft, asked.action_id)
    draft.add([Fact(asking.scope, evaluation.to_payload())])
    made = make_request(prompt, asking, evaluation, now_ms)
    request = replace(
        made,
        title=quote("Several artifacts have this name. Which one is meant?", asked.name),
        description=_describe(asked.candidates, asked.refused),
        origin=Origin("outbound", "gateway", context.peer, card_hash),
        remote=None,
        expires_ms=now_ms + MAX_LIFETIME_MS,
    )
    return seal_request(request, asking.scope)


def _describe(candidates: Sequence[ArtifactCandidate], refused: str) -> str:
    lines = [f"“{_cut(refused)}” names none of them."] if refused else []
    lines.append("Answer with a number, or with the id of an artifact or a task:")
    lines += [
        f"{one.number}. version {one.version} of {one.at}, artifact {one.artifact} of task {one.task} "
        f"({escape_line(one.agent)}: “{_cut(one.title)}”)"
        for one in candidates
    ]
    return "\n".join(lines)


def _read_candidates(action: ActionRecord) -> tuple[ArtifactCandidate, ...]:
    content = object_at(action.request.subject, "content")
    return tuple(from_wire(ArtifactCandidate, one) for one in objects_at(content, "candidates"))


def _cut(text: str) -> str:
    line = escape_line(text)
    return line if len(line) <= _SHOWN_CHARS else f"{line[: _SHOWN_CHARS - 1]}…"
