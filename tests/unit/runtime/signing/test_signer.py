"""Signatures: detached from their content, by every key that signs, and in tokens."""

from dataclasses import replace
from pathlib import Path

import httpx
import jwt
import orjson
import pytest
from starlette.applications import Starlette

from passerelle.core.errors import ConfigInvalid
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings.model import Settings, find_contradictions
from passerelle.gateway.settings.values import load_signer
from passerelle.runtime.common.signatures import (
    DetachedSignature,
    Signer,
    decode_segment,
    encode_segment,
    make_jwks_route,
    mint_signing_key,
    read_signing_key,
)

JKU = "https://gateway.example/.well-known/jwks.json"
NEW = read_signing_key(mint_signing_key("ES256"), "new")
OLD = read_signing_key(mint_signing_key("EdDSA"), "old")
GONE = replace(read_signing_key(mint_signing_key("ES256"), "gone"), signs=False)
SIGNER = Signer((NEW, OLD, GONE), JKU)


def _read_header(signature: DetachedSignature) -> JsonObject:
    header: JsonObject = orjson.loads(decode_segment(signature.protected) or b"")
    return header


def _verify(signature: DetachedSignature, content: bytes) -> str:
    """The key by which an outside library verifies it."""
    keys = jwt.PyJWKSet.from_dict({"keys": [*SIGNER.render_jwks()["keys"]]})  # type: ignore[misc]  # a JSON list
    kid = str(_read_header(signature)["kid"])
    token = f"{signature.protected}.{encode_segment(content)}.{signature.signature}"
    assert jwt.PyJWS().decode(token, keys[kid], algorithms=["ES256", "EdDSA"]) == content
    return kid


def test_every_key_that_signs_makes_a_signature_so_that_keys_can_rotate() -> None:
    signatures = SIGNER.sign(b"content")
    assert [_verify(signature, b"content") for signature in signatures] == [NEW.kid, OLD.kid]


@pytest.mark.kit("CARD-SIGN-003")
def test_header_has_algorithm_type_key_and_key_set_url() -> None:
    first, second = SIGNER.sign(b"")
    assert _read_header(first) == {"alg": "ES256", "typ": "JOSE", "kid": NEW.kid, "jku": JKU}
    assert _read_header(second) == {"alg": "EdDSA", "typ": "JOSE", "kid": OLD.kid, "jku": JKU}
    assert "jku" not in _read_header(Signer((NEW,)).sign(b"")[0])


def test_detached_form_leaves_its_payload_out() -> None:
    (signature,) = Signer((NEW,)).sign(b"body")
    assert signature.detached == f"{signature.protected}..{signature.signature}"


def test_token_is_signed_by_the_first_key_that_signs() -> None:
    token = Signer((GONE, OLD, NEW), JKU).sign_token({"iss": "us", "n": 1})
    header = jwt.get_unverified_header(token)
    assert (header["typ"], header["kid"]) == ("JWT", OLD.kid)
    key = jwt.PyJWK.from_dict(OLD.jwk)
    assert jwt.decode(token, key, algorithms=["EdDSA"]) == {"iss": "us", "n": 1}


@pytest.mark.anyio
async def test_retired_keys_are_published_too() -> None:
    site = httpx.ASGITransport(Starlette(routes=[make_jwks_route(SIGNER)]))
    async with httpx.AsyncClient(transport=site, base_url="http://gateway") as http:
        response = await http.get("/.well-known/jwks.json")
    assert response.headers["content-type"] == "application/jwk-set+json"
    assert [key["kid"] for key in response.json()["keys"]] == [NEW.kid, OLD.kid, GONE.kid]
    assert not [key for key in response.json()["keys"] if "d" in key]


def _settings(tmp_path: Path, *names: str, **others: object) -> Settings:
    entries: list[object] = []
    for name in names:
        path = tmp_path / name
        if not path.exists():
            path.touch(0o600)
            path.write_text(mint_signing_key("ES256").get_secret_value())
        entries.append({"file": path})
    return Settings.model_validate({"signing": {"keys": entries}, **others})


def test_signer_has_the_keys_of_the_settings(tmp_path: Path) -> None:
    assert load_signer(Settings()) is None
    settings = _settings(tmp_path, "a.pem", "b.pem", public_url="https://gateway.example/")
    signer = load_signer(settings)
    assert signer is not None
    assert signer.jku == JKU
    assert len({key.kid for key in signer.keys}) == 2
    assert settings.signing.signs_cards


def test_same_key_twice_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"signing\.keys\.1\.file: contains the key"):
        load_signer(_settings(tmp_path, "a.pem", "a.pem"))


def test_signed_cards_want_a_public_url_and_a_key_that_signs(tmp_path: Path) -> None:
    settings = _settings(tmp_path, "a.pem")
    assert [path for path, _ in find_contradictions(settings, {})] == [("public_url",)]
    assert not list(find_contradictions(_settings(tmp_path, "a.pem", signing={"cards": False}), {}))
    mute = {"signing": {"keys": [{"file": tmp_path / "a.pem", "signs": False}]}}
    faults = find_contradictions(Settings.model_validate(mute), {})
    assert [path for path, _ in faults] == [("signing", "keys")]
