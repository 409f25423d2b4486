"""The calls about evidence: export bundles of facts, and read them in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from passerelle.core.evidence.requests import (
    BundleContent,
    BundleExported,
    ExportBundle,
    ExportParams,
    GetBundle,
)
from passerelle.core.principal import AccessScope
from passerelle.runtime.common.calls import MethodRow

if TYPE_CHECKING:
    from passerelle.core.evidence.record import BundleKind

_AUDIT: Final = (AccessScope.READ_AUDIT,)


def _export(kind: BundleKind, summary: str) -> MethodRow:
    return MethodRow(
        f"export_{kind}",
        summary,
        _AUDIT,
        ExportParams,
        BundleExported,
        read=lambda params, _: ExportBundle(kind, params),
    )


EVIDENCE_ROWS: Final[Sequence[MethodRow]] = (
    _export("evidence", "Export a bundle of events that can be checked elsewhere"),
    _export("replay", "The same, with what is needed to repeat the work"),
    _export("review", "The same, as sentences, with what remains open"),
    MethodRow(
        "get_evidence",
        "A bundle as it was exported, part by part",
        _AUDIT,
        GetBundle,
        model=BundleContent,
    ),
)
