"""What one setting says about another: rules that a single field cannot check."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping

from passerelle.core.principal import EVERY_AGENT, Scope
from passerelle.gateway.settings import Settings
from passerelle.gateway.settings_agents import AgentSettings
from passerelle.gateway.settings_callers import CallerSettings
from passerelle.gateway.settings_file import KeyPath
from passerelle.gateway.settings_policy import DeciderSettings
from passerelle.permission_bridge.approvers import ROLE_MARK

OWNER = "owner"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``. A name other than localhost could mean anything."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def find_contradictions(
    settings: Settings, environ: Mapping[str, str]
) -> Iterator[tuple[KeyPath, str]]:
    """Path and reason of every setting that cannot hold beside the others or in this environment."""
    if settings.auth == "open" and not is_loopback(settings.host):
        yield ("auth",), f"open is for loopback addresses only, and host is {settings.host}"
    if settings.redis_url and not settings.redis_url.get_secret_value().startswith(
        ("redis://", "rediss://", "unix://")
    ):
        yield ("redis_url",), "begins with redis://, rediss:// or unix://"
    if settings.secret_key and settings.secret_key_file:
        yield ("secret_key_file",), "is given beside secret_key; one of them is enough"
    yield from _find_signing_faults(settings)
    yield from _find_repeats(("agents",), (agent.name for agent in settings.agents))
    yield from _find_repeats(("policy", "rules"), (rule.name for rule in settings.policy.rules))
    yield from _find_repeats(("clients",), (client.name for client in settings.clients))
    for index, agent in enumerate(settings.agents):
        for path, reason in agent.auth.find_faults(environ) if agent.auth else ():
            yield ("agents", index, "auth", *path), reason
        if agent.timeout.idle > agent.timeout.total:
            yield ("agents", index, "timeout", "idle"), "is longer than timeout.total"
        yield from _find_retry_faults(settings, index, agent)
    yield from _find_client_faults(settings)
    if (name := settings.grpc.default_agent) and name not in {one.name for one in settings.agents}:
        yield ("grpc", "default_agent"), f"there is no agent {name!r}"
    yield from _find_issuer_faults(settings)
    yield from _find_unknown_approvers(settings)


def find_notices(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """What may be right and cannot be checked: an identity provider makes its people when they first come."""
    prefixes = tuple(f"{issuer.name}:" for issuer in settings.issuers)
    for path, name in _list_approvers(settings):
        if prefixes and name.startswith(prefixes):
            yield path, f"{name!r} decides once the identity provider has sent it: not checked"


def _find_unknown_approvers(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    known = {OWNER, *(client.name for client in settings.clients)}
    prefixes = tuple(f"{issuer.name}:" for issuer in settings.issuers)
    for path, name in _list_approvers(settings):
        if name not in known and not (prefixes and name.startswith(prefixes)):
            yield (
                path,
                f"nobody is {name!r}: name a client, {OWNER}, <issuer>:<subject>, or a role as @ and its name",
            )


def _list_approvers(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Every principal that a section names as one who decides."""
    policy = settings.policy
    for role, people in policy.roles.items():
        yield from _list_names(("policy", "roles", role), people)
    for index, tier in enumerate(policy.approvers):
        yield from _list_deciders(("policy", "approvers", index), tier)
    for index, rule in enumerate(policy.rules):
        if rule.approvers is not None:
            yield from _list_deciders(("policy", "rules", index, "approvers"), rule.approvers)
    for owner, section in policy.owners.items():
        for index, rule in enumerate(section.rules):
            if rule.approvers is not None:
                place: KeyPath = ("policy", "owners", owner, "rules", index, "approvers")
                yield from _list_deciders(place, rule.approvers)


def _list_deciders(place: KeyPath, deciders: DeciderSettings) -> Iterator[tuple[KeyPath, str]]:
    yield from _list_names((*place, "who"), deciders.who)
    for index, step in enumerate(deciders.escalate):
        yield from _list_names((*place, "escalate", index, "to"), step.to)


def _list_names(place: KeyPath, names: Iterable[str]) -> Iterator[tuple[KeyPath, str]]:
    for index, name in enumerate(names):
        if not name.startswith(ROLE_MARK):
            yield (*place, index), name


def _find_retry_faults(
    settings: Settings, index: int, agent: AgentSettings
) -> Iterator[tuple[KeyPath, str]]:
    if agent.retry.initial > agent.retry.max:
        yield ("agents", index, "retry", "initial"), "is longer than retry.max"
    known = {one.name for one in settings.agents}
    for name in agent.fallback:
        if name == agent.name:
            yield ("agents", index, "fallback"), "names the agent itself"
        elif name not in known:
            yield ("agents", index, "fallback"), f"there is no agent {name!r}"
    if len(set(agent.fallback)) < len(agent.fallback):
        yield ("agents", index, "fallback"), "names an agent twice"


def _find_signing_faults(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    signing = settings.signing
    if signing.keys and not any(key.signs for key in signing.keys):
        yield ("signing", "keys"), "at least one key has to sign"
    if signing.signs_cards and settings.public_url is None:
        # Without it the caller's Host would stand on a card that bears our signature.
        yield ("public_url",), "is wanted where cards are signed"
    if signing.signs_cards and settings.card_shape == "merged":
        yield ("card_shape",), "merged cannot be signed: strict readers would find no signature"


def _find_client_faults(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    seen: dict[str, str] = {}
    for index, client in enumerate(settings.clients):
        place: KeyPath = ("clients", index)
        if client.name == OWNER:
            yield (*place, "name"), f"{OWNER} is the holder of the owner token"
        if client.key_hash is None and client.certificate is None:
            yield place, "has neither key_hash nor certificate: nobody could be it"
        if client.certificate is not None and settings.proxy is None:
            yield (*place, "certificate"), "wants `proxy`, which says whose header is believed"
        for key in ("key_hash", "certificate"):
            value = getattr(client, key)
            known = str(value).removeprefix("sha256:")
            if value is not None and seen.setdefault(known, client.name) != client.name:
                yield (*place, key), f"is that of {seen[known]} too"
        yield from _find_grant_faults(settings, place, client)


def _find_issuer_faults(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    yield from _find_repeats(("issuers",), (issuer.name for issuer in settings.issuers))
    for index, issuer in enumerate(settings.issuers):
        place: KeyPath = ("issuers", index)
        if issuer.jwks_url is None and not issuer.issuer.startswith(("https://", "http://")):
            yield (
                (*place, "jwks_url"),
                "is required: issuer is no URL that keys could be found below",
            )
        yield from _find_grant_faults(settings, place, issuer)


def _find_grant_faults(
    settings: Settings, place: KeyPath, caller: CallerSettings
) -> Iterator[tuple[KeyPath, str]]:
    agents = {agent.name for agent in settings.agents} | {EVERY_AGENT}
    seen: set[str] = set()
    for position, grant in enumerate(caller.may_call):
        if grant.agent not in agents:
            yield (*place, "may_call", position), f"there is no agent {grant.agent!r}"
        if grant.agent in seen:
            yield (*place, "may_call", position), f"{grant.agent!r} is there twice"
        seen.add(grant.agent)
    yield from _find_serving_faults(settings, place, caller)
    if caller.kind == "agent":
        for scope in (
            Scope.DECIDE,
            Scope.DECIDE_HIGH,
            Scope.GRANT,
            Scope.HOST,
            Scope.WRITE_POLICY,
        ):
            if scope in caller.scopes:
                yield (*place, "scopes"), f"an agent never holds {scope}"


def _find_serving_faults(
    settings: Settings, place: KeyPath, caller: CallerSettings
) -> Iterator[tuple[KeyPath, str]]:
    dialling = {agent.name for agent in settings.agents if agent.dials_in} | {EVERY_AGENT}
    for position, name in enumerate(caller.serves):
        if name not in dialling:
            yield (*place, "serves", position), f"there is no agent {name!r} with transport channel"
    lacking = [scope for scope in (Scope.CONNECT, Scope.SERVE) if scope not in caller.scopes]
    if caller.serves and lacking:
        yield (*place, "scopes"), f"who serves agents needs {' and '.join(lacking)} as well"


def _find_repeats(section: KeyPath, names: Iterable[str]) -> Iterator[tuple[KeyPath, str]]:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield (*section, index, "name"), f"{name!r} is there twice"
        seen.add(name)
