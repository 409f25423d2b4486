"""The headers of a push notification, and how a receiver can verify that the gateway sent it."""

from __future__ import annotations

import hashlib
from typing import cast

import jwt
import pytest

from passerelle.core.push import PushConfig
from passerelle.runtime.common.signatures import (
    Signer,
    encode_segment,
    mint_signing_key,
    read_signing_key,
)
from passerelle.webhooks.addresses import WebhookRules
from passerelle.webhooks.push import Authority, compose_headers

BODY = b'{"task":{}}'
ADDRESS = WebhookRules(()).judge("https://hooks.example.com/x")
URL = "https://hooks.example.com/x"


class FixedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


def compose(config: PushConfig, authority: Authority | None = None) -> dict[str, str]:
    return compose_headers(config, ADDRESS, BODY, "c/ev_1", "0a1b2c3d.4.0badcafe", authority)


def test_config_without_anything_gets_what_every_delivery_has() -> None:
    assert compose(PushConfig(URL)) == {
        "Content-Type": "application/a2a+json",
        "X-Passerelle-Delivery": "c/ev_1",
        "X-Passerelle-Cursor": "0a1b2c3d.4.0badcafe",
    }


def test_body_of_an_old_receiver_is_plain_json() -> None:
    assert compose(PushConfig(URL, dialect="0.3"))["Content-Type"] == "application/json"


def test_credentials_go_as_they_were_given() -> None:
    headers = compose(PushConfig(URL, token="t", scheme="Basic", credentials="dTpw"))
    assert headers["Authorization"] == "Basic dTpw"
    assert headers["X-A2A-Notification-Token"] == "t"


@pytest.mark.parametrize("algorithm", ["ES256", "EdDSA"])
def test_bearer_without_credentials_gets_a_token_that_our_jwks_verifies(algorithm: str) -> None:
    pem = mint_signing_key("ES256" if algorithm == "ES256" else "EdDSA")
    signer = Signer((read_signing_key(pem, "key"),), "https://gw.example.com/jwks.json")
    authority = Authority(signer, "https://gw.example.com", FixedClock())
    headers = compose(PushConfig(URL, scheme="bearer"), authority)
    (published,) = cast("list[dict[str, str]]", signer.render_jwks()["keys"])
    key = jwt.PyJWK(published)
    claims = jwt.decode(
        headers["Authorization"].removeprefix("Bearer "),
        key,
        algorithms=[algorithm],
        audience="https://hooks.example.com",
        issuer="https://gw.example.com",
        options={"verify_exp": False},
    )
    assert claims["request_body_sha256"] == hashlib.sha256(BODY).hexdigest()
    assert claims["jti"] == "c/ev_1"
    assert claims["exp"] - claims["iat"] == 300
    # The detached signature covers the body itself.
    protected, _, signature = headers["X-Passerelle-Signature"].partition("..")
    whole = f"{protected}.{encode_segment(BODY)}.{signature}"
    assert jwt.PyJWS().decode(whole, key, algorithms=[algorithm]) == BODY


def test_credentials_of_the_config_are_not_replaced_by_the_gateways() -> None:
    pem = mint_signing_key("EdDSA")
    authority = Authority(Signer((read_signing_key(pem, "key"),)), "gw", FixedClock())
    headers = compose(PushConfig(URL, scheme="Bearer", credentials="theirs"), authority)
    assert headers["Authorization"] == "Bearer theirs"
    assert "Authorization" not in compose(PushConfig(URL, scheme="Digest"), authority)
