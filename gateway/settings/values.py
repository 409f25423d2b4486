"""Converts sections of the configuration to the values that other packages use.

These are the limits of callers, the configuration of peers and attempts, the keys that seal and sign, and the rules of
webhooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import orjson

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.core.agent_name import name_tenant
from passerelle.core.errors import ConfigInvalid
from passerelle.core.facts import RetryPolicy
from passerelle.core.wire.display import explain_error
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings.agents import (
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
from passerelle.runtime.common.private_file import load_or_mint
from passerelle.runtime.common.sealer import KEY_FILE, SETTING, make_sealer, mint_key, read_keys
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.common.signatures import (
    JWKS_PATH,
    Signer,
    load_signing_key,
    mint_signing_key,
    read_signing_key,
)
from passerelle.runtime.limits.limit import Bounds
from passerelle.store.archive.terms import ForgetTerms, MemoryTerms
from passerelle.webhooks.addresses import WebhookRules
from passerelle.webhooks.push import Authority
from passerelle.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from passerelle.core.ports.chance import Clock
    from passerelle.gateway.settings.callers import CallerSettings
    from passerelle.gateway.settings.model import Settings
    from passerelle.runtime.common.sealer import Draw, Sealer
    from passerelle.runtime.limits.account import Quota
    from passerelle.runtime.limits.costs import Price


def list_callers(settings: Settings) -> Iterator[tuple[str, CallerSettings]]:
    """Clients by name, issuers by name and colon."""
    return chain(
        ((client.name, client) for client in settings.clients),
        ((f"{issuer.name}:", issuer) for issuer in settings.issuers),
    )


def list_bounds(settings: Settings) -> dict[str, Bounds]:
    """Rate and concurrency of callers with a limit."""
    named = {name: caller.limits.bounds() for name, caller in list_callers(settings)}
    return {name: bounds for name, bounds in named.items() if bounds != Bounds()}


def list_quotas(settings: Settings) -> dict[str, tuple[Quota, ...]]:
    """The quotas of callers with a quota."""
    return {
        name: tuple(quota.quota() for quota in caller.quotas)
        for name, caller in list_callers(settings)
        if caller.quotas
    }


def list_prices(settings: Settings) -> dict[str, Price]:
    """The prices of agents with a price."""
    return {
        name: agent.price.price()
        for agent in settings.agents
        if agent.price
        for name in agent.served_names
    }


def make_peer_config(agent: AgentSettings, environ: Mapping[str, str]) -> PeerConfig:
    """The peer of an agent section.

    Raises:
        ConfigInvalid: an invalid value; ``where`` is ``agents.<name>.<key>``.
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
    """The peers of all sections: each agent, followed by its tenants.

    Raises:
        ConfigInvalid: see ``make_peer_config``.
    """
    for agent in agents:
        made = make_peer_config(agent, environ)
        yield made
        for tenant in agent.tenants:
            yield replace(made, name=name_tenant(agent.name, tenant))


def make_retry_policy(agent: AgentSettings) -> RetryPolicy:
    """The terms that each attempt at this agent copies when it starts (ATT-10), without defaults."""
    retry, given_fields = agent.retry, agent.retry.model_fields_set
    return RetryPolicy(
        attempts=retry.attempts,
        backoff_ms=retry.initial.ms,
        backoff_max_ms=retry.max.ms,
        total_timeout_ms=agent.timeout.total.ms,
        idle_timeout_ms=agent.timeout.inactivity.ms if agent.timeout.inactivity else None,
        backoff=retry.backoff if "backoff" in given_fields else None,
        jitter_percent=round(retry.jitter * 100) if "jitter" in given_fields else None,
        retry_on=retry.retry_on if "retry_on" in given_fields else None,
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
        raise ConfigInvalid(where, f"{path} cannot be read: {explain_error(error)}") from None
    document = cast("JsonObject", value) if isinstance(value, dict) else {}
    keys = objects_at(document, "keys") if "keys" in document else [document]
    for key in keys:
        if not text_at(key, "kid") or text_at(key, "kty") not in {"EC", "OKP", "RSA"}:
            raise ConfigInvalid(where, f"{path} should hold public keys as JWK, each with a kid")
        yield orjson.dumps({name: value for name, value in key.items() if name != "d"}).decode()


def load_sealer(settings: Settings, data_dir: Path, draw: Draw) -> Sealer | None:
    """The sealer of the settings. None: secrets cannot be stored, and features that need it are off.

    With the embedded engine the gateway creates a key on the first start. With ``redis_url`` several instances share
    the store, so all of them need the same configured key.

    Raises:
        ConfigInvalid: a key cannot be read or used.
    """
    given = check_keys(settings)
    if given:
        return make_sealer(given, draw)
    if settings.redis_url is not None:
        return None
    kept = load_or_mint(data_dir / KEY_FILE, lambda: mint_key(draw).get_secret_value())
    return make_sealer(read_keys(Secret(kept.text), str(data_dir / KEY_FILE)), draw)


def name_setting(settings: Settings, data_dir: Path) -> str:
    """The setting or file that the keys come from, for error messages."""
    if settings.secret_key is not None:
        return SETTING
    if settings.secret_key_file is not None:
        return f"{SETTING}_file"
    return str(data_dir / KEY_FILE) if settings.redis_url is None else SETTING


def check_keys(settings: Settings) -> list[bytes]:
    """The configured keys; empty if the gateway creates one itself, or works without.

    Raises:
        ConfigInvalid: a key cannot be read or used.
    """
    if settings.secret_key is not None:
        return read_keys(settings.secret_key, SETTING)
    if settings.secret_key_file is not None:
        return read_keys(_read_key_file(settings.secret_key_file), f"{SETTING}_file")
    return []


def _read_key_file(path: Path) -> Secret:
    try:
        return Secret(path.read_text(encoding="ascii").strip() or ",")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{SETTING}_file", f"cannot be read: {explain_error(error)}") from None


def load_signer(settings: Settings) -> Signer | None:
    """The signer of the settings; None without a key.

    Raises:
        ConfigInvalid: a key file cannot be used, or the same key is listed twice.
    """
    section = settings.signing
    keys = tuple(
        load_signing_key(entry.file.expanduser(), signs=entry.signs) for entry in section.keys
    )
    if not keys:
        return None
    for index, key in enumerate(keys):
        if any(key.kid == other.kid for other in keys[:index]):
            raise ConfigInvalid(f"signing.keys.{index}.file", f"contains the key {key.kid} again")
    jku = f"{settings.public_url}{JWKS_PATH}" if settings.public_url else None
    return Signer(keys, jku)


EVIDENCE_KEY: Final = "evidence-key"
"""The file in the data directory with the evidence key, if none is configured."""


def load_evidence_signer(data_dir: Path, signer: Signer | None) -> Signer:
    """The signer of evidence: the configured keys, else a key in this data directory, created on the first start.

    Raises:
        ConfigInvalid: the file cannot be created, read or trusted.
    """
    if signer is not None and any(key.signs for key in signer.keys):
        return signer
    path = data_dir / EVIDENCE_KEY
    kept = load_or_mint(path, lambda: mint_signing_key("EdDSA").get_secret_value().strip())
    return Signer((read_signing_key(Secret(kept.text), str(path)),))


def find_evidence_keys(settings: Settings) -> list[str]:
    """The fingerprints (RFC 7638) of the keys that sign evidence; creates none.

    Raises:
        ConfigInvalid: a key cannot be read or trusted, or there is none yet.
    """
    signer, path = load_signer(settings), settings.data_dir / EVIDENCE_KEY
    if not (signer and any(key.signs for key in signer.keys)) and not path.exists():
        raise ConfigInvalid(
            str(path), "does not exist yet: the first start of the gateway creates it"
        )
    return [key.kid for key in load_evidence_signer(settings.data_dir, signer).keys if key.signs]


def load_webhooks(
    settings: Settings, data_dir: Path, signer: Signer | None, clock: Clock, draw: Draw
) -> Webhooks:
    """The webhooks of the settings.

    Raises:
        ConfigInvalid: a secret key cannot be read or used.
    """
    section = settings.webhooks
    issuer = settings.public_url or "passerelle"
    authority = Authority(signer, issuer, clock) if signer and section.sign else None
    return Webhooks(
        load_sealer(settings, data_dir, draw),
        WebhookRules(section.allow),
        section.deliver_final,
        authority,
    )


def read_memory_terms(settings: Settings) -> MemoryTerms:
    """How long finished sessions stay in memory; a tenant has the time of its agent."""
    return MemoryTerms(
        settings.retention.memory_ms,
        {
            name: None if agent.memory == "never" else agent.memory.ms
            for agent in settings.agents
            if agent.memory is not None
            for name in agent.served_names
        },
    )


def read_forget_terms(settings: Settings) -> ForgetTerms:
    """When finished sessions are deleted; a tenant has the terms of its agent."""
    return ForgetTerms(
        dict(settings.retention.forget.list_ages()),
        {
            name: dict(agent.forget.list_ages())
            for agent in settings.agents
            if agent.forget is not None
            for name in agent.served_names
        },
    )
