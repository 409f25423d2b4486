"""Named gateways: which one is used, with which token, and a file that only its user can read."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from passerelle.cli.contexts import ContextFile, GatewayContext, find_context, read_contexts
from passerelle.cli.control_client import open_client
from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.settings.local_gateway import OWNER_FILE, LocalGateway
from passerelle.runtime.common.secret import Secret

TEAM = GatewayContext("team", "https://agents.example.com", Secret("psr_team"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has logged in to one gateway, and has another on this machine."""
    for name in ("PASSERELLE_URL", "PASSERELLE_TOKEN", "PASSERELLE_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / OWNER_FILE).write_text("psr_local", "ascii")
    read_contexts().put(TEAM).write()
    return tmp_path


def open_for(folder: Path, url: str | None = None) -> tuple[str, str]:
    client = open_client(LocalGateway(data_dir=folder), url)
    assert client.token is not None
    return client.url, client.token.get_secret_value()


def test_the_file_is_private_and_reads_as_it_was_written(folder: Path) -> None:
    path = folder / "passerelle" / "contexts.yaml"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    found = read_contexts()
    assert (found.contexts, found.current) == ({"team": TEAM}, "team")
    other = GatewayContext("other", "http://127.0.0.1:1")
    found.put(other).use("team").write()
    assert read_contexts().contexts == {"team": TEAM, "other": other}
    read_contexts().remove("team").write()
    left = read_contexts()
    assert (left.contexts, left.current) == ({"other": other}, None)


def test_the_current_context_is_asked_with_its_token(folder: Path) -> None:
    assert open_for(folder) == ("https://agents.example.com", "psr_team")


def test_no_gateway_but_its_own_gets_the_token_of_a_context(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_for(folder, url="http://127.0.0.1:9") == ("http://127.0.0.1:9", "psr_local")
    monkeypatch.setenv("PASSERELLE_URL", "http://127.0.0.1:7/")
    assert open_for(folder) == ("http://127.0.0.1:7", "psr_local")


def test_settings_that_were_named_go_before_the_current_context(folder: Path) -> None:
    client = open_client(LocalGateway(data_dir=folder), is_local=True)
    assert client.url == "http://127.0.0.1:8080"


def test_variables_go_before_what_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_contexts().put(GatewayContext("other", "http://127.0.0.1:1", Secret("psr_o"))).write()
    assert open_for(folder) == ("http://127.0.0.1:1", "psr_o")
    monkeypatch.setenv("PASSERELLE_CONTEXT", "team")
    assert open_for(folder) == ("https://agents.example.com", "psr_team")
    monkeypatch.setenv("PASSERELLE_TOKEN", "psr_said")
    assert open_for(folder) == ("https://agents.example.com", "psr_said")


def test_an_unknown_context_is_reported_with_the_nearest_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSERELLE_CONTEXT", "tema")
    with pytest.raises(ConfigInvalid, match="has no context 'tema'; did you mean team"):
        find_context()
    with pytest.raises(ConfigInvalid, match="has no context"):
        ContextFile(folder, {}).use("team")


@pytest.mark.parametrize(
    "said",
    ["[", "contexts", "current: a", {"contexts": {"a": {"token": "x"}}}, {"contexts": {"a": 1}}],
)
def test_a_file_that_is_no_context_file_is_refused(folder: Path, said: object) -> None:
    text = said if isinstance(said, str) else yaml.safe_dump(said)
    (folder / "passerelle" / "contexts.yaml").write_text(text, "utf-8")
    with pytest.raises(ConfigInvalid, match=r"contexts\.yaml"):
        read_contexts()
