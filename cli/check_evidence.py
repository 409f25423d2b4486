"""Checks a bundle of evidence with Python 3.11 only: no packages, no network, no trust in its author.

    python3 -I -S check_evidence.py BUNDLE [--trust=FINGERPRINT]... [--file=PATH]...

It recomputes every hash, the chain of facts and every signature. It prints who approved what, when, and the digest that
the decision is bound to. Get FINGERPRINT from another source than the bundle: for a gateway the RFC 7638 thumbprint of
its key, for a device the id of its key (key_...). Without it the check proves consistency, not origin: anyone could
have made the whole bundle. FILE is content that a fact names by its hash.

Exit status: 0 valid, 1 changed or not from a trusted key, 2 cannot be read.

The program is this one file. It implements Ed25519 (RFC 8032), ECDSA over P-256 (FIPS 186-5) and canonical JSON (RFC
8785) with Python integers. That is slow, and only suitable for verification, which handles no secrets.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import struct
import sys
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
JsonObject: TypeAlias = "dict[str, Json]"
T = TypeVar("T")

FORM: Final = "passerelle-evidence/1"
LARGEST: Final = 512 * 1024 * 1024
"""Highest size of an unpacked bundle in bytes."""


SHOWN: Final = 600
"""Highest number of characters of a subject in the output."""


class Damaged(Exception):
    """The bundle violates its format; the message names the place."""


# --- Elliptic curves ---


def _add_multiples(
    add: Callable[[T, T], T], zero: T, first: tuple[int, T], second: tuple[int, T]
) -> T:
    """Returns the sum of two multiples of points, a factor and a point each (Shamir's trick)."""
    (one, left), (other, right) = first, second
    summands = (zero, left, right, add(left, right))
    total = zero
    for place in range(max(one, other).bit_length() - 1, -1, -1):
        total = add(total, total)
        total = add(total, summands[(one >> place & 1) + 2 * (other >> place & 1)])
    return total


# --- Ed25519 (RFC 8032, section 5.1) ---

_Q: Final = 2**255 - 19
_L: Final = 2**252 + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, -1, _Q) % _Q
_ROOT: Final = pow(2, (_Q - 1) // 4, _Q)
_Edwards: TypeAlias = tuple[int, int, int, int]
"""X, Y, Z, T with x = X/Z, y = Y/Z and xy = T/Z."""
_ZERO: Final[_Edwards] = (0, 1, 1, 0)


def _add_edwards(one: _Edwards, other: _Edwards) -> _Edwards:
    a = (one[1] - one[0]) * (other[1] - other[0]) % _Q
    b = (one[1] + one[0]) * (other[1] + other[0]) % _Q
    c = 2 * one[3] * other[3] * _D % _Q
    d = 2 * one[2] * other[2] % _Q
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % _Q, g * h % _Q, f * g % _Q, e * h % _Q)


def _find_x(y: int, sign: int) -> int | None:
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _Q) % _Q
    x = pow(square, (_Q + 3) // 8, _Q)
    if (x * x - square) % _Q:
        x = x * _ROOT % _Q
    if (x * x - square) % _Q or (x == 0 and sign):
        return None
    return _Q - x if x & 1 != sign else x


def _read_edwards(encoded: bytes) -> _Edwards | None:
    number = int.from_bytes(encoded, "little")
    y, sign = number & (1 << 255) - 1, number >> 255
    x = _find_x(y, sign) if y < _Q else None
    return None if x is None else (x, y, 1, x * y % _Q)


_BASE_Y: Final = 4 * pow(5, -1, _Q) % _Q
_BASE_X: Final = _find_x(_BASE_Y, 0) or 0
_BASE: Final[_Edwards] = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _Q)


@lru_cache(1024)
def verify_ed25519(public: bytes, message: bytes, signature: bytes) -> bool:
    """Returns whether a 64-byte signature of a message is valid for a 32-byte key."""
    if len(public) != 32 or len(signature) != 64:  # noqa: PLR2004  the sizes of RFC 8032
        return False
    point, scalar = _read_edwards(public), int.from_bytes(signature[32:], "little")
    if point is None or scalar >= _L:
        return False
    hashed = hashlib.sha512(signature[:32] + public + message).digest()
    factor = int.from_bytes(hashed, "little") % _L
    x, y, z, t = point
    negative = (-x % _Q, y, z, -t % _Q)
    total = _add_multiples(_add_edwards, _ZERO, (scalar, _BASE), (factor, negative))
    inverse = pow(total[2], -1, _Q)
    x, y = total[0] * inverse % _Q, total[1] * inverse % _Q
    return (y | (x & 1) << 255).to_bytes(32, "little") == signature[:32]


# --- ECDSA over P-256 with SHA-256 (FIPS 186-5; the signature is r and s, as in RFC 7518 section 3.4) ---

_P: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_B: Final = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
_G: Final = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_Point: TypeAlias = tuple[int, int, int]
"""X, Y, Z with x = X/Z^2 and y = Y/Z^3; Z = 0 is the point at infinity."""


def _double(one: _Point) -> _Point:
    x, y, z = one
    square = y * y % _P
    slope = 3 * (x - z * z) * (x + z * z) % _P
    beta = 4 * x * square % _P
    new_x = (slope * slope - 2 * beta) % _P
    return (new_x, (slope * (beta - new_x) - 8 * square * square) % _P, 2 * y * z % _P)


def _add(one: _Point, other: _Point) -> _Point:
    if one[2] == 0 or other[2] == 0:
        return other if one[2] == 0 else one
    first, second = one[2] * one[2] % _P, other[2] * other[2] % _P
    u1, u2 = one[0] * second % _P, other[0] * first % _P
    s1, s2 = one[1] * second * other[2] % _P, other[1] * first * one[2] % _P
    if u1 == u2:
        return _double(one) if s1 == s2 else (1, 1, 0)
    h, r = (u2 - u1) % _P, (s2 - s1) % _P
    square = h * h % _P
    cube, v = h * square % _P, u1 * square % _P
    x = (r * r - cube - 2 * v) % _P
    return (x, (r * (v - x) - s1 * cube) % _P, h * one[2] * other[2] % _P)


@lru_cache(1024)
def verify_p256(public: bytes, message: bytes, signature: bytes) -> bool:
    """Returns whether a 64-byte signature of a message is valid for a key: an uncompressed point of 65 bytes."""
    if len(public) != 65 or public[0] != 4 or len(signature) != 64:  # noqa: PLR2004  the sizes of SEC 1 and RFC 7518
        return False
    x, y = int.from_bytes(public[1:33], "big"), int.from_bytes(public[33:], "big")
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    on_curve = x < _P and y < _P and (y * y - (x * x * x - 3 * x + _B)) % _P == 0
    if not on_curve or not (0 < r < _N and 0 < s < _N):
        return False
    hashed = int.from_bytes(hashlib.sha256(message).digest(), "big")
    inverse = pow(s, -1, _N)
    u1, u2 = hashed * inverse % _N, r * inverse % _N
    total = _add_multiples(_add, (1, 1, 0), (u1, (*_G, 1)), (u2, (x, y, 1)))
    if total[2] == 0:
        return False
    return total[0] * pow(total[2], -2, _P) % _P % _N == r


# --- JSON: canonical form (RFC 8785) and strict reading ---


def canonicalize(value: Json) -> bytes:
    """Returns the canonical bytes (RFC 8785). Raises Damaged if there are none, as for an integer above 2^53."""
    try:
        return _write(value).encode("utf-8")
    except (UnicodeEncodeError, RecursionError):
        raise Damaged("is not Unicode, or nested too deeply") from None


def _write(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            if abs(value) >= 2**53:
                raise Damaged("a whole number beyond 2^53 has no canonical form")
            return str(value)
        case float():
            return _write_float(value)
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list():
            return f"[{','.join(map(_write, value))}]"
        case dict():
            names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
            return "{" + ",".join(f"{_write(name)}:{_write(value[name])}" for name in names) + "}"


def _write_float(value: float) -> str:
    """Formats a number as ECMAScript does: shortest digits, an exponent from 1e21 and below 1e-6."""
    if not abs(value) < float("inf"):
        raise Damaged("a number that is not finite has no canonical form")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:  # noqa: PLR2004  the bounds of ECMA-262, Number::toString
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:  # noqa: PLR2004
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:  # noqa: PLR2004
        return f"{sign}0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{tail}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _parse(line: bytes) -> JsonObject:
    try:
        value: Json = json.loads(line.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Damaged("is not JSON") from None
    if not isinstance(value, dict):
        raise Damaged("is not a JSON object")
    return value


def _object(holder: JsonObject, name: str) -> JsonObject:
    value = holder.get(name)
    if not isinstance(value, dict):
        raise Damaged(f"{name} is not an object")
    return value


def _list(holder: JsonObject, name: str) -> list[Json]:
    value = holder.get(name)
    if not isinstance(value, list):
        raise Damaged(f"{name} is not a list")
    return value


def _objects(holder: JsonObject, name: str) -> list[JsonObject]:
    found = [value for value in _list(holder, name) if isinstance(value, dict)]
    if len(found) != len(_list(holder, name)):
        raise Damaged(f"{name} is not a list of objects")
    return found


def _text(holder: JsonObject, name: str) -> str:
    value = holder.get(name)
    if not isinstance(value, str):
        raise Damaged(f"{name} is not a text")
    return value


def _whole(holder: JsonObject, name: str) -> int:
    value = holder.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Damaged(f"{name} is not a whole number")
    return value


def _decode(text: str, name: str) -> bytes:
    """Decodes canonical base64url without padding."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise Damaged(f"{name} is not base64url") from None
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != text:
        raise Damaged(f"{name} is not base64url in canonical form")
    return raw


# --- The container: a gzip member whose header has the SHA-256 of the rest ---

_HEADER: Final = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x24\0PE\x20\0"
_REST: Final = len(_HEADER) + 32


def unpack(content: bytes) -> bytes:
    """Returns the lines of a bundle; unpacked lines are returned unchanged.

    Raises:
        Damaged: a byte of the container was changed.
    """
    if not content.startswith(b"\x1f\x8b"):
        return content
    if content[: len(_HEADER)] != _HEADER:
        raise Damaged(f"container: its first {len(_HEADER)} bytes are not those of a bundle")
    packed = content[_REST:]
    if hashlib.sha256(packed).digest() != content[len(_HEADER) : _REST]:
        raise Damaged("container: its bytes are not those of the SHA-256 in its header")
    try:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        text = inflate.decompress(packed, LARGEST)
    except zlib.error as error:
        raise Damaged(f"container: cannot be unpacked: {error}") from None
    if not inflate.eof or inflate.unconsumed_tail:
        raise Damaged("container: ends too early, or is too large")
    if inflate.unused_data != struct.pack("<LL", zlib.crc32(text), len(text) & 0xFFFFFFFF):
        raise Damaged("container: its checksum is not that of its content")
    return text


# --- The bundle ---


class BundleLine(NamedTuple):
    """An entry of the manifest, with its line number in the bundle (from 1) and its content."""

    kind: str
    name: str
    number: int
    content: JsonObject

    def __str__(self) -> str:
        """Returns its name in faults."""
        return f"line {self.number} ({self.kind} {self.name})"


@dataclass
class Report:
    """The result of a check. Without ``faults`` the bundle matches its manifest; ``origin`` states who signed it."""

    about: list[str] = field(default_factory=list[str])
    statements: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])
    faults: list[str] = field(default_factory=list[str])
    origin: str = ""

    @property
    def ok(self) -> bool:
        """Whether there are no faults."""
        return not self.faults

    def lines(self) -> Iterator[str]:
        """Returns the report as lines. For a changed bundle, only the faults."""
        if self.ok:
            yield from self.about
            yield from self.statements
            yield from (f"missing: {one}" for one in self.missing)
        yield from (f"fault: {one}" for one in self.faults)
        count = f"{len(self.faults)} fault{'s' if len(self.faults) > 1 else ''}"
        yield f"evidence: {self.origin if self.ok else f'not valid, {count}'}"


def check(content: bytes, trust: Collection[str] = (), files: Sequence[bytes] = ()) -> Report:
    """Checks a bundle. ``files`` are contents that its facts may name by hash."""
    report = Report()
    try:
        lines = unpack(content).split(b"\n")
        manifest = _read_manifest(lines[0])
        entries = _read_entries(manifest, lines, report)
        keys = _check_signatures(lines, report)
        if report.ok:
            hashed = hashlib.sha256(lines[0]).hexdigest()
            _Content(manifest, entries, trust, report).check(hashed)
            _check_files(manifest, files, report)
            _judge_origin(keys, trust, report)
    except Damaged as error:
        report.faults.append(str(error))
    except (UnicodeEncodeError, RecursionError):
        report.faults.append("a text is not Unicode, or something is nested too deeply")
    return report


def _read_manifest(line: bytes) -> JsonObject:
    try:
        manifest = _parse(line)
    except Damaged as error:
        raise Damaged(f"line 1 (the manifest): {error}") from None
    if manifest.get("form") != FORM:
        raise Damaged(f"line 1 (the manifest): the form is {manifest.get('form')!r}, not {FORM!r}")
    return manifest


def _read_entries(manifest: JsonObject, lines: list[bytes], report: Report) -> list[BundleLine]:
    """Returns the entries whose hash matches; reports missing and changed ones."""
    named = _objects(manifest, "entries")
    found: list[BundleLine] = []
    for number, entry in enumerate(named, 2):
        kind, name = _text(entry, "kind"), _text(entry, "id")
        at = f"line {number} ({kind} {name})"
        if number >= len(lines) - 1:
            report.faults.append(f"{at}: is not in the bundle")
            continue
        hashed = hashlib.sha256(lines[number - 1]).hexdigest()
        if hashed != _text(entry, "sha256"):
            report.faults.append(f"{at}: was changed, its SHA-256 is not that of the manifest")
            continue
        try:
            found.append(BundleLine(kind, name, number, _parse(lines[number - 1])))
        except Damaged as error:
            report.faults.append(f"{at}: {error}")
    if len(lines) != len(named) + 3 or lines[-1]:
        wanted, there = len(named) + 2, len(lines) - 1
        report.faults.append(
            f"the bundle has {there} whole lines, and its manifest is for {wanted}"
        )
    return found


def _check_signatures(lines: list[bytes], report: Report) -> list[str]:
    """Returns the fingerprints of the keys that signed the manifest; reports invalid signatures."""
    at = f"line {len(lines) - 1} (signatures)"
    keys: list[str] = []
    try:
        last = _parse(lines[-2] if len(lines) > 1 else b"")
        if canonicalize(last) != lines[-2] or set(last) != {"signatures"}:
            raise Damaged("is not in canonical form")
        keys += [_check_signature(one, lines[0]) for one in _objects(last, "signatures")]
    except Damaged as error:
        report.faults.append(f"{at}: {error}")
    else:
        if not keys:
            report.faults.append(f"{at}: no gateway has signed the manifest")
    return keys


def _check_signature(one: JsonObject, manifest: bytes) -> str:
    jwk, protected = _object(one, "jwk"), _text(one, "protected")
    fingerprint = hashlib.sha256(canonicalize(jwk)).digest()
    kid = base64.urlsafe_b64encode(fingerprint).rstrip(b"=").decode()
    header, signature = _parse(_decode(protected, "protected")), _text(one, "signature")
    raw, x = _decode(signature, "signature"), _decode(_text(jwk, "x"), "jwk.x")
    content = base64.urlsafe_b64encode(manifest).rstrip(b"=")
    message = protected.encode() + b"." + content
    match _text(jwk, "kty"), _text(jwk, "crv"), _text(header, "alg"):
        case "OKP", "Ed25519", "EdDSA":
            members, holds = {"kty", "crv", "x"}, verify_ed25519(x, message, raw)
        case "EC", "P-256", "ES256":
            y = _decode(_text(jwk, "y"), "jwk.y")
            members, holds = {"kty", "crv", "x", "y"}, verify_p256(b"\4" + x + y, message, raw)
        case _:
            raise Damaged("is of a kind of key that is not known here")
    if set(jwk) != members or set(one) != {"jwk", "protected", "signature"}:
        raise Damaged("has members that are not signed")
    if not holds or _text(header, "kid") != kid:
        raise Damaged(
            f"the signature of the gateway key {kid} is not that of the manifest (line 1)"
        )
    return kid


def _judge_origin(keys: list[str], trust: Collection[str], report: Report) -> None:
    trusted = [key for key in keys if key in trust]
    if trusted:
        report.origin = f"proven, signed by the gateway key {trusted[0]}, which you trust"
    elif any(not one.startswith("key_") for one in trust):
        report.faults.append(f"signed by the gateway key {', '.join(keys)}, which you do not trust")
    else:
        report.origin = (
            f"consistent, origin not proven; signed by the gateway key {', '.join(keys)}: ask its "
            f"operator for the fingerprint by another way, and give it as --trust={keys[0]}"
        )


def _check_files(manifest: JsonObject, files: Sequence[bytes], report: Report) -> None:
    given = {hashlib.sha256(content).hexdigest() for content in files}
    for one in _objects(manifest, "files"):
        sha256, name = _text(one, "sha256"), _text(one, "name")
        if _text(one, "of") != "content":
            continue
        if sha256 in given:
            report.statements.append(
                f"the file with SHA-256 {sha256} is what event {one.get('event')} names {name}"
            )
            given.discard(sha256)
        else:
            report.missing.append(
                f"content with SHA-256 {sha256}, which event {one.get('event')} names {name}: not in the bundle"
            )
    report.faults += [f"no fact names a file with SHA-256 {one}" for one in sorted(given)]


class _Content:
    """The content of the entries, and the checks of their consistency."""

    def __init__(
        self,
        manifest: JsonObject,
        entries: list[BundleLine],
        trust: Collection[str],
        report: Report,
    ) -> None:
        self.manifest, self.entries, self.trust, self.report = manifest, entries, trust, report
        self.facts = [entry for entry in entries if entry.kind == "fact"]
        self.devices = {entry.name: entry.content for entry in entries if entry.kind == "device"}
        self.shown = {entry.name: entry.content for entry in entries if entry.kind == "signature"}
        self.asked: dict[str, JsonObject] = {}

    def check(self, sha256: str) -> None:
        """Adds faults and statements to the report. ``sha256`` is the hash of the manifest."""
        self._introduce(sha256)
        self._check_chain()
        for entry in self.entries:
            try:
                self._check_entry(entry)
            except Damaged as error:
                self.report.faults.append(f"{entry}: {error}")
        for name in self.shown.keys() - {entry.name for entry in self.facts}:
            self.report.faults.append(f"signature {name}: its fact is missing")
        for action, request in self.asked.items():
            self.report.missing.append(
                f"an answer to question {action} ({_text(request, 'title')})"
            )
        self.report.missing += [_text(one, "text") for one in _objects(self.manifest, "missing")]

    def _introduce(self, sha256: str) -> None:
        scope, span = _object(self.manifest, "scope"), _object(self.manifest, "range")
        kind = _text(self.manifest, "kind")
        self.report.about.append(
            f"{kind} of {_text(scope, 'kind')} {_text(scope, 'id')}: facts {_whole(span, 'first')} to "
            f"{_whole(span, 'last')} of session {_text(scope, 'sessionId')}, manifest SHA-256 {sha256}, "
            f"evidence id {name_bundle(_text(scope, 'sessionId'), kind, sha256)}"
        )

    def _check_chain(self) -> None:
        """Checks that every sequence in the range has a fact or its id, and that their chain matches the manifest."""
        chain, span = _object(self.manifest, "chain"), _object(self.manifest, "range")
        first, last = _whole(span, "first"), _whole(span, "last")
        ids: dict[int, str] = {}
        for entry in self.entries:
            if entry.kind == "fact":
                ids[_whole(entry.content, "sequence")] = _text(entry.content, "eventId")
            elif entry.kind == "omitted":
                start = _whole(entry.content, "first")
                for place, event in enumerate(_list(entry.content, "eventIds"), start):
                    ids[place] = str(event)
        whole = len(ids) == last - first + 1 and min(ids, default=0) == first
        if not whole or max(ids) != last:
            self.report.faults.append(
                f"facts between {first} and {last} are missing, and so are their ids"
            )
            return
        value = before = _text(chain, "before")
        if first == 1 and before != _shorten(_text(chain, "epoch")):
            self.report.faults.append("the chain does not start at its epoch")
        for place in range(first, last + 1):
            value = _shorten(value + ids[place])
        if value != _text(chain, "after"):
            self.report.faults.append("the chain over the facts is not that of the manifest")
        if chain.get("proof") == "broken":
            self.report.faults.append("the gateway itself reports a broken chain")
        here = len(self.facts)
        self.report.about.append(
            f"{here} facts are here, {last - first + 1 - here} more in the range by their ids; the chain over all "
            f"of them holds, from {before} to {value}"
        )

    def _check_entry(self, entry: BundleLine) -> None:
        match entry.kind:
            case "fact":
                self._check_fact(entry)
            case "step":
                self._check_names(entry, [entry.content.get("event")])
            case "statement" | "question":
                self._check_names(entry, _list(entry.content, "events"))
                self.report.statements.append(
                    f"{entry.kind} {entry.name}: {_text(entry.content, 'text')}"
                )
            case "device":
                raw = _decode(_text(entry.content, "public"), "public")
                if _text(entry.content, "keyId") != f"key_{hashlib.sha256(raw).hexdigest()[:32]}":
                    raise Damaged("the id of its key is not that of the key")
            case "omitted" | "signature":
                pass
            case _:
                raise Damaged("is of a kind that is not known here")

    def _check_names(self, entry: BundleLine, events: list[Json]) -> None:
        """Checks that an entry names facts of the bundle, or the evidence that it was made from."""
        known, evidence = {fact.name for fact in self.facts}, entry.content.get("evidence")
        if [one for one in events if not isinstance(one, str) or one not in known]:
            raise Damaged("names a fact that is not here")
        if evidence is not None and evidence != self.manifest.get("evidence"):
            raise Damaged("names other evidence than the manifest")
        if not events and evidence is None:
            raise Damaged("names no fact")

    def _check_fact(self, entry: BundleLine) -> None:
        fact, scope = entry.content, _object(self.manifest, "scope")
        if _text(fact, "eventId") != entry.name or fact.get("sessionId") != scope.get("sessionId"):
            raise Damaged("is not the fact that the manifest names")
        payload = _object(fact, "payload")
        match _text(fact, "type"):
            case "action.required":
                request = _object(payload, "request")
                if compute_digest(request, fact) != _text(request, "digest"):
                    raise Damaged("the digest of the question is not that of what was asked")
                self.asked[_text(fact, "actionId")] = request
            case "permission.evaluated" if self.manifest.get("kind") == "evidence":
                self.report.statements.append(
                    f"{_text(fact, 'timestamp')}: policy says {_text(payload, 'decision')} to "
                    f"{_text(payload, 'subject')} ({_text(payload, 'source')}: {_text(payload, 'reason')})"
                )
            case "action.resolved":
                self._check_decision(entry, _object(payload, "decision"))
            case "channel.permission_returned" if payload.get("outcome") == "counted":
                self._check_vote(entry, _object(payload, "vote"))
            case _:
                pass

    def _check_decision(self, entry: BundleLine, decision: JsonObject) -> None:
        action = _text(entry.content, "actionId")
        request = self.asked.pop(action, None)
        if request is not None and request.get("digest") != _text(decision, "digest"):
            raise Damaged("the decision is bound to a digest other than that of the question")
        content = decision.get("content")
        signed: JsonObject = {
            "v": 1,
            "actionId": action,
            "rev": decision.get("rev"),
            "digest": decision.get("digest"),
            "optionId": decision.get("optionId"),
            "contentDigest": None if content is None else _digest(content),
            "decisionId": decision.get("decisionId"),
            "deviceId": decision.get("device"),
        }
        signature = self._check_signed(entry, decision, signed)
        who, outcome = _text(decision, "decidedBy"), _text(decision, "outcome")
        by = f"{_text(decision, 'decidedKind')} {who}"
        if decision.get("cause") != "human":
            by += f" (automatic: {_text(decision, 'cause')})"
        self.report.statements.append(
            f"{_text(decision, 'decidedAt')}: {by} has {outcome} question {action}{_show_question(request)}"
            f"{_show_option(request, decision.get('optionId'))}; bound to digest {_text(decision, 'digest')}"
            f"; {signature}"
        )

    def _check_vote(self, entry: BundleLine, vote: JsonObject) -> None:
        action = _text(entry.content, "actionId")
        request = self.asked.get(action)
        signed: JsonObject = {
            "v": 1,
            "actionId": action,
            "rev": 1,
            "digest": None if request is None else request.get("digest"),
            "optionId": vote.get("optionId"),
            "contentDigest": None,
            "decisionId": vote.get("decisionId"),
            "deviceId": vote.get("device"),
        }
        signature = self._check_signed(entry, vote, signed)
        self.report.statements.append(
            f"{_text(vote, 'at')}: {_text(vote, 'principal')} has given a vote on question {action}"
            f"{_show_question(request)}{_show_option(request, vote.get('optionId'))}; {signature}"
        )

    def _check_signed(self, entry: BundleLine, decision: JsonObject, signed: JsonObject) -> str:
        """Describes the signature of a decision. Raises Damaged if it does not match the device that it names."""
        if decision.get("signature") is None:
            return "not signed by a device"
        given = _object(decision, "signature")
        signed["iat"] = given.get("iat")
        shown, key, value = self.shown.get(entry.name), _text(given, "keyId"), _text(given, "value")
        if shown is None or shown.get("signed") != signed or shown.get("value") != value:
            raise Damaged("the signed data differs from that of the fact")
        device = self.devices.get(str(signed["deviceId"]))
        if device is None:
            return f"signed with key {key}, which is no longer stored, so it cannot be checked"
        who = decision.get("decidedBy") or decision.get("principal")
        if device.get("keyId") != key or device.get("principal") != who:
            raise Damaged("the signing device belongs to another person than the decision")
        if not _holds(device, canonicalize(signed), _decode(value, "signature")):
            raise Damaged(
                f"the signature of device {signed['deviceId']} is not that of this answer"
            )
        vouched = f"which the gateway says is that of {who} since {device.get('confirmedAt')}"
        trusted = "which you trust" if key in self.trust else vouched
        return f"signed by device {signed['deviceId']} with key {key}, {trusted}"


def _holds(device: JsonObject, message: bytes, signature: bytes) -> bool:
    public = _decode(_text(device, "public"), "public")
    match _text(device, "algorithm"):
        case "Ed25519":
            return verify_ed25519(public, message, signature)
        case "ES256":
            return verify_p256(public, message, signature)
        case _:
            return False


def _show_question(request: JsonObject | None) -> str:
    """Describes an approval request with its subject. The digest binds the subject, not the title."""
    if request is None:
        return " (which is not in this bundle)"
    subject = canonicalize(request.get("subject")).decode()
    shown = subject if len(subject) <= SHOWN else f"{subject[:SHOWN]}…"
    return f" ({_text(request, 'title')}; risk {_text(request, 'risk')}; subject {shown})"


def _show_option(request: JsonObject | None, option: Json) -> str:
    if option is None:
        return ""
    offered = _objects(request, "options") if request is not None else []
    name = next((_text(one, "name") for one in offered if one.get("optionId") == option), None)
    if request is not None and name is None:
        raise Damaged("the option is not one of the question")
    return f" by option {option}" + (f" ({name})" if name else "")


def compute_digest(request: JsonObject, fact: JsonObject) -> str:
    """Returns the digest of an approval request, which its decision is bound to."""
    origin, remote, quorum = (
        _object(request, "origin"),
        request.get("remote"),
        _object(request, "quorum"),
    )
    bound: JsonObject = {"need": quorum.get("need")}
    if _whole(quorum, "need") > 1:
        bound["veto"] = quorum.get("veto")
    if quorum.get("allowSelf") is not True:
        bound["allowSelf"] = False
    options: list[Json] = [
        {name: one[name] for name in ("optionId", "name", "kind", "grant") if name in one}
        for one in _objects(request, "options")
    ]
    return _digest(
        {
            "v": 1,
            "actionId": request.get("actionId"),
            "kind": request.get("kind"),
            "peer": origin.get("peer"),
            "cardDigest": origin.get("cardHash"),
            "taskId": fact.get("taskId"),
            "runId": fact.get("runId"),
            "occurrence": remote.get("occurrence") if isinstance(remote, dict) else None,
            "subject": request.get("subject"),
            "options": options,
            "responseSchema": request.get("responseSchema"),
            "quorum": bound,
            "expiresAt": write_ms(_whole(request, "expiresMs")),
            "policyVersion": request.get("policyVersion"),
        }
    )


def _digest(value: Json) -> str:
    return f"sha256:{hashlib.sha256(canonicalize(value)).hexdigest()}"


def write_ms(ms: int) -> str:
    """Formats milliseconds as RFC 3339 in UTC."""
    days, rest = divmod(ms, 86_400_000)
    # Civil date of a day count: eras of 400 years that begin on the 1st of March.
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5 - 1
    month += 3 if month < 10 else -9  # noqa: PLR2004
    year += 400 * era + (month <= 2)  # noqa: PLR2004
    seconds, left = divmod(rest, 1000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{left:03}"
    return f"{year:04}-{month:02}-{day:02}T{clock}Z"


def _shorten(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]


_LETTERS: Final = "0123456789abcdefghjkmnpqrstvwxyz"


def name_bundle(session: str, kind: str, sha256: str) -> str:
    """Returns the id of a bundle: derived from kind and manifest, in the shard of its session."""
    number = int.from_bytes(hashlib.sha256(f"{kind}\0{sha256}".encode()).digest()[1:18], "big")
    body = "".join(_LETTERS[number >> place & 31] for place in range(125, -1, -5))
    return f"evd_{session.partition('_')[2][:2]}{body}"


def show(line: str) -> str:
    """Escapes control characters of a line, so that text of agents and people cannot act on the terminal."""
    return "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in line)


def main(arguments: Iterable[str] | None = None) -> int:
    """Checks a file and prints the report. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="check_evidence.py", description="Check a bundle of evidence."
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--trust", action="append", default=[], metavar="FINGERPRINT")
    parser.add_argument("--file", action="append", default=[], type=Path, metavar="PATH")
    given = parser.parse_args(None if arguments is None else list(arguments))
    try:
        content, files = given.bundle.read_bytes(), [path.read_bytes() for path in given.file]
    except OSError as error:
        print(f"{error.filename} cannot be read: {error.strerror}", file=sys.stderr)
        return 2
    report = check(content, given.trust, files)
    for line in report.lines():
        print(show(line))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
