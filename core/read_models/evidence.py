"""The exported evidence of a session (SNAP-8).

Verification elsewhere is not tracked here: each verifier keeps its own verdict (ID-15).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from passerelle.core.evidence.record import ExportedBundle, Proof
from passerelle.core.read_models.mark import FreshnessMark, not_applicable
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
