"""An identity provider: keys, tokens, and the documents that it publishes over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from passerelle.gateway.settings.callers import IssuerSettings
from passerelle.runtime.common.clock import SystemClock
from tests.support.loopback_server import end_runner

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
ISSUER = "https://login.example.com"


@cache
def rsa_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    """A key by name, cached since generation is slow."""
    return rsa.generate_private_key(65537, bits)


@cache
def ec_key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@cache
def ed_key(name: str) -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def publish(key: Private, key_id: str | None, **more: str) -> dict[str, Any]:
    """The public half in JWKS form."""
    public = key.public_key()
    match public:
        case rsa.RSAPublicKey():
            text = RSAAlgorithm.to_jwk(public)
        case ec.EllipticCurvePublicKey():
            text = ECAlgorithm.to_jwk(public)
        case _:
            text = OKPAlgorithm.to_jwk(public)
    named = {} if key_id is None else {"kid": key_id}
    return {**json.loads(text), **named, **more}


def sign(key: Private | str, key_id: str | None, algorithm: str = "RS256", **claims: object) -> str:
    """A token valid for five minutes, unless ``claims`` override that; None removes a claim."""
    now_s = SystemClock().now_ms() // 1000
    given = {"iss": ISSUER, "aud": "passerelle", "sub": "ada", "exp": now_s + 300} | claims
    kept = {name: value for name, value in given.items() if value is not None}
    headers = None if key_id is None else {"kid": key_id}
    return jwt.encode(kept, key, algorithm=algorithm, headers=headers)


def issuer(**more: object) -> IssuerSettings:
    """The settings of the provider."""
    given = {
        "name": "corp",
        "issuer": ISSUER,
        "audience": ["passerelle"],
        "may_call": ["echo"],
        **more,
    }
    return IssuerSettings.model_validate(given)


@dataclass
class Provider:
    """Serves its documents and counts reads."""

    keys: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    url: str = ""
    jwks_uri: str | None = None
    asked: list[str] = field(default_factory=list[str])
    status: int = 200

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.status != 200:
            return web.Response(status=self.status)
        if request.path == "/.well-known/openid-configuration":
            return web.json_response(
                {"issuer": self.url, "jwks_uri": self.jwks_uri or f"{self.url}/keys"}
            )
        return web.json_response({"keys": self.keys})


@asynccontextmanager
async def run_provider(*keys: dict[str, Any]) -> AsyncGenerator[Provider]:
    """A provider on a free loopback port."""
    provider = Provider([*keys])
    app = web.Application()
    app.router.add_get("/{tail:.*}", provider.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield provider
    finally:
        await end_runner(runner)
