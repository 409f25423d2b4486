"""From a section of the configuration to what peers and attempts take."""

from __future__ import annotations

from collections.abc import Mapping

from passerelle.core.facts import RetryPolicy
from passerelle.gateway.peers.config import PeerConfig
from passerelle.gateway.settings import AgentSettings


def make_peer_config(agent: AgentSettings, environ: Mapping[str, str]) -> PeerConfig:
    """The peer that an agent section describes.

    Raises:
        ConfigInvalid: a value that cannot be used; ``where`` is ``agents.<name>.<key>``.
    """
    return PeerConfig(
        name=agent.name,
        url=agent.url,
        card_path=agent.card_path,
        bearer=agent.auth.read_bearer(environ) if agent.auth else None,
        allowed_origins=frozenset(agent.allowed_origins),
        connect_timeout_s=agent.timeout.connect.seconds,
        query_timeout_s=agent.timeout.query.seconds,
        idle_timeout_s=agent.timeout.idle.seconds,
        total_timeout_s=agent.timeout.total.seconds,
    )


def make_retry_policy(agent: AgentSettings) -> RetryPolicy:
    """The terms that each attempt at this agent copies when it starts (ATT-10)."""
    return RetryPolicy(
        total_timeout_ms=agent.timeout.total.ms, idle_timeout_ms=agent.timeout.idle.ms
    )
