"""``check`` against agents that are there: the card is read, and nothing is sent."""

from pathlib import Path

import pytest

from passerelle.gateway.check import run_check
from passerelle.gateway.clock import SystemClock
from passerelle.gateway.settings_source import Sources
from tests.support.scripted_peer import ScriptedPeer


def write(folder: Path, **urls: str) -> Sources:
    rows = "".join(f"  - {{name: {name}, url: '{url}'}}\n" for name, url in urls.items())
    (folder / "passerelle.yaml").write_text(f"agents:\n{rows}", encoding="utf-8")
    return Sources({}, folder)


@pytest.mark.anyio
async def test_agent_that_is_there_is_reached_by_its_card_alone(tmp_path: Path) -> None:
    async with ScriptedPeer("scripted") as peer:
        report = await run_check(write(tmp_path, there=peer.url), SystemClock())
        assert report.faults == ()
        assert report.lines[-1].startswith("agents.there: reached, a2a/1.0 at http://127.0.0.1")
        assert peer.count("SendMessage") == peer.count("SendStreamingMessage") == 0
    assert report.summary == "check: ok"


@pytest.mark.anyio
async def test_one_agent_that_is_away_does_not_hide_the_others(tmp_path: Path) -> None:
    async with ScriptedPeer("scripted") as peer, ScriptedPeer("gone") as gone:
        away = gone.url
        await gone.stop()
        report = await run_check(write(tmp_path, away=away, there=peer.url), SystemClock())
    assert report.lines[-1].startswith("agents.there: reached")
    assert [fault.partition(":")[0] for fault in report.faults] == ["agents.away"]
    assert report.summary == "check: 1 fault"


@pytest.mark.anyio
async def test_place_that_is_no_agent_is_named_with_its_url(tmp_path: Path) -> None:
    async with ScriptedPeer("scripted") as peer:
        sources = write(tmp_path, wrong=f"{peer.url}/elsewhere")
        report = await run_check(sources, SystemClock())
    assert len(report.faults) == 1
    assert "HTTP 404" in report.faults[0]
    assert f"{peer.url}/elsewhere" in report.faults[0]
