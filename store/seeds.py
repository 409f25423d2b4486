"""Where a store is looked for: the addresses that the setting ``redis_url`` names.

One address, or several separated by commas, as long as all of them lead to the same store: servers of one failover
group, nodes of one cluster, or Sentinels, ``redis+sentinel://user:password@host:26379,host:26379/service/0``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from passerelle.core.errors import ConfigInvalid
from passerelle.store.connection import Endpoint, read_url

SETTING: Final = "redis_url"
_NEXT: Final = re.compile(r",\s*(?=[a-z+]+://)")
_SENTINEL: Final = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
_SENTINEL_PORT: Final = 26_379
_SENTINEL_FIELDS: Final = ("sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True)
class SentinelService:
    """A primary that Sentinels name: under which name, and how to talk to it wherever it is."""

    name: str
    primary: Endpoint


@dataclass(frozen=True, slots=True)
class Seeds:
    """Addresses that are asked where the store is; with a service they are those of Sentinels."""

    endpoints: tuple[Endpoint, ...]
    service: SentinelService | None = None


def read_seeds(text: str) -> Seeds:
    """The seeds out of one address, or several separated by commas.

    Raises:
        ConfigInvalid: one cannot be used, or they are of different kinds.
    """
    urls = [url.strip() for url in _NEXT.split(text)]
    of_sentinels = [url.partition("://")[0] in _SENTINEL for url in urls]
    if not any(of_sentinels):
        return Seeds(tuple([read_url(url) for url in urls]))
    if not all(of_sentinels):
        raise ConfigInvalid(SETTING, "Sentinels and servers cannot be named together")
    found = [_read_sentinels(url) for url in urls]
    services = [seeds.service for seeds in found]
    if any(not _is_same(services[0], service) for service in services):
        raise ConfigInvalid(SETTING, "the Sentinels should name one service, with one credential")
    endpoints = tuple([endpoint for seeds in found for endpoint in seeds.endpoints])
    return Seeds(endpoints, services[0])


def _read_sentinels(url: str) -> Seeds:
    parts = urlsplit(url)
    scheme = _SENTINEL[parts.scheme]
    credential, at, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service or not hosts:
        form = f"{parts.scheme}://host:{_SENTINEL_PORT}/service"
        raise ConfigInvalid(SETTING, f"Sentinels are named as {form}, with the name of the primary")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    login = {field.partition("_")[2]: query.pop(field, None) for field in _SENTINEL_FIELDS}
    rest = f"?{urlencode(query)}" if query else ""
    names = [_add_port(host) for host in hosts.split(",")]
    primary = read_url(f"{scheme}://{credential}{at}{names[0]}/{database or '0'}{rest}")
    endpoints = [read_url(f"{scheme}://{name}{rest}") for name in names]
    known = {field: value for field, value in login.items() if value}
    return Seeds(
        tuple([Endpoint({**one.kwargs, **known}, one.connection_class) for one in endpoints]),
        SentinelService(service, primary),
    )


def _add_port(host: str) -> str:
    has_port = re.search(r":\d+$", host) is not None and not host.endswith("]")
    return host if has_port else f"{host}:{_SENTINEL_PORT}"


def _is_same(one: SentinelService | None, other: SentinelService | None) -> bool:
    """Whether both name one primary, wherever it is."""
    if one is None or other is None:
        return one is other
    settings = [
        {
            name: value
            for name, value in service.primary.kwargs.items()
            if name not in {"host", "port"}
        }
        for service in (one, other)
    ]
    return one.name == other.name and settings[0] == settings[1]
