"""Dial-in agents in the configuration: their settings, and which callers may serve them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from passerelle.gateway.auth.principals import make_client_principal
from passerelle.gateway.settings.agents import AgentSettings
from passerelle.gateway.settings.callers import ClientSettings
from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.model import Settings
from passerelle.gateway.settings.source import read_settings
from passerelle.gateway.settings.values import make_peer_config

SERVES = ["channels:connect", "agents:serve"]


def find_faults(tmp_path: Path, **settings: object) -> list[str]:
    config = tmp_path / "passerelle.yaml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return [str(fault) for fault in read_settings(Sources({}, tmp_path, config)).faults]


def make_client(**members: object) -> dict[str, object]:
    return {"name": "home", "key_hash": "0" * 64, "may_call": [], "scopes": SERVES, **members}


@pytest.mark.parametrize(
    ("agent", "fault"),
    [
        ({"name": "a"}, "names no url"),
        ({"name": "a", "url": "http://x", "pool": True}, "pool is for agents"),
        ({"name": "a", "transport": "channel", "url": "http://x"}, "url does not apply"),
        ({"name": "a", "transport": "channel", "tenants": ["t"]}, "tenants does not apply"),
    ],
)
def test_setting_without_an_effect_for_an_agent_is_a_fault(
    tmp_path: Path, agent: dict[str, object], fault: str
) -> None:
    (found,) = find_faults(tmp_path, agents=[agent])
    assert fault in found


@pytest.mark.parametrize(
    ("client", "fault"),
    [
        (make_client(serves=["b"]), "no agent 'b' with transport channel"),
        (make_client(serves=["a"], scopes=["a2a:call"]), "channels:connect and agents:serve"),
    ],
)
def test_a_name_is_granted_only_where_it_can_be_served(
    tmp_path: Path, client: dict[str, object], fault: str
) -> None:
    agents = [{"name": "a", "transport": "channel"}, {"name": "b", "url": "http://x"}]
    (found,) = find_faults(tmp_path, agents=agents, clients=[client])
    assert fault in found
    assert find_faults(tmp_path, agents=agents, clients=[make_client(serves=["*"])]) == []


def test_a_principal_serves_what_its_client_names() -> None:
    one = make_client_principal(ClientSettings.model_validate(make_client(serves=["a"])))
    every = make_client_principal(ClientSettings.model_validate(make_client(serves=["*"])))
    assert (one.may_serve("a"), one.may_serve("b"), every.may_serve("b")) == (True, False, True)


def test_messages_wait_one_minute_for_a_dial_in_agent_by_default() -> None:
    dialling = AgentSettings(name="a", transport="channel")
    said = AgentSettings.model_validate(
        {"name": "a", "transport": "channel", "timeout": {"connect": "3s"}}
    )
    called = AgentSettings(name="a", url="http://x")
    assert [one.connect_s for one in (dialling, said, called)] == [60, 3, 5]
    assert make_peer_config(dialling, {}).dials_in
    assert Settings(agents=(dialling,)).agents[0].dials_in
