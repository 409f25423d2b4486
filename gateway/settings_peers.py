"""From a section of the configuration to what peers and attempts take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import orjson

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.core.agent_name import name_tenant
from passerelle.core.errors import ConfigInvalid
from passerelle.core.facts import RetryPolicy
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings_agents import (
    AgentAuth,
    AgentSettings,
    AgentTls,
    CardSignature,
    read_secret,
)
from passerelle.peers.config import PeerConfig, Tls
from passerelle.peers.credential import ApiKey, Auth, Basic, Bearer, ClientCredentials
from passerelle.peers.origin import origin_of
from passerelle.peers.signatures import CardTrust


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
        url=agent.url or "",
        pool=agent.pool,
        card_path=agent.card_path,
        auth=auth,
        forward_auth=agent.forward_auth,
        tls=_make_tls(agent.tls) if agent.tls else None,
        trust=_make_trust(agent.name, agent.card_signature)
        if agent.card_signature
        else CardTrust(),
        interfaces=agent.interfaces,
        bounds=agent.limits.bounds(),
        allowed_origins=frozenset(agent.allowed_origins),
        grpc=agent.grpc,
        connect_timeout_s=agent.connect_s,
        query_timeout_s=agent.timeout.query.seconds,
        idle_timeout_s=agent.timeout.idle.seconds,
        total_timeout_s=agent.timeout.total.seconds,
    )


def make_peer_configs(
    agents: Iterable[AgentSettings], environ: Mapping[str, str]
) -> Iterator[PeerConfig]:
    """The peers of all sections: each agent, and after it its tenants.

    Raises:
        ConfigInvalid: see ``make_peer_config``.
    """
    for agent in agents:
        made = make_peer_config(agent, environ)
        yield made
        for tenant in agent.tenants:
            yield replace(made, name=name_tenant(agent.name, tenant))


def make_retry_policy(agent: AgentSettings) -> RetryPolicy:
    """The terms that each attempt at this agent copies when it starts (ATT-10); what is not set is left out."""
    retry, said = agent.retry, agent.retry.model_fields_set
    return RetryPolicy(
        attempts=retry.attempts,
        backoff_ms=retry.initial.ms,
        backoff_max_ms=retry.max.ms,
        total_timeout_ms=agent.timeout.total.ms,
        idle_timeout_ms=agent.timeout.inactivity.ms if agent.timeout.inactivity else None,
        backoff=retry.backoff if "backoff" in said else None,
        jitter_percent=round(retry.jitter * 100) if "jitter" in said else None,
        retry_on=retry.retry_on if "retry_on" in said else None,
        never_on=retry.never_on or None,
        idempotent=retry.idempotent or None,
        fallback=agent.fallback or None,
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


def _make_trust(agent: str, signature: CardSignature) -> CardTrust:
    keys = (key for path in signature.keys for key in _read_keys(agent, path.expanduser()))
    origins = (origin_of(origin) or origin for origin in signature.jku_origins)
    return CardTrust(
        signature.policy,
        tuple(keys),
        frozenset(origins),
        signature.algorithms,
        frozenset(signature.revoked),
    )


def _read_keys(agent: str, path: Path) -> Iterator[str]:
    where = f"agents.{agent}.card_signature.keys"
    try:
        value: object = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigInvalid(where, f"{path} cannot be read: {error}") from None
    document = cast("JsonObject", value) if isinstance(value, dict) else {}
    keys = objects_at(document, "keys") if "keys" in document else [document]
    for key in keys:
        if not text_at(key, "kid") or text_at(key, "kty") not in {"EC", "OKP", "RSA"}:
            raise ConfigInvalid(where, f"{path} should hold public keys as JWK, each with a kid")
        yield orjson.dumps({name: value for name, value in key.items() if name != "d"}).decode()
