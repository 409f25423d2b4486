"""A session for a returning reader: its threads, the newest history, and where to continue (SNAP-1).

Also its exported evidence (SNAP-8), and the whole of it once it is archived (TEV-17). Verification elsewhere is not
tracked here: each verifier keeps its own verdict (ID-15).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from passerelle.core.evidence.record import ExportedBundle, Proof
from passerelle.core.read_models.history import HistoryWindow
from passerelle.core.read_models.mark import FreshnessMark, not_applicable, unavailable
from passerelle.core.session.machine import SessionRecord
from passerelle.core.session.thread import ThreadRecord, ThreadStatus
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record


@record
class EvidenceSummary:
    """Evidence ids by kind. ``proofs``: the state of the chain over the facts of each bundle.

    ``traces`` are the trace ids of all their facts, ``notes`` list what is missing in a bundle, or open.
    """

    evidence: tuple[str, ...] = ()
    replays: tuple[str, ...] = ()
    reviews: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()
    proofs: dict[str, Proof] = field(default_factory=dict[str, Proof])
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def show_evidence(bundles: Sequence[ExportedBundle]) -> EvidenceSummary:
    """The summary of the bundles in a session's record."""
    nothing = not_applicable("nothing was exported")
    return EvidenceSummary(
        evidence=tuple(one.evidence_id for one in bundles if one.kind == "evidence"),
        replays=tuple(one.evidence_id for one in bundles if one.kind == "replay"),
        reviews=tuple(one.evidence_id for one in bundles if one.kind == "review"),
        traces=tuple(dict.fromkeys(trace for one in bundles for trace in one.traces)),
        proofs={one.evidence_id: one.proof for one in bundles},
        notes={one.evidence_id: one.notes for one in bundles if one.notes},
        marks={} if bundles else {"evidence": nothing},
    )


@record
class ThreadLine:
    """A thread in a list."""

    thread_id: str
    context_id: str
    status: ThreadStatus
    updated_at: str
    turns: int
    active_turns: tuple[str, ...] = ()


@record
class SessionSnapshot:
    """``sequence`` is the last event in it; ``cursor`` continues from there, over a channel."""

    session_id: str
    sequence: int
    cursor: str
    owner: str
    tenant: str
    principal: str
    created_at: str
    updated_at: str
    threads: tuple[ThreadLine, ...]
    thread_count: int
    history: HistoryWindow
    title: str | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    open_tasks: tuple[str, ...] = ()
    open_actions: tuple[str, ...] = ()
    evidence_summary: EvidenceSummary = field(default_factory=EvidenceSummary)
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def show_session(
    session: SessionRecord,
    threads: Sequence[ThreadRecord],
    history: HistoryWindow,
    cursor: str,
    still_open: Sequence[str] = (),
) -> SessionSnapshot:
    """The snapshot of a session; ``still_open`` are its open tasks and approvals."""
    marks: dict[str, FreshnessMark] = {}
    if session.title is None:
        marks["title"] = not_applicable("the session has no title")
    if len(threads) < session.thread_count:
        older = session.thread_count - len(threads)
        marks["threads"] = unavailable(f"{older} older threads are not listed")
    return SessionSnapshot(
        session_id=session.session_id,
        sequence=history.last,
        cursor=cursor,
        owner=session.owner,
        tenant=session.tenant,
        principal=session.principal,
        created_at=session.created_at,
        updated_at=session.updated_at,
        threads=tuple(map(_show, threads)),
        thread_count=session.thread_count,
        history=history,
        title=session.title,
        labels=session.labels,
        open_tasks=tuple(name for name in still_open if name.startswith("task_")),
        open_actions=tuple(name for name in still_open if not name.startswith("task_")),
        evidence_summary=show_evidence(session.bundles or ()),
        marks=marks,
    )


def _show(thread: ThreadRecord) -> ThreadLine:
    return ThreadLine(
        thread_id=thread.thread_id,
        context_id=thread.context_id,
        status=thread.status,
        updated_at=thread.updated_at,
        turns=thread.turns,
        active_turns=thread.active_turns,
    )


@record
class ArchiveContent:
    """The session of a ref, with the tasks that its reader may see, and a page of the events up to ``sequence``.

    ``tasks`` are the current ones, on the first page only. ``after`` reads the next page; without it this is the last
    one. ``in_memory``: the session was resumed.
    """

    ref: str
    session_id: str
    sequence: int
    in_memory: bool
    tasks: tuple[JsonObject, ...]
    events: tuple[JsonObject, ...]
    after: int | None = None
