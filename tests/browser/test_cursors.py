"""The JavaScript client in Chromium, against the whole product: what only a browser has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.browser import open_browser_pages
from tests.support.javascript import ScriptedClient
from tests.support.processes import AGENT, open_caller, read_stored, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
WITHIN_S = 20.0


async def follow(scripted: ScriptedClient, url: str, token: str, stream: str, **wish: str) -> None:
    """Opens a channel from the page, and follows a stream from where its cursor says."""
    await scripted.do("open", url=url, device="page", token=token, gaps="snapshot")
    await scripted.do("stream", name=stream, wish=wish, acks=True)


async def await_events(scripted: ScriptedClient, stream: str, count: int) -> list[str]:
    """The event ids that the page has seen, once there are so many."""
    await wait_until(lambda: len(scripted.events(stream)) >= count, WITHIN_S, f"{count} events")
    return [event["eventId"] for event in scripted.events(stream)]


@pytest.mark.requirement("CHN-3")
async def test_a_page_that_is_loaded_anew_goes_on_after_the_cursor_that_it_has_stored(
    tmp_path: Path,
) -> None:
    async with (
        open_browser_pages(tmp_path) as pages,
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: peer.url}, channels={"origins": [pages.origin]}) as gateway,
        open_caller(gateway) as caller,
    ):
        url = f"{gateway.url.replace('http', 'ws', 1)}/v1/channel"
        for store in ("indexedDb", "localStorage"):
            opened = await caller.send("echo one")
            session = (await caller.read_record(opened["id"]))["sessionId"]
            stream = f"session:{session}"
            before = [event["eventId"] for event in read_stored(gateway, session)]
            async with pages.open_page(f"cursors={store}") as page:
                await follow(page, url, gateway.token, stream, **{"from": "start"})
                seen = await await_events(page, stream, len(before))
                fresh = await pages.reload(page)
                await caller.send("echo two", contextId=opened["contextId"])
                await follow(fresh, url, gateway.token, stream)
                stored = [event["eventId"] for event in read_stored(gateway, session)]
                # The position is kept when the application asks for the next item: one may come twice.
                again = await await_events(fresh, stream, len(stored) - len(before))
                assert again[-1] == stored[-1]
                assert len(set(again) & set(seen)) <= 1
                assert seen + [name for name in again if name not in seen] == stored
                assert not [item for item in fresh.items if item["type"] in {"gap", "snapshot"}]


async def test_the_vectors_that_every_client_plays_hold_in_a_browser(tmp_path: Path) -> None:
    async with (
        open_browser_pages(tmp_path) as pages,
        pages.open_page("vectors") as page,
    ):
        await wait_until(lambda: page.results, WITHIN_S, "the page has played them")
        assert len(page.results) > 20
        assert [one for one in page.results if "error" in one] == []
