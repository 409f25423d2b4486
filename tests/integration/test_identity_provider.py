"""Tokens of an identity provider over HTTP: discovery, key rotation, and restrictions on the URLs in its documents."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from passerelle.core.credentials import Credentials
from passerelle.core.errors import IssuerUnavailable
from passerelle.gateway.auth.access import Access
from passerelle.gateway.settings.callers import IssuerSettings
from passerelle.gateway.settings.model import Settings
from passerelle.runtime.common.secret import Secret
from tests.support.harness import MovableClock
from tests.support.identity import issuer, publish, rsa_key, run_provider, sign
from tests.support.ports import find_free_port

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def open_access(clock: MovableClock, *issuers: IssuerSettings) -> AsyncGenerator[Access]:
    settings = Settings(issuers=issuers, data_dir=Path("/nowhere"))
    access = Access(settings, (Secret("owner"),), clock)
    try:
        yield access
    finally:
        await access.aclose()


async def identify(access: Access, token: str) -> str:
    return (await access.authenticator.authenticate(Credentials(token))).id


async def test_keys_are_found_by_discovery_and_again_after_rotation() -> None:
    clock = MovableClock()
    async with run_provider(publish(rsa_key("a"), "a")) as provider:
        url = provider.url
        async with open_access(clock, issuer(issuer=url)) as access:
            for _ in range(3):
                assert await identify(access, sign(rsa_key("a"), "a", iss=url)) == "corp:ada"
            assert provider.asked == ["/.well-known/openid-configuration", "/keys"]
            provider.keys = [publish(rsa_key("b"), "b")]
            clock.ahead_ms = 10_000
            assert await identify(access, sign(rsa_key("b"), "b", iss=url)) == "corp:ada"


async def test_reload_keeps_the_keys_of_an_unchanged_issuer() -> None:
    async with run_provider(publish(rsa_key("a"), "a")) as provider:
        known = issuer(jwks_url=f"{provider.url}/keys")
        async with open_access(MovableClock(), known) as access:
            assert await identify(access, sign(rsa_key("a"), "a")) == "corp:ada"
            access.reload(Settings(issuers=(known,)))
            assert await identify(access, sign(rsa_key("a"), "a", sub="bob")) == "corp:bob"
            assert provider.asked == ["/keys"]
            access.reload(Settings())
            with pytest.raises(Exception, match="not known"):
                await identify(access, sign(rsa_key("a"), "a"))


async def test_document_of_an_issuer_cannot_lead_to_an_internal_address() -> None:
    async with run_provider(publish(rsa_key("a"), "a")) as inside, run_provider() as provider:
        provider.jwks_uri = f"{inside.url}/keys"
        url = provider.url
        async with open_access(MovableClock(), issuer(issuer=url)) as access:
            with pytest.raises(IssuerUnavailable):
                await identify(access, sign(rsa_key("a"), "a", iss=url))
        assert inside.asked == []


async def test_issuer_that_is_down_is_unavailable_for_a_reason() -> None:
    url = f"http://127.0.0.1:{find_free_port()}/keys"
    async with open_access(MovableClock(), issuer(jwks_url=url)) as access:
        with pytest.raises(IssuerUnavailable), capture_logs() as logged:
            await identify(access, sign(rsa_key("a"), "a"))
    reasons = [line["reason"] for line in logged if line["event"] == "jwks.failed"]
    assert reasons == [f"{url} cannot be read: the connection was refused"]


async def test_failing_issuer_is_unavailable_and_not_an_error_of_the_caller() -> None:
    async with run_provider() as provider:
        provider.status = 500
        known = issuer(jwks_url=f"{provider.url}/keys")
        async with open_access(MovableClock(), known) as access:
            with pytest.raises(IssuerUnavailable):
                await identify(access, sign(rsa_key("a"), "a"))
