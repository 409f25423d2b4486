"""What an agent section of the configuration becomes for the peer client."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings.agents import AgentSettings
from passerelle.gateway.settings.values import make_peer_config, make_retry_policy
from passerelle.peers.config import PeerConfig, Tls
from passerelle.peers.credential import ApiKey, Auth, Basic, Bearer, ClientCredentials
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.limits.limit import Bounds, Rate


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
            "forward_auth": True,
            "tls": {"ca": "/etc/ca.pem", "cert": "/etc/us.pem"},
            "interfaces": ["HTTP+JSON/1.0", "JSONRPC/1.0"],
            "allowed_origins": ["https://calls.example.com"],
            "limits": {"concurrency": 50, "rate": "100/s"},
            "timeout": {
                "connect": "1s",
                "query": "2s",
                "idle": "3s",
                "inactivity": "4s",
                "total": "1m",
            },
        }
    )
    policy = make_retry_policy(agent)
    assert (policy.total_timeout_ms, policy.idle_timeout_ms) == (60_000, 4_000)
    assert make_peer_config(agent, {"ECHO_TOKEN": " t0p \n"}) == PeerConfig(
        name="echo",
        url="https://agents.example.com/echo",
        card_path="/card.json",
        auth=Bearer(Secret("t0p")),
        forward_auth=True,
        tls=Tls(ca="/etc/ca.pem", cert="/etc/us.pem"),
        interfaces=("HTTP+JSON/1.0", "JSONRPC/1.0"),
        allowed_origins=frozenset({"https://calls.example.com"}),
        bounds=Bounds(50, Rate(100, 1_000)),
        connect_timeout_s=1.0,
        query_timeout_s=2.0,
        idle_timeout_s=3.0,
        total_timeout_s=60.0,
    )


@pytest.mark.parametrize("tenants", [["tasks"], ["v1"], ["a/b"], [".well-known"], ["a", "a"], [""]])
def test_tenant_is_a_step_of_a_path_that_nothing_else_is(tenants: list[str]) -> None:
    with pytest.raises(ValidationError, match="tenants"):
        AgentSettings.model_validate({"name": "echo", "url": "http://a", "tenants": tenants})


@pytest.mark.parametrize(
    ("auth", "made"),
    [
        ({"bearer_file": "FILE"}, Bearer(Secret("from file"))),
        (
            {"api_key": {"env": "KEY", "place": "query", "name": "key"}},
            ApiKey("query", "key", Secret("k3y")),
        ),
        ({"api_key": {"file": "FILE"}}, ApiKey("header", "X-API-Key", Secret("from file"))),
        ({"basic": {"user": "us", "env": "KEY"}}, Basic("us", Secret("k3y"))),
        (
            {
                "oauth2": {
                    "token_url": "https://id.example/token",
                    "client_id": "us",
                    "env": "KEY",
                    "scopes": ["a", "b"],
                    "audience": "them",
                }
            },
            ClientCredentials("https://id.example/token", "us", Secret("k3y"), ("a", "b"), "them"),
        ),
    ],
)
def test_each_way_to_show_ourselves_is_made_from_its_section(
    auth: JsonObject, made: Auth, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(" from file\n")
    text = str(auth).replace("FILE", str(tmp_path / "secret")).replace("'", '"')
    agent = AgentSettings.model_validate_json(
        f'{{"name": "echo", "url": "http://e.example", "auth": {text}}}'
    )
    assert make_peer_config(agent, {"KEY": "k3y"}).auth == made


@pytest.mark.parametrize(
    "section",
    [
        {"auth": {}},
        {"auth": {"bearer_env": "A", "bearer_file": "/b"}},
        {"auth": {"api_key": {}}},
        {"auth": {"api_key": {"env": "A", "file": "/b"}}},
        {"auth": {"api_key": {"env": "A", "name": "X: y"}}},
        {"auth": {"basic": {"user": "a:b", "env": "A"}}},
        {"tls": {"key": "/k"}},
        {"interfaces": []},
        {"interfaces": ["SOAP/1.0"]},
    ],
)
def test_section_that_cannot_hold_is_refused(section: JsonObject) -> None:
    with pytest.raises(ValidationError):
        AgentSettings.model_validate({"name": "echo", "url": "http://e.example", **section})


@pytest.mark.parametrize(
    ("auth", "path", "reason"),
    [
        ({"bearer_env": "NOPE"}, ("bearer_env",), "variable NOPE is not set"),
        ({"bearer_file": "/no/such"}, ("bearer_file",), "cannot be read"),
        ({"basic": {"user": "u", "env": "NOPE"}}, ("basic", "env"), "NOPE is not set"),
    ],
)
def test_missing_secret_is_named(auth: JsonObject, path: tuple[str, ...], reason: str) -> None:
    agent = AgentSettings.model_validate({"name": "e", "url": "http://e.example", "auth": auth})
    assert agent.auth is not None
    ((where, why),) = agent.auth.find_faults({})
    assert where == path
    assert reason in why
