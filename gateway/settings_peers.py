"""From a section of the configuration to what peers and attempts take."""

from __future__ import annotations

from collections.abc import Mapping

from passerelle.core.errors import ConfigInvalid
from passerelle.core.facts import RetryPolicy
from passerelle.gateway.peers.config import PeerConfig, Tls
from passerelle.gateway.peers.credential import ApiKey, Auth, Basic, Bearer, ClientCredentials
from passerelle.gateway.settings_agents import AgentAuth, AgentSettings, AgentTls, read_secret


def make_peer_config(agent: AgentSettings, environ: Mapping[str, str]) -> PeerConfig:
    """The peer that an agent section describes.

    Raises:
        ConfigInvalid: a value that cannot be used; ``where`` is ``agents.<name>.<key>``.
    """
    try:
        auth = _make_auth(agent.auth, environ) if agent.auth else None
    except LookupError as error:
        raise ConfigInvalid(f"agents.{agent.name}.auth", str(error)) from None
    return PeerConfig(
        name=agent.name,
        url=agent.url,
        card_path=agent.card_path,
        auth=auth,
        forward_auth=agent.forward_auth,
        tls=_make_tls(agent.tls) if agent.tls else None,
        interfaces=agent.interfaces,
        bounds=agent.limits.bounds(),
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


def _make_auth(auth: AgentAuth, environ: Mapping[str, str]) -> Auth:
    if (api_key := auth.api_key) is not None:
        return ApiKey(api_key.place, api_key.name, api_key.read(environ))
    if (basic := auth.basic) is not None:
        return Basic(basic.user, basic.read(environ))
    if (oauth2 := auth.oauth2) is not None:
        return ClientCredentials(
            token_url=oauth2.token_url,
            client_id=oauth2.client_id,
            secret=oauth2.read(environ),
            scopes=oauth2.scopes,
            audience=oauth2.audience,
        )
    return Bearer(read_secret(auth.bearer_env, auth.bearer_file, environ))


def _make_tls(tls: AgentTls) -> Tls:
    paths = (str(path.expanduser()) if path else None for path in (tls.ca, tls.cert, tls.key))
    return Tls(*paths)
