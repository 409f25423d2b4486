"""Signing keys: created, kept in private files, named by their content."""

import hashlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt import PyJWK

from passerelle.core.errors import ConfigInvalid
from passerelle.runtime.common.private_file import load_or_mint
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.common.signatures import (
    SigningAlgorithm,
    decode_segment,
    encode_segment,
    load_signing_key,
    mint_signing_key,
    read_signing_key,
)

BOTH: list[SigningAlgorithm] = ["ES256", "EdDSA"]


@pytest.mark.parametrize("algorithm", BOTH)
def test_signature_is_verified_by_the_published_key(algorithm: SigningAlgorithm) -> None:
    key = read_signing_key(mint_signing_key(algorithm), "here")
    published = PyJWK.from_dict(key.jwk)
    assert published.algorithm_name == key.algorithm == algorithm
    signature = key.sign(b"content")
    assert len(signature) == 64
    assert published.Algorithm.verify(b"content", published.key, signature)
    assert not published.Algorithm.verify(b"Content", published.key, signature)


@pytest.mark.parametrize("algorithm", BOTH)
def test_same_content_has_the_same_signature_on_every_instance(algorithm: SigningAlgorithm) -> None:
    pem = mint_signing_key(algorithm)
    one, other = read_signing_key(pem, "a"), read_signing_key(pem, "b")
    assert one.sign(b"x") == other.sign(b"x")
    assert one.kid == other.kid


@pytest.mark.parametrize("algorithm", BOTH)
def test_name_of_a_key_is_its_thumbprint_and_only_the_public_half_is_published(
    algorithm: SigningAlgorithm,
) -> None:
    key = read_signing_key(mint_signing_key(algorithm), "here")
    members = {name: key.jwk[name] for name in ("crv", "kty", "x", "y") if name in key.jwk}
    text = json.dumps(members, separators=(",", ":"), sort_keys=True)
    assert key.kid == key.jwk["kid"] == encode_segment(hashlib.sha256(text.encode()).digest())
    assert "d" not in key.jwk
    assert "PRIVATE" not in repr(key)


def _pem(private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> Secret:
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return Secret(pem.decode())


@pytest.mark.parametrize(
    "pem",
    [
        Secret("no key"),
        Secret("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"),
        _pem(ec.generate_private_key(ec.SECP384R1())),
        _pem(rsa.generate_private_key(65537, 2048)),
    ],
)
def test_key_of_another_kind_is_refused_and_the_place_is_named(pem: Secret) -> None:
    with pytest.raises(ConfigInvalid, match=r"keys/one\.pem: should hold a private key for P-256"):
        read_signing_key(pem, "keys/one.pem")


def test_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    load_or_mint(path, lambda: mint_signing_key("ES256").get_secret_value())
    assert load_signing_key(path, signs=False).signs is False
    path.chmod(0o640)
    with pytest.raises(ConfigInvalid, match="chmod 600"):
        load_signing_key(path)
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        load_signing_key(tmp_path / "none.pem")


@pytest.mark.parametrize("text", ["a", "é", "a+b_", "a b c d", "ab==", "abcde"])
def test_text_that_is_no_base64url_is_none(text: str) -> None:
    assert decode_segment(text) is None


def test_segments_come_back_without_padding() -> None:
    for content in (b"", b"\xff", b"\xfb\xff", b"abc"):
        text = encode_segment(content)
        assert "=" not in text
        assert decode_segment(text) == content
