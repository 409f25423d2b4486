"""Answers that end a plain turn at once: what the last append writes is filled in, too.

An answer is plain when it is the first word of the agent, and the last: a completed Task with a few artifacts of texts
and data, or a bare Message. What callers see is made as for every answer. The facts about it are the same for every
answer of one shape, so they are rehearsed on the rehearsed turn (``plain_turns``), and filled in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import orjson

from passerelle.a2a_mapping.history import complete_history
from passerelle.a2a_mapping.identity import (
    Relabel,
    make_relabel,
    relabel,
    relabel_message,
    relabel_places,
)
from passerelle.a2a_mapping.members import text_at
from passerelle.a2a_mapping.replies import MessageReply, TaskReply, read_reply
from passerelle.a2a_mapping.states import COMPLETED
from passerelle.a2a_mapping.status_words import SILENT, read_words
from passerelle.core.batch import EntityKind, PackedBatch
from passerelle.core.generated import make_picker
from passerelle.core.minting import RecordedIds, mint_together
from passerelle.core.ports.projections import IndexRow
from passerelle.core.record import value
from passerelle.core.times import format_ms
from passerelle.delegation.runs.artifacts import Described, describe
from passerelle.delegation.runs.habits import see_habit
from passerelle.delegation.runs.lost_approvals import is_silent
from passerelle.delegation.runs.observe import observe, read_said
from passerelle.delegation.runs.plain_turns import FREE, TRIES, rehearse_longer, rehearse_ms
from passerelle.delegation.runs.run import Run
from passerelle.runtime.common.clock import StoppedClock
from passerelle.runtime.records.spill import CAP
from passerelle.runtime.records.writes import compose
from passerelle.store.connection import unpack
from passerelle.store.wire_template import Example, WireTemplate, make_template, quote

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from passerelle.core.batch import EntityRef
    from passerelle.core.ids import Shard
    from passerelle.core.json import Json, JsonObject
    from passerelle.core.minting import Asked
    from passerelle.core.ports.chance import Ids
    from passerelle.delegation.runs.habits import Seen
    from passerelle.delegation.runs.plain_turns import PlainTurn, Rehearsal
    from passerelle.delegation.runs.step import Sight

_MOST_ARTIFACTS: Final = 4
_MOST_PARTS: Final = 4
_SHORT: Final = 24
_MIDDLING: Final = 300
_TIMES: Final = 2
"""How many times stand among the values of an answer, behind its frame."""
_TOUCHED: Final = (EntityKind.TASK, EntityKind.THREAD)
"""What the end of a turn may change."""

ArtifactShape: TypeAlias = "tuple[tuple[str, ...], int, bool]"
"""Media types, number of parts, whether it has a name."""


class Shape(NamedTuple):
    """What decides which facts an answer leads to. A tuple, since forms are found by it."""

    is_task: bool
    says_text: bool = False
    says_id: bool = False
    artifacts: tuple[ArtifactShape, ...] = ()


_MESSAGE: Final = Shape(is_task=False)


@value
class PlainAnswer:
    """A plain answer in our ids.

    ``packed`` is its frame as it is stored, ``texts`` are the further texts in which answers of a shape differ.
    """

    shape: Shape
    frame: JsonObject
    packed: bytes
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What every answer of one shape stores, on a turn of one shape."""

    template: WireTemplate
    numbers: tuple[tuple[int, str], ...]
    """What has to be drawn (``mint_together``)."""
    pick_touched: Callable[[Sequence[EntityRef]], tuple[EntityRef, ...]]
    """Out of the task and the thread: what is written, in its order."""
    first_event: str
    """The ordinal of its id."""
    feed: bool
    row: IndexRow | None
    """The rehearsed row of the owner's list: another task, another time."""
    seen: Seen | None


def take(run: Run, turn: PlainTurn, result: JsonObject, sent_ms: int) -> Awaitable[bool] | None:
    """Stores the answer to a plain turn that was ``sent_ms`` (``Run.fill``); None where it is not plain."""
    answer = read_plain(run.sight, turn, result)
    if answer is None:
        return None
    writes, sight, shard = run.writes, run.sight, run.shard
    form = find_form(run, turn, answer.shape, writes.log.shard_epoch(shard))
    if form is None:
        return None
    now_ms = writes.read_ms(shard)
    minted = mint_together(writes.ids, shard, now_ms, form.numbers)
    call = form.template.render(list_values(turn, answer, now_ms, minted))
    if call is None:
        return None
    touched = form.pick_touched((sight.task, sight.thread))
    first_event = f"ev{minted[0]}{form.first_event}"
    pace = turn.form.pace
    pace.note(now_ms - sent_ms)
    packed = PackedBatch(turn.place.session.id, shard, touched, first_event, call, pace.within_s)
    row = form.row
    if row is not None:
        row = IndexRow(row.owner, row.agent, sight.task.id, now_ms, row.part)
    return run.fill(turn, form, packed, answer, row)


def read_plain(sight: Sight, turn: PlainTurn, result: JsonObject) -> PlainAnswer | None:
    """The answer, if it is plain on a run of which nothing is known yet."""
    if sight.price is not None or sight.content is not None or sight.place is not None:
        return None
    if sight.redaction.is_on:
        return None
    reply = read_reply(result)
    if isinstance(reply, MessageReply) and not sight.always_task:
        return _read_message(sight, turn, reply.message)
    if isinstance(reply, TaskReply):
        return _read_task(sight, turn, reply.task)
    return None


def _read_task(sight: Sight, turn: PlainTurn, task: JsonObject) -> PlainAnswer | None:
    status, native, context = task.get("status"), task.get("id"), task.get("contextId")
    if not isinstance(status, dict) or status.get("state") != COMPLETED:
        return None
    if not isinstance(native, str) or (context and context != turn.remote_context_id):
        return None
    if native == turn.remote_context_id:
        # One name for two things: which of them is meant where it stands is judged elsewhere.
        return None
    known = {turn.remote_context_id: sight.context_id, native: sight.task.id}
    ids = Relabel(sight.task.id, sight.context_id, known)
    ours = complete_history(relabel_places(task, "Task", ids), sight.accepted)
    frame: JsonObject = {"task": ours}
    packed = orjson.dumps(frame)
    if ids.find_in(packed) is not None:
        ids = make_relabel(sight.task.id, sight.context_id, known)
        ours = complete_history(relabel(task, "Task", ids), sight.accepted)
        frame = {"task": ours}
        packed = orjson.dumps(frame)
    described = _describe_all(ours.get("artifacts") or [])
    if len(packed) > CAP or described is None or (not described and is_silent(ours)):
        return None
    if read_words(ours) is not SILENT:
        return None
    text, message_id = read_said(ours) if "message" in status else (None, None)
    texts = [native, text or "", message_id or "", f"{len(packed)}"]
    shapes: list[ArtifactShape] = []
    for one in described:
        texts += (one.name_at_peer, one.sha256, f"{len(one.packed)}", one.name or "")
        shapes.append((one.media_types, one.parts, one.name is not None))
    shape = Shape(True, text is not None, message_id is not None, tuple(shapes))
    return PlainAnswer(shape, frame, packed, tuple(texts))


def _read_message(sight: Sight, turn: PlainTurn, message: JsonObject) -> PlainAnswer | None:
    known = {turn.remote_context_id: sight.context_id}
    if "taskId" in message and (native := text_at(message, "taskId")):
        known[native] = sight.task.id
    if "contextId" in message and (context := text_at(message, "contextId")):
        known[context] = sight.context_id
    ids = Relabel(sight.task.id, sight.context_id, known)
    frame: JsonObject = {"message": relabel_message(message, ids, relabel_places)}
    packed = orjson.dumps(frame)
    if ids.find_in(packed) is not None:
        ids = make_relabel(sight.task.id, sight.context_id, known)
        frame = {"message": relabel_message(message, ids)}
        packed = orjson.dumps(frame)
    size = len(packed)
    return PlainAnswer(_MESSAGE, frame, packed, (f"{size}",)) if size <= CAP else None


def _describe_all(artifacts: Json) -> list[Described] | None:
    """What is recorded of the artifacts of an answer, if all of them are plain."""
    if not isinstance(artifacts, list) or len(artifacts) > _MOST_ARTIFACTS:
        return None
    described: list[Described] = []
    for artifact in artifacts:
        if not isinstance(artifact, dict):
            return None
        given = artifact.get("parts") or []
        if not isinstance(given, list) or len(given) > _MOST_PARTS:
            return None
        parts: list[JsonObject] = []
        for part in given:
            if not isinstance(part, dict) or "url" in part:
                return None
            if not ("text" in part or "data" in part):
                return None
            parts.append(part)
        described.append(describe(artifact, parts))
    return described if len(described) <= 1 or _are_told_apart(described) else None


def _are_told_apart(artifacts: Sequence[Described]) -> bool:
    names = {one.name_at_peer for one in artifacts}
    titles = {one.name or number for number, one in enumerate(artifacts)}
    return len(names) == len(titles) == len(artifacts)


def list_values(
    turn: PlainTurn, answer: PlainAnswer, now_ms: int, minted: Sequence[str]
) -> tuple[bytes, ...]:
    """In what answers of a shape differ, as it stands in what is written; what is minted comes last."""
    texts = (format_ms(now_ms), f"{now_ms}", *answer.texts, *minted)
    return (*turn.values, answer.packed, *quote(texts))


def find_form(run: Run, turn: PlainTurn, shape: Shape, epoch: int) -> AnswerForm | None:
    """The form of an answer, rehearsed where its shape is worth it."""
    sight = run.sight
    known = turn.form.answers
    key = (shape, sight.peer_tags, sight.always_task, epoch)
    try:
        return known.recall(key)
    except KeyError:
        if not known.is_worth(key):
            return None
    form = _make_form(run, turn, shape, epoch)
    known.keep(key, form)
    return form


def _make_form(run: Run, turn: PlainTurn, shape: Shape, epoch: int) -> AnswerForm | None:
    """Out of an answer to each of the two rehearsals of the turn."""
    for _ in range(TRIES):
        made = [
            rehearse_answer(run, turn, one, result, epoch)
            for one in turn.form.rehearsals
            for result in (rehearse_result(shape, run.writes.ids, one.remote_context_id),)
        ]
        one, other = made
        if one is None or other is None or one.asked != other.asked:
            continue
        if {one.shape, other.shape} != {shape}:
            continue
        frame = len(turn.values)
        begin = frame + 1 + _TIMES
        said = range(begin, begin + one.texts)
        template = make_template(one.example, other.example, FREE.union((frame,), said))
        if template is None:
            continue
        return AnswerForm(
            template=template,
            numbers=one.asked.numbers,
            pick_touched=make_picker([_TOUCHED.index(kind) for kind in one.kinds]),
            first_event=one.asked.find("ev"),
            feed=one.feed,
            row=one.row,
            seen=one.seen,
        )
    return None


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """An answer that was decided and not stored."""

    shape: Shape
    asked: Asked
    texts: int
    """How many further texts the answer has."""
    example: Example
    kinds: tuple[EntityKind, ...]
    feed: bool
    row: IndexRow | None
    seen: Seen | None


def rehearse_answer(
    run: Run, turn: PlainTurn, rehearsal: Rehearsal, result: JsonObject, epoch: int
) -> Rehearsed | None:
    """Decides an answer to a rehearsed turn by the code for every answer, and stores nothing; None: it is not plain."""
    chance, place = run.writes.ids, rehearsal.place
    now_ms = rehearse_ms(chance)
    ids = RecordedIds(chance, place.shard, now_ms)
    before = rehearsal.fill(turn.form)
    settled = rehearsal.draft.decision.settle(rehearsal.op, 1)
    task = rehearsal.draft.task
    held = {ref: settled[ref] for ref in (task, place.thread)}
    sight = replace(
        run.sight,
        task=task,
        shard=place.shard,
        thread=place.thread,
        context_id=place.context_id,
        mint=partial(_mint, ids, place.shard),
        accepted=[rehearsal.message],
    )
    answer = read_plain(sight, before, result)
    if answer is None:
        return None
    writes = replace(run.writes, ids=ids, clock=StoppedClock(now_ms), shard_ms=None)
    rehearsed = Run(
        writes=writes,
        blobs=run.blobs,
        copies=run.copies,
        uploads=run.uploads,
        contents=run.contents,
        sight=sight,
        shard=place.shard,
        kept=held,
        driver=rehearsal.driver,
        asks=run.asks,
        post_row=run.post_row,
        list_row=run.list_row,
    )
    drafted = rehearsed.draft(lambda step: observe(step, result))
    if drafted is None or drafted[0].spill.blobs or drafted[0].more:
        return None
    step, terms = drafted
    op = ids.mint("op", place.shard)
    batch, standing = compose(step.decision, held, terms, op, epoch)
    call = writes.log.pack(batch).call
    asked, minted = ids.find_in(call)
    values = list_values(before, answer, now_ms, minted)
    return Rehearsed(
        answer.shape,
        asked,
        len(answer.texts),
        Example(unpack(call), values),
        tuple(ref.kind for ref in step.decision.touched),
        standing.feed,
        standing.index[0] if standing.index else None,
        see_habit(step.record.attempts[-1]),
    )


def _mint(ids: Ids, shard: Shard, prefix: str) -> str:
    return ids.mint(prefix, shard)


def rehearse_result(shape: Shape, ids: Ids, context: str) -> JsonObject:
    """An answer of that shape, in which every text stands for itself."""

    def write(length: int) -> str:
        return rehearse_longer(ids, length)

    said: JsonObject = {"role": "ROLE_AGENT"}
    if shape.says_id or not shape.is_task:
        said["messageId"] = write(_SHORT)
    if shape.says_text or not shape.is_task:
        said["parts"] = [{"text": write(_MIDDLING)}]
    if not shape.is_task:
        return {"message": {**said, "contextId": context}}
    status: JsonObject = {"state": COMPLETED, "message": said}
    artifacts: list[Json] = []
    for types, count, is_named in shape.artifacts:
        parts: list[Json] = [{"text": write(_MIDDLING)} for _ in range(count)]
        for place, media_type in enumerate(types):
            parts[place] = {"text": write(_MIDDLING), "mediaType": media_type}
        named: JsonObject = {"name": write(_SHORT)} if is_named else {}
        artifacts.append({"artifactId": write(_SHORT), **named, "parts": parts})
    return {
        "task": {
            "id": write(_SHORT),
            "contextId": context,
            "status": status,
            "artifacts": artifacts,
        }
    }
