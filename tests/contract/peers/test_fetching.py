"""Files are fetched from allowed addresses only, checked at each connection."""

from __future__ import annotations

import pytest

from passerelle.delegation.runs.outputs import Fetched, Fetcher, FileGone, FileUnavailable
from passerelle.webhooks.addresses import WebhookRules
from tests.support.file_server import File, FileServer
from tests.support.resolver import LoopbackResolver

pytestmark = pytest.mark.anyio


async def test_name_of_a_private_address_is_refused_at_the_connection() -> None:
    async with FileServer() as server:
        port = server.url.rpartition(":")[2]
        fetcher = Fetcher(WebhookRules(("http://*:*",)), 1_024, 5.0, resolver=LoopbackResolver())
        outcome = await fetcher.fetch(f"http://files.example.com:{port}/r.pdf")
        assert outcome == FileGone("its address is not allowed")
        assert server.asked == {}
        await fetcher.close()


async def test_unreachable_server_is_unavailable_and_not_missing() -> None:
    async with FileServer() as server:
        url = server.url
    fetcher = Fetcher(WebhookRules((url,)), 1_024, 5.0)
    assert isinstance(await fetcher.fetch(f"{url}/r.pdf"), FileUnavailable)
    await fetcher.close()


@pytest.mark.parametrize("size", [1_024, 1_025])
async def test_file_is_read_up_to_its_size_limit(size: int) -> None:
    async with FileServer({"/r": File(b"x" * size, "text/plain")}) as server:
        fetcher = Fetcher(WebhookRules((server.url,)), 1_024, 5.0)
        expected = Fetched(b"x" * 1_024, "text/plain", size, is_cut=size > 1_024)
        assert await fetcher.fetch(f"{server.url}/r") == expected
        await fetcher.close()


@pytest.mark.parametrize(
    "url", ["", "ftp://a.example/f", "//a.example/f", "https://u:p@a.example/f", "https://[::1]/f"]
)
async def test_invalid_or_forbidden_address_is_never_requested(url: str) -> None:
    fetcher = Fetcher(WebhookRules(()), 1_024, 5.0)
    assert isinstance(await fetcher.fetch(url), FileGone)
    await fetcher.close()
