"""What was exported of a session, and what there is to know of it (SNAP-8).

What became of a bundle elsewhere is not known here: whoever checks one keeps its own verdict (ID-15).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from passerelle.core.evidence.record import ExportedBundle, Proof
from passerelle.core.read_models.mark import FreshnessMark, not_applicable
from passerelle.core.wire.record import record


@record
class EvidenceSummary:
    """Bundles by kind, as evidence ids. ``proofs``: what the chain said of the facts of each.

    ``traces`` are those that the facts of all of them are parts of, ``notes`` what is missing in a bundle, or open.
    """

    evidence: tuple[str, ...] = ()
    replays: tuple[str, ...] = ()
    reviews: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()
    proofs: dict[str, Proof] = field(default_factory=dict[str, Proof])
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def show_evidence(bundles: Sequence[ExportedBundle]) -> EvidenceSummary:
    """The summary of what a session remembers."""
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
