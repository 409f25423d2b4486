"""What one setting says about another: rules that a single field cannot check."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping

from passerelle.core.principal import Scope
from passerelle.gateway.settings import EVERY_AGENT, Settings
from passerelle.gateway.settings_file import KeyPath

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
    yield from _find_repeats("agents", (agent.name for agent in settings.agents))
    yield from _find_repeats("clients", (client.name for client in settings.clients))
    for index, agent in enumerate(settings.agents):
        for path, reason in agent.auth.find_faults(environ) if agent.auth else ():
            yield ("agents", index, "auth", *path), reason
        if agent.timeout.idle > agent.timeout.total:
            yield ("agents", index, "timeout", "idle"), "is longer than timeout.total"
    yield from _find_client_faults(settings)
    if (name := settings.grpc.default_agent) and name not in {one.name for one in settings.agents}:
        yield ("grpc", "default_agent"), f"there is no agent {name!r}"


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
    agents = {agent.name for agent in settings.agents} | {EVERY_AGENT}
    for index, client in enumerate(settings.clients):
        if client.name == OWNER:
            yield ("clients", index, "name"), f"{OWNER} is the holder of the owner token"
        for position, name in enumerate(client.may_call):
            if name not in agents:
                yield ("clients", index, "may_call", position), f"there is no agent {name!r}"
        if client.kind == "agent" and Scope.DECIDE in client.scopes:
            yield ("clients", index, "scopes"), f"an agent never holds {Scope.DECIDE}"


def _find_repeats(section: str, names: Iterable[str]) -> Iterator[tuple[KeyPath, str]]:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield (section, index, "name"), f"{name!r} is there twice"
        seen.add(name)
