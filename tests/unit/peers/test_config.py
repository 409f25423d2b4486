"""The configuration of an agent: what is refused before anything is sent, and allowed targets of calls."""

from __future__ import annotations

from typing import Any

import pytest

from passerelle.core.errors import ConfigInvalid
from passerelle.peers.config import PeerConfig
from passerelle.peers.credential import ApiKey, Basic, Bearer, ClientCredentials
from passerelle.peers.origin import origin_of
from passerelle.runtime.common.secret import Secret


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"url": "echo.example"}, "url"),
        ({"url": "ftp://echo.example"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://user:pass@echo.example"}, "url"),
        ({"url": "http://echo.example?x=1"}, "url"),
        ({"url": "http://echo.example:port"}, "url"),
        ({"url": "http://echo..example"}, "url"),
        ({"url": f"http://{'a' * 64}.example"}, "url"),
        ({"card_path": "card.json"}, "card_path"),
        ({"auth": Bearer(Secret("two\r\nlines"))}, "auth"),
        ({"auth": Bearer(Secret("two\nlines"))}, "auth"),
        ({"auth": Bearer(Secret(""))}, "auth"),
        ({"auth": ApiKey("header", "X-Key", Secret("two\nlines"))}, "auth"),
        ({"auth": ApiKey("cookie", "key", Secret("a; admin=1"))}, "auth"),
        ({"auth": Basic("user", Secret(""))}, "auth"),
        ({"auth": ClientCredentials("https://t.example", "me", Secret(""))}, "auth"),
        ({"interfaces": ()}, "interfaces"),
        ({"auth": Bearer(Secret("é"))}, "auth"),
        ({"auth": Bearer(Secret(" padded"))}, "auth"),
        ({"allowed_origins": frozenset({"elsewhere"})}, "allowed_origins"),
        ({"connect_timeout_s": 0}, "connect_timeout_s"),
        ({"total_timeout_s": -1.0}, "total_timeout_s"),
        ({"idle_timeout_s": float("nan")}, "idle_timeout_s"),
    ],
)
def test_value_that_cannot_be_used_is_refused_by_its_key(
    settings: dict[str, Any], where: str
) -> None:
    whole: dict[str, Any] = {"name": "echo", "url": "http://echo.example"}
    with pytest.raises(ConfigInvalid) as caught:
        PeerConfig(**(whole | settings))
    assert caught.value.details["where"] == f"agents.echo.{where}"


def test_refusal_does_not_show_the_token() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        PeerConfig("echo", "http://echo.example", auth=Bearer(Secret("hush\r\nhush")))
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://echo.example", "http://echo.example/"])
def test_card_is_below_the_url(url: str) -> None:
    assert PeerConfig("echo", url).card_url == "http://echo.example/.well-known/agent-card.json"
    below = PeerConfig("echo", url.rstrip("/") + "/agents/echo/", card_path="/card.json")
    assert below.card_url == "http://echo.example/agents/echo/card.json"


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://echo.example/a2a", True),
        ("http://echo.example:80/a2a", True),
        ("HTTP://ECHO.example/a2a", True),
        ("https://echo.example/a2a", False),
        ("http://echo.example:8080/a2a", False),
        ("http://echo.example.evil.example/", False),
        ("http://evil.example/echo.example", False),
        ("http://echo.example@evil.example/", False),
        ("http://other.example:9000/rpc", True),
        ("/relative", False),
        ("", False),
    ],
)
def test_calls_go_to_the_origin_of_the_card_and_to_allowed_ones_only(
    url: str, *, allowed: bool
) -> None:
    config = PeerConfig(
        "echo", "http://echo.example/x", allowed_origins=frozenset({"http://other.example:9000"})
    )
    assert (origin_of(url) in config.origins) is allowed


def test_origin_leaves_out_the_default_port() -> None:
    assert origin_of("https://a.example:443/x?y#z") == "https://a.example"
    assert origin_of("http://[::1]:8080/x") == "http://[::1]:8080"
    assert origin_of("https://a.example:8443/x") == "https://a.example:8443"
