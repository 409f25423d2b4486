"""``check`` against running agents: the card is read, and no message is sent."""

from pathlib import Path

import pytest

from passerelle.cli.check import run_check
from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.source import read_settings
from passerelle.runtime.common.clock import SystemClock
from tests.support.engine import Server, ask, engine_server, started_legs
from tests.support.identity import publish, rsa_key, run_provider
from tests.support.scripted_peer import ScriptedPeer

__all__ = ["engine_server", "started_legs"]

SERVES = "channels:connect, agents:serve"


def write(folder: Path, **urls: str) -> Sources:
    rows = "".join(f"  - {{name: {name}, url: '{url}'}}\n" for name, url in urls.items())
    (folder / "passerelle.yaml").write_text(f"agents:\n{rows}", encoding="utf-8")
    return Sources({}, folder)


@pytest.mark.anyio
async def test_check_of_an_agent_only_reads_its_card(tmp_path: Path) -> None:
    async with ScriptedPeer("scripted") as peer:
        report = await run_check(write(tmp_path, there=peer.url), SystemClock())
        assert report.faults == ()
        assert report.lines[-1].startswith("agents.there: reached, a2a/1.0 at http://127.0.0.1")
        assert peer.count("SendMessage") == peer.count("SendStreamingMessage") == 0
    assert report.summary == "check: ok"


@pytest.mark.anyio
async def test_unreachable_agent_does_not_hide_other_agents(tmp_path: Path) -> None:
    async with ScriptedPeer("scripted") as peer, ScriptedPeer("gone") as gone:
        away = gone.url
        await gone.stop()
        report = await run_check(write(tmp_path, away=away, there=peer.url), SystemClock())
    assert report.lines[-1].startswith("agents.there: reached")
    card = f"{away}/.well-known/agent-card.json"
    assert report.faults == (
        f"agents.away: its card at {card} cannot be read: the connection was refused",
    )
    assert report.summary == "check: 1 error"


@pytest.mark.anyio
async def test_address_without_an_agent_is_named(tmp_path: Path) -> None:
    async with ScriptedPeer("scripted") as peer:
        sources = write(tmp_path, wrong=f"{peer.url}/elsewhere")
        report = await run_check(sources, SystemClock())
    assert len(report.faults) == 1
    assert "HTTP 404" in report.faults[0]
    assert f"{peer.url}/elsewhere" in report.faults[0]


@pytest.mark.anyio
async def test_store_keys_and_identity_providers_are_checked(
    tmp_path: Path, engine_server: Server
) -> None:
    async with run_provider(publish(rsa_key("a"), "a")) as good, run_provider() as bad:
        bad.status = 500
        lines = [
            f"redis_url: '{engine_server.url}'",
            f"secret_key: '{'00' * 32}'",
            "issuers:",
            f"  - {{name: good, issuer: a, audience: [x], may_call: ['*'], jwks_url: '{good.url}/keys'}}",
            f"  - {{name: bad, issuer: b, audience: [x], may_call: ['*'], jwks_url: '{bad.url}/keys'}}",
        ]
        (tmp_path / "passerelle.yaml").write_text("\n".join(lines), encoding="utf-8")
        report = await run_check(Sources({}, tmp_path), SystemClock())
    assert "redis_url: reached, 1 primary" in report.lines
    assert "secret_key: can be used" in report.lines
    assert "issuers.good: reached, 1 key" in report.lines
    assert [fault.partition(":")[0] for fault in report.faults] == ["issuers.bad"]
    assert [line for line in report.lines if line.startswith("notice: no blobs: other gateways")]


@pytest.mark.anyio
async def test_unreachable_store_and_unusable_key_are_errors(tmp_path: Path) -> None:
    text = "redis_url: redis://127.0.0.1:1\nsecret_key: short\n"
    (tmp_path / "passerelle.yaml").write_text(text, encoding="utf-8")
    report = await run_check(Sources({}, tmp_path), SystemClock())
    assert [fault.partition(":")[0] for fault in report.faults] == ["secret_key", "redis_url"]


@pytest.mark.anyio
async def test_server_that_evicts_is_a_fault_that_names_the_setting_once(
    tmp_path: Path, engine_server: Server
) -> None:
    text = f"redis_url: '{engine_server.url}'\nsecret_key: '{'00' * 32}'\n"
    (tmp_path / "passerelle.yaml").write_text(text, encoding="utf-8")
    ask(engine_server.url, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        report = await run_check(Sources({}, tmp_path), SystemClock())
    finally:
        ask(engine_server.url, "CONFIG", "SET", "maxmemory-policy", "noeviction")
    (fault,) = report.faults
    assert "evicts keys" in fault
    assert fault.count("redis_url") == 1


@pytest.mark.parametrize("place", ["s3:bucket", "s3://", "s3://Bucket_Name/x"])
def test_invalid_bucket_address_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "passerelle.yaml").write_text(f"blobs: {place}\n", encoding="utf-8")
    (fault,) = read_settings(Sources({}, tmp_path)).faults
    assert str(fault).startswith(f"{tmp_path / 'passerelle.yaml'}:1: blobs: should read s3://")


def test_bucket_with_a_prefix_is_accepted_for_blobs(tmp_path: Path) -> None:
    (tmp_path / "passerelle.yaml").write_text("blobs: s3://bucket/prefix\n", encoding="utf-8")
    settings = read_settings(Sources({}, tmp_path)).settings
    assert settings is not None
    assert settings.blob_place == "s3://bucket/prefix"


@pytest.mark.anyio
async def test_blob_folder_is_tested_and_left_unchanged(tmp_path: Path) -> None:
    shared, occupied = tmp_path / "shared", tmp_path / "occupied"
    occupied.write_text("a file in the way")
    for folder, name in ((shared, "good"), (occupied, "bad")):
        (tmp_path / name).mkdir()
        text = f"blobs: {folder}\n"
        (tmp_path / name / "passerelle.yaml").write_text(text, encoding="utf-8")
    good = await run_check(Sources({}, tmp_path / "good"), SystemClock())
    assert f"blobs: {shared} can be written and read" in good.lines
    assert not [path for path in shared.rglob("*") if path.is_file()]
    bad = await run_check(Sources({}, tmp_path / "bad"), SystemClock())
    assert [fault.partition(":")[0] for fault in bad.faults] == ["blobs"]


@pytest.mark.anyio
@pytest.mark.parametrize("below", ["", "/data"])
async def test_data_directory_that_cannot_be_created_is_an_error(
    tmp_path: Path, below: str
) -> None:
    (tmp_path / "taken").write_text("a file")
    config = f"port: 0\ndata_dir: {tmp_path}/taken{below}\n"
    (tmp_path / "passerelle.yaml").write_text(config, encoding="utf-8")
    report = await run_check(Sources({}, tmp_path), SystemClock())
    assert report.faults == (f"data_dir: {tmp_path}/taken is no directory",)
    (tmp_path / "taken").unlink()
    report = await run_check(Sources({}, tmp_path), SystemClock())
    assert report.faults == ()
    assert [one.name for one in tmp_path.iterdir()] == ["passerelle.yaml"], "nothing is created"


@pytest.mark.anyio
async def test_reverse_agent_is_listed_with_its_clients(tmp_path: Path) -> None:
    agents = "agents: [{name: a, transport: channel}, {name: b, transport: channel}]\n"
    key = "0" * 64
    home = f"{{name: home, key_hash: '{key}', may_call: [], serves: [a], scopes: [{SERVES}]}}"
    (tmp_path / "passerelle.yaml").write_text(f"{agents}clients: [{home}]\n", encoding="utf-8")
    report = await run_check(Sources({}, tmp_path), SystemClock())
    assert report.faults == ()
    assert report.lines[-2] == "agents.a: dials in, as home"
    assert report.lines[-1].startswith("notice: agents.b: dials in; only the owner may serve it")
