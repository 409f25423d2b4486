"""What an agent section of the configuration becomes for the peer client."""

from passerelle.gateway.peers.config import PeerConfig
from passerelle.gateway.secret import Secret
from passerelle.gateway.settings import AgentSettings
from passerelle.gateway.settings_peers import make_peer_config, make_retry_policy


def test_agent_without_anything_has_the_defaults_of_the_client() -> None:
    agent = AgentSettings.model_validate({"name": "echo", "url": "http://127.0.0.1:9001"})
    assert make_peer_config(agent, {}) == PeerConfig("echo", "http://127.0.0.1:9001")


def test_every_setting_of_an_agent_arrives() -> None:
    agent = AgentSettings.model_validate(
        {
            "name": "echo",
            "url": "https://agents.example.com/echo/",
            "card_path": "/card.json",
            "auth": {"bearer_env": "ECHO_TOKEN"},
            "allowed_origins": ["https://calls.example.com"],
            "timeout": {"connect": "1s", "query": "2s", "idle": "3s", "total": "1m"},
        }
    )
    policy = make_retry_policy(agent)
    assert (policy.total_timeout_ms, policy.idle_timeout_ms) == (60_000, 3_000)
    assert make_peer_config(agent, {"ECHO_TOKEN": " t0p \n"}) == PeerConfig(
        name="echo",
        url="https://agents.example.com/echo",
        card_path="/card.json",
        bearer=Secret("t0p"),
        allowed_origins=frozenset({"https://calls.example.com"}),
        connect_timeout_s=1.0,
        query_timeout_s=2.0,
        idle_timeout_s=3.0,
        total_timeout_s=60.0,
    )
