"""The bundles of a session: what its record keeps of them."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from passerelle.core.wire.record import record

BundleKind: TypeAlias = Literal["evidence", "replay", "review"]
ScopeKind: TypeAlias = Literal["session", "thread", "turn", "task"]
Proof: TypeAlias = Literal["whole", "trimmed", "broken"]
"""The result of verifying the chain over the facts of a bundle."""

KEPT_BUNDLES: Final = 32
"""Bundles that a session or task record keeps, newest first; the others are in the stream only."""
REF: Final = "evidence"
"""The reference from ``evidence.changed`` to the bundle."""
MEDIA_TYPE: Final = "application/gzip"


@record
class ExportedBundle:
    """One bundle. ``sha256`` is that of its manifest, ``blob`` and ``size`` those of the file; ``at`` is RFC 3339."""

    evidence_id: str
    kind: BundleKind
    scope: ScopeKind
    subject: str
    first: int
    covers: int
    sha256: str
    blob: str
    size: int
    proof: Proof
    at: str
    traces: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
