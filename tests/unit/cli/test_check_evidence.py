"""The evidence checker: its arithmetic against published vectors, its forms against the gateway's."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, derive_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from passerelle.cli import check_evidence
from passerelle.cli.check_evidence import (
    Damaged,
    name_bundle,
    unpack,
    verify_ed25519,
    verify_p256,
)
from passerelle.core.evidence.bundle import FORM, pack
from passerelle.core.ids import ALL_SHARDS, derive_id
from passerelle.core.wire.canonical import canonicalize
from passerelle.core.wire.json import Json
from passerelle.core.wire.times import format_ms

ED25519 = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]
"""RFC 8032, section 7.1: tests 1 to 3."""
P256_KEY = (
    "60fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6"
    "7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299"
)
P256 = [
    (
        b"sample",
        "efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8",
    ),
    (
        b"test",
        "f1abb023518351cd71d881567b1ea663ed3efcf6c5132b354f28d3b0b7d38367019f4113742a2b14bd25926b49c649155f267e60d3814b4c0cc84250e46f0083",
    ),
]
"""RFC 6979, appendix A.2.5: P-256 with SHA-256."""
_Q = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def flip(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    changed[place // 8 % len(content)] ^= 1 << place % 8
    return bytes(changed)


@pytest.mark.parametrize(("public", "message", "signature"), ED25519)
def test_vectors_of_ed25519_hold_and_no_other_bit_does(
    public: str, message: str, signature: str
) -> None:
    key, said, signed = (bytes.fromhex(one) for one in (public, message, signature))
    assert verify_ed25519(key, said, signed)
    assert not verify_ed25519(key, said + b"x", signed)
    for place in range(0, 512, 37):
        assert not verify_ed25519(key, said, flip(signed, place))
    for place in range(0, 256, 31):
        assert not verify_ed25519(flip(key, place), said, signed)


def test_signatures_of_ed25519_have_one_form() -> None:
    key, said, signed = (bytes.fromhex(one) for one in ED25519[1])
    scalar = int.from_bytes(signed[32:], "little") + _L
    assert not verify_ed25519(key, said, signed[:32] + scalar.to_bytes(32, "little"))
    for public in (key[:-1], key + b"\0", (_Q + 1).to_bytes(32, "little"), b"\2" + bytes(31)):
        assert not verify_ed25519(public, said, signed)
    assert not verify_ed25519(key, said, signed[:-1])


@pytest.mark.parametrize(("message", "signature"), P256)
def test_vectors_of_p256_hold_and_no_other_bit_does(message: bytes, signature: str) -> None:
    key, signed = b"\4" + bytes.fromhex(P256_KEY), bytes.fromhex(signature)
    assert verify_p256(key, message, signed)
    assert not verify_p256(key, message + b"x", signed)
    for place in range(0, 512, 37):
        assert not verify_p256(key, message, flip(signed, place))
    for place in range(0, 65 * 8, 61):
        assert not verify_p256(flip(key, place), message, signed)


def test_numbers_of_p256_lie_in_their_bounds() -> None:
    key, signed = b"\4" + bytes.fromhex(P256_KEY), bytes.fromhex(P256[0][1])
    halves = (signed[:32], signed[32:])
    for bad in (bytes(32), _N.to_bytes(32, "big"), b"\xff" * 32):
        assert not verify_p256(key, b"sample", bad + halves[1])
        assert not verify_p256(key, b"sample", halves[0] + bad)
    for public in (key[:-1], b"\2" + key[1:], b"\4" + bytes(64), b"\4" + b"\xff" * 64):
        assert not verify_p256(public, b"sample", signed)


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=80))
def test_signatures_of_a_library_are_verified(secret: bytes, message: bytes) -> None:
    edwards = Ed25519PrivateKey.from_private_bytes(secret)
    raw = edwards.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    assert verify_ed25519(raw, message, edwards.sign(message))
    curve = derive_private_key(int.from_bytes(secret, "big") % (_N - 1) + 1, SECP256R1())
    point = curve.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    r, s = decode_dss_signature(curve.sign(message, ECDSA(SHA256())))
    assert verify_p256(point, message, r.to_bytes(32, "big") + s.to_bytes(32, "big"))


@pytest.mark.parametrize("factor", [1, 2, _N - 1, _N - 2])
def test_keys_near_the_base_point_take_every_branch(factor: int) -> None:
    curve = derive_private_key(factor, SECP256R1())
    point = curve.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    for message in (b"", b"one", b"two"):
        r, s = decode_dss_signature(curve.sign(message, ECDSA(SHA256())))
        assert verify_p256(point, message, r.to_bytes(32, "big") + s.to_bytes(32, "big"))


VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_canonical_json_is_that_of_the_gateway(value: Json) -> None:
    assert check_evidence.canonicalize(value) == canonicalize(value)


NUMBERS = [
    0.0,
    -0.0,
    42.0,
    0.1,
    1e20,
    1e21,
    123456789012345680000.0,
    1e-6,
    1e-7,
    1.5e-7,
    5e-324,
    1.7e308,
]


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_are_written_as_the_gateway_does(number: float) -> None:
    assert check_evidence.canonicalize(number) == canonicalize(number)


@pytest.mark.parametrize("number", [2**53, -(2**53), float("inf"), float("nan")])
def test_a_number_without_a_canonical_form_is_refused(number: float) -> None:
    with pytest.raises(Damaged, match="no canonical form"):
        check_evidence.canonicalize({"n": number})


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}])
def test_a_text_that_is_not_unicode_is_refused(value: Json) -> None:
    with pytest.raises(Damaged, match="not Unicode"):
        check_evidence.canonicalize(value)


@given(st.integers(0, 253402300799999))
def test_times_are_written_as_the_gateway_does(ms: int) -> None:
    assert check_evidence.write_ms(ms) == format_ms(ms)


def test_names_are_those_of_the_gateway() -> None:
    assert check_evidence.FORM == FORM
    for shard in ALL_SHARDS:
        session = derive_id("se", shard, "x")
        assert name_bundle(session, "replay", "ab" * 32) == derive_id(
            "evd", shard, "replay", "ab" * 32
        )


@given(st.binary(max_size=2000))
def test_a_container_gives_back_what_was_packed(content: bytes) -> None:
    assert unpack(pack(content)) == content


@pytest.mark.requirement("CMD-20")
def test_no_bit_of_a_container_changes_unseen() -> None:
    packed = pack(b'{"form":"passerelle-evidence/1"}\n' * 3)
    assert unpack(packed)
    for place in range(8 * len(packed)):
        changed = flip(packed, place)
        if changed[:2] != packed[:2]:
            # Not a container any more, and so taken as lines: which those of a manifest are not.
            assert check_evidence.check(changed).faults
            continue
        with pytest.raises(Damaged, match="container"):
            unpack(changed)
    for size in range(2, len(packed)):
        with pytest.raises(Damaged, match="container"):
            unpack(packed[:size])


def test_the_program_imports_what_python_has_and_nothing_else() -> None:
    tree = ast.parse(Path(check_evidence.__file__).read_text(encoding="utf-8"))
    named = {
        (one.module if isinstance(one, ast.ImportFrom) else alias.name).partition(".")[0]  # type: ignore[union-attr]  # no relative import
        for one in ast.walk(tree)
        if isinstance(one, ast.Import | ast.ImportFrom)
        for alias in one.names
    }
    assert named <= sys.stdlib_module_names


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"{}", b"[]\n\n", b"\x1f\x8b", b"{" * 5000, b'{"form":"passerelle-evidence/1"}\n',
     b'{"form":"passerelle-evidence/1","entries":[1]}\n{}\n', b'{"form":1}\n', b'{"form":NaN}\n', b"\xff\xfe\n"],
)  # fmt: skip
def test_invalid_bundle_is_a_fault_and_no_traceback(content: bytes) -> None:
    assert check_evidence.check(content).faults
