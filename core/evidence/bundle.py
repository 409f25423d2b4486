"""The form of a bundle: JSON lines after a manifest that commits to each of them, signed, in a container.

Line 1 is the manifest and the last line holds the signatures over it. Between them are the entries, each with its
SHA-256 in the manifest. A fact is the stored envelope itself; everything else is made from facts, or from the list of a
person's devices. A manifest does not depend on when, where or for whom it is made: the same scope at the same sequence
has the same bytes, and so the same hash and id.

The container is a gzip member that any tool unpacks. Deflate has bits that readers ignore, so the header carries a
SHA-256 of everything after it: no byte of a file can change undetected.

``cli/check_evidence.py`` reads this form and shares no code with this module.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import TYPE_CHECKING, Final

from passerelle.core.evidence.replay import is_step, list_steps
from passerelle.core.evidence.review import OpenQuestion, Statement, list_open, list_statements
from passerelle.core.evidence.signed import SignedAnswer, SigningDevice
from passerelle.core.ids import derive_id, shard_of
from passerelle.core.payloads.run import ArtifactChanged, OutputExpired
from passerelle.core.wire.canonical import canonicalize
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.json import Json
from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from _typeshed import DataclassInstance

    from passerelle.core.evidence.record import BundleKind
    from passerelle.core.evidence.selection import Selection, StoredFact
    from passerelle.core.wire.json import JsonObject

FORM: Final = "passerelle-evidence/1"
_GZIP: Final = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff"
"""Deflate, with a field in the header, no time, no name, no system."""
_FIELD: Final = b"PE"
_LEVEL: Final = 6
_RUN: Final = 512
"""Maximum ids in one line of omitted facts."""


@value
class BundleEntry:
    """A line of a bundle, without its line end; ``name`` is its id."""

    kind: str
    name: str
    line: bytes


@value
class Bundle:
    """An unsigned bundle. ``notes`` list what is missing in it, or open."""

    kind: BundleKind
    selection: Selection
    manifest: bytes
    entries: tuple[BundleEntry, ...]
    notes: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """The hash of the manifest, which commits to everything in the bundle except its signatures."""
        return hashlib.sha256(self.manifest).hexdigest()

    @property
    def evidence_id(self) -> str:
        """The id, derived from kind and content."""
        return derive_id("evd", shard_of(self.selection.scope.session_id), self.kind, self.sha256)


def compose_bundle(
    kind: BundleKind,
    selection: Selection,
    answers: Sequence[SignedAnswer],
    devices: Mapping[str, SigningDevice],
    evidence: Bundle | None = None,
) -> Bundle:
    """The bundle of a selection; ``evidence`` is the bundle that a review is made from."""
    facts, entries = _compose_entries(kind, selection, evidence)
    kept = {fact.entry.event_id for fact in facts}
    signed = [one for one in answers if one.event in kept]
    named = {one.device_id: devices.get(one.device_id) for one in signed}
    known = [device for device in named.values() if device is not None]
    entries += [_write("device", one.device_id, one) for one in known]
    entries += [_write("signature", one.event, one) for one in signed]
    missing = _list_missing(selection, [name for name, device in named.items() if device is None])
    manifest = canonicalize(
        {
            "form": FORM,
            "kind": kind,
            "scope": {
                "kind": selection.scope.kind,
                "id": selection.scope.subject,
                "sessionId": selection.scope.session_id,
            },
            "range": {"first": selection.first, "last": selection.last},
            "chain": {
                "epoch": selection.epoch,
                "before": selection.before,
                "after": selection.after,
                "proof": selection.proof,
            },
            "traces": list(selection.traces),
            "evidence": None if evidence is None else evidence.evidence_id,
            "files": list(_list_files(facts)),
            "missing": list[Json](missing),
            "entries": [
                {
                    "kind": entry.kind,
                    "id": entry.name,
                    "sha256": hashlib.sha256(entry.line).hexdigest(),
                }
                for entry in entries
            ],
        }
    )
    notes = [str(one["text"]) for one in missing]
    if kind == "review":
        notes += [one.text for one in list_open(selection.facts)]
    return Bundle(kind, selection, manifest, tuple(entries), tuple(dict.fromkeys(notes)))


def _compose_entries(
    kind: BundleKind, selection: Selection, evidence: Bundle | None
) -> tuple[Sequence[StoredFact], list[BundleEntry]]:
    """The facts of a kind of bundle, and all entries made from them."""
    made: list[BundleEntry] = []
    facts = selection.facts
    if kind == "replay":
        facts = tuple(fact for fact in facts if is_step(fact))
        made = [_write("step", one.event, one) for one in list_steps(facts)]
    elif kind == "review" and evidence is not None:
        statements, questions = [*list_statements(facts)], [*list_open(facts)]
        named = {event for one in statements for event in one.events}
        named |= {event for one in questions for event in one.events}
        facts = tuple(fact for fact in facts if fact.entry.event_id in named)
        made = [*_write_review(evidence, statements, questions)]
    taken = {fact.entry.sequence for fact in facts}
    left_out = [
        *selection.omitted,
        *(
            (fact.entry.sequence, fact.entry.event_id)
            for fact in selection.facts
            if fact.entry.sequence not in taken
        ),
    ]
    entries = [BundleEntry("fact", fact.entry.event_id, _flatten(fact)) for fact in facts]
    return facts, [*entries, *_write_omitted(sorted(left_out)), *made]


def _flatten(fact: StoredFact) -> bytes:
    """A stored envelope on one line. If an agent's bytes contain line feeds, they become spaces."""
    data = fact.entry.data
    return data if b"\n" not in data else data.replace(b"\n", b" ")


def _write(kind: str, name: str, content: DataclassInstance) -> BundleEntry:
    return BundleEntry(kind, name, canonicalize(to_wire(content)))


def _write_review(
    evidence: Bundle, statements: Iterable[Statement], questions: Iterable[OpenQuestion]
) -> Iterator[BundleEntry]:
    of = evidence.selection
    first = Statement(
        f"made from the facts {of.first} to {of.last} of {of.scope.kind} {of.scope.subject}, "
        f"whose manifest has SHA-256 {evidence.sha256}",
        evidence=evidence.evidence_id,
    )
    for number, one in enumerate((first, *statements), 1):
        yield _write("statement", str(number), one)
    for number, question in enumerate(questions, 1):
        yield _write("question", str(number), question)


def _write_omitted(left_out: Sequence[tuple[int, str]]) -> Iterator[BundleEntry]:
    """Facts of the range that are not in the bundle: consecutive ones on one line, by id."""
    run: list[tuple[int, str]] = []
    for one in left_out:
        if run and (one[0] != run[-1][0] + 1 or len(run) == _RUN):
            yield _write_run(run)
            run = []
        run.append(one)
    if run:
        yield _write_run(run)


def _write_run(run: Sequence[tuple[int, str]]) -> BundleEntry:
    ids: list[Json] = [event for _, event in run]
    line = canonicalize({"first": run[0][0], "last": run[-1][0], "eventIds": ids})
    return BundleEntry("omitted", str(run[0][0]), line)


def _list_files(facts: Iterable[StoredFact]) -> Iterator[JsonObject]:
    """Content that facts reference by hash, each once, with the first fact that names it.

    The hash of an artifact is over the canonical JSON of its ``parts``.
    """
    seen: set[str] = set()
    for fact in facts:
        decoded, event = fact.event.fact, fact.entry.event_id
        named: list[tuple[str, str, str, int | None]] = [
            ("content", name, ref.blob, ref.size)
            for name, ref in decoded.refs.items()
            if ref.blob is not None
        ]
        if isinstance(decoded.payload, ArtifactChanged):
            changed = decoded.payload
            named.append(("parts", changed.artifact_id, changed.sha256, changed.size))
        for of, name, sha256, size in named:
            if sha256 not in seen:
                seen.add(sha256)
                yield {"sha256": sha256, "size": size, "of": of, "name": name, "event": event}


def _list_missing(selection: Selection, devices: Sequence[str]) -> list[JsonObject]:
    missing: list[JsonObject] = []
    if selection.proof == "trimmed":
        text = f"facts before {selection.first} are not kept any more"
        missing.append({"kind": "facts", "id": str(selection.first), "text": text})
    for fact in selection.facts:
        payload = fact.event.fact.payload
        if isinstance(payload, OutputExpired):
            text = f"content with SHA-256 {payload.sha256} is not kept any more"
            missing.append({"kind": "file", "id": payload.sha256, "text": text})
    for name in devices:
        text = f"the key of device {name} is not kept any more"
        missing.append({"kind": "device", "id": name, "text": text})
    return missing


def write_bundle(bundle: Bundle, signatures: Sequence[JsonObject]) -> bytes:
    """The file: manifest, entries and signatures, one per line, in their container."""
    last = canonicalize({"signatures": list[Json](signatures)})
    lines = (bundle.manifest, *(entry.line for entry in bundle.entries), last)
    return pack(b"".join(line + b"\n" for line in lines))


def pack(content: bytes) -> bytes:
    """Content in a gzip member whose header has the SHA-256 of everything after it."""
    deflate = zlib.compressobj(_LEVEL, wbits=-zlib.MAX_WBITS)
    packed = deflate.compress(content) + deflate.flush()
    packed += struct.pack("<LL", zlib.crc32(content), len(content) & 0xFFFFFFFF)
    field = _FIELD + struct.pack("<H", 32) + hashlib.sha256(packed).digest()
    return _GZIP + struct.pack("<H", len(field)) + field + packed
