"""Compares two configurations: what applies at once, what needs a restart, and which limits changed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.frozen import frozen
from passerelle.core.payloads.limit import LimitChanged, LimitSubject
from passerelle.gateway.settings.model import ChannelSettings, Settings
from passerelle.gateway.settings.section import Section
from passerelle.gateway.settings.values import list_bounds, list_quotas
from passerelle.runtime.limits.limit import Bounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from passerelle.core.payloads.limit import LimitKind, Unit

HOT: Final = frozenset(
    {
        *(
            "agents",
            "channels",
            "clients",
            "issuers",
            "outputs",
            "policy",
            "proxy",
            "retention",
            "tls",
        ),
        *("webhooks", "log_level"),
    }
)
"""Settings that apply to a running gateway."""
_COLD_PARTS: Final = {
    "channels": frozenset(ChannelSettings.model_fields) - {"origins"},
    "proxy": frozenset({"address_header", "certificate_header"}),
    "retention": frozenset({"inbox"}),
    "webhooks": frozenset({"deliver_final", "sign"}),
}
"""Parts of them that need a restart."""
_ACTOR: Final = "configuration"


@frozen
class Changes:
    """Dotted names of settings; ``hot`` apply at once, ``cold`` after a restart."""

    hot: tuple[str, ...]
    cold: tuple[str, ...]


@frozen
class _LimitKey:
    kind: LimitKind
    unit: Unit
    window_ms: int | None
    currency: str | None


def _keep(after: object, before: object, parts: set[str]) -> object:
    """A section with some parts as they were before."""
    if not isinstance(after, Section) or not isinstance(before, Section):
        return after
    return after.model_copy(update={part: getattr(before, part) for part in parts})


def compare(old: Settings, new: Settings) -> Changes:
    """The settings that differ."""
    hot: list[str] = []
    cold: list[str] = []
    for name in Settings.model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if name not in HOT or (name == "tls" and None in {before, after}):
            cold.append(name)
            continue
        restart = {
            part
            for part in _COLD_PARTS.get(name, frozenset())
            if getattr(before, part, None) != getattr(after, part, None)
        }
        cold += [f"{name}.{part}" for part in sorted(restart)]
        if not restart or _keep(after, before, restart) != before:
            hot.append(name)
    return Changes(tuple(hot), tuple(cold))


def list_limit_changes(old: Settings, new: Settings) -> Iterator[LimitChanged]:
    """A fact for each changed limit of a caller or an agent (EVC-17).

    A new or removed caller has no changed limit.
    """
    before, after = _list_callers(old), _list_callers(new)
    for name in before.keys() & after.keys():
        yield from _compare(LimitSubject("caller", name), before[name], after[name])
    peers, peers_now = _list_agents(old), _list_agents(new)
    for name in peers.keys() & peers_now.keys():
        yield from _compare(LimitSubject("peer", name), peers[name], peers_now[name])


def _compare(
    limited: LimitSubject, before: Mapping[_LimitKey, int], after: Mapping[_LimitKey, int]
) -> Iterator[LimitChanged]:
    for key in dict.fromkeys((*before, *after)):
        if before.get(key) != after.get(key):
            yield LimitChanged(
                limited=limited,
                kind=key.kind,
                unit=key.unit,
                old=before.get(key),
                new=after.get(key),
                actor=_ACTOR,
                window_ms=key.window_ms,
                currency=key.currency,
            )


def _list_callers(settings: Settings) -> dict[str, dict[_LimitKey, int]]:
    names = [client.name for client in settings.clients]
    names += [f"{issuer.name}:" for issuer in settings.issuers]
    bounds, quotas = list_bounds(settings), list_quotas(settings)
    limits = {name: _read_bounds(bounds.get(name, Bounds())) for name in names}
    for name, listed in quotas.items():
        for quota in listed:
            unit: Unit = "micros" if quota.currency else "calls"
            window_ms = _WINDOWS_MS[quota.period]
            limits[name][_LimitKey(quota.kind, unit, window_ms, quota.currency)] = quota.limit
    return limits


def _list_agents(settings: Settings) -> dict[str, dict[_LimitKey, int]]:
    return {agent.name: _read_bounds(agent.limits.bounds()) for agent in settings.agents}


def _read_bounds(bounds: Bounds) -> dict[_LimitKey, int]:
    limits: dict[_LimitKey, int] = {}
    if bounds.concurrency is not None:
        limits[_LimitKey("concurrency", "slots", None, None)] = bounds.concurrency
    if bounds.rate is not None:
        limits[_LimitKey("rate_limit", "calls", bounds.rate.per_ms, None)] = bounds.rate.units
    return limits


_WINDOWS_MS: Final = {
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "month": 2_592_000_000,
}
"""A month counts as thirty days."""
