"""Reloads the configuration when its file changes and on SIGHUP, and applies it to a running gateway.

A valid configuration applies at once as far as possible; the log names the settings that need a restart. An invalid one
changes nothing: the log, the readiness page and a metric report the fault until the file is corrected.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from typing import TYPE_CHECKING, Final

import structlog

from passerelle.core.errors import ConfigInvalid, PasserelleError
from passerelle.core.payloads.governance import PolicyChanged
from passerelle.core.principal import OWNER
from passerelle.gateway.auth.principals import make_client_principal
from passerelle.gateway.settings.changes import compare, list_limit_changes
from passerelle.gateway.settings.layers import find_config
from passerelle.gateway.settings.section import read_output_terms
from passerelle.gateway.settings.source import read_settings
from passerelle.gateway.settings.values import (
    list_bounds,
    list_prices,
    list_quotas,
    make_peer_configs,
    read_forget_terms,
    read_memory_terms,
)
from passerelle.protocol.concurrency import cancel_all
from passerelle.runtime.common.beat import sleep_until_beat
from passerelle.runtime.observability.logs import configure_logs
from passerelle.runtime.records.places import Home

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from passerelle.core.payloads.limit import LimitChanged
    from passerelle.core.principal import Principal
    from passerelle.gateway.assembly import Gateway
    from passerelle.gateway.auth.access import Access
    from passerelle.gateway.settings.layers import Sources
    from passerelle.gateway.settings.model import Settings
    from passerelle.gateway.settings.source import LoadResult
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.observability.metrics import Metrics


async def apply_settings(gateway: Gateway, access: Access, old: Settings, new: Settings) -> None:
    """Applies what can be changed at run time; a request in progress keeps the settings it started with.

    Raises:
    ConfigInvalid: an agent's section cannot be used; nothing is changed then.
    """
    gateway.peers.replace(make_peer_configs(new.agents, os.environ))
    ruled = gateway.terms.find_rules()
    gateway.terms.reload(new)
    # Read before the first await: a rule edit in between is recorded by its own command.
    rules = gateway.terms.find_rules()
    access.reload(new)
    gateway.gate.rebind(list_bounds(new))
    gateway.spending.reload(list_quotas(new), list_prices(new))
    gateway.parts.queues.look_at_quotas()
    gateway.duties.sweeps.archive.terms = read_memory_terms(new)
    gateway.duties.sweeps.retention.terms = read_forget_terms(new)
    gateway.parts.links.push_configs.rules.reload(new.webhooks.allow)
    gateway.origins.reload(new.channels.origins)
    gateway.parts.dispatch.outputs.reload(read_output_terms(new.outputs))
    if new.log_level != old.log_level:
        configure_logs(new.log_level, old.log_format)
    await _record_limit_changes(gateway, old, new)
    await _record_policy_change(gateway, ruled.version, rules)


async def _record_policy_change(gateway: Gateway, previous: str, rules: Policy) -> None:
    """Records the old and the new policy version in the owner's home session (EXT-3)."""
    if rules.version == previous:
        return
    changed = PolicyChanged("rules", "configuration", rules.version, previous, rules.mode)
    await _record(Home(gateway.parts.writes), OWNER, changed, f"policy {previous} {rules.version}")


async def _record_limit_changes(gateway: Gateway, old: Settings, new: Settings) -> None:
    """Records changed limits. Every instance reads the same file: the idempotency key makes it one fact (EVC-17)."""
    home = Home(gateway.parts.writes)
    clients = {client.name: make_client_principal(client) for client in new.clients}
    for fact in list_limit_changes(old, new):
        who = clients.get(fact.limited.name, OWNER) if fact.limited.kind == "caller" else OWNER
        limited = fact.limited
        key = f"{limited.kind} {limited.name} {fact.kind} {fact.unit} {fact.old} {fact.new}"
        await _record(home, who, fact, key)


async def _record(home: Home, who: Principal, fact: LimitChanged | PolicyChanged, key: str) -> None:
    try:
        await home.record(who, fact, key=key)
    except PasserelleError as error:
        structlog.get_logger().warning(
            "change.not_recorded", what=fact.type, caller=who.id, why=str(error)
        )


_QUIET_S: Final = 0.2
"""How long a file must stay unchanged: an editor writes it in several steps."""
_MAX_CHECKS: Final = 10
"""After this many checks a file that keeps changing is read anyway."""


class Reloading:
    """Holds the current settings. ``apply`` gets the old and the new ones."""

    def __init__(
        self,
        sources: Sources,
        settings: Settings,
        apply: Callable[[Settings, Settings], Awaitable[None]],
        metrics: Metrics,
        *,
        watches: bool = True,
        on_fault: Callable[[str | None], None] = lambda _fault: None,
    ) -> None:
        """``on_fault`` gets the reason why the file is not applied, and None once it is."""
        self._sources = sources
        self._apply = apply
        self._metrics = metrics
        self._log = structlog.get_logger("passerelle")
        self._wanted = asyncio.Event()
        self._watches = watches
        self._on_fault = on_fault
        self.settings = settings
        self.fault: str | None = None
        """Why the current file is not applied."""

    async def run(self) -> None:
        """Reloads whenever the file changes or SIGHUP arrives, until cancelled."""
        if not self._watches:
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._wanted.set)
        watching = asyncio.create_task(self._watch(), name="config.watch")
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                await self.reload()
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            await cancel_all([watching])

    async def reload(self) -> bool:
        """Reads all sources and applies them; returns False if they are invalid."""
        try:
            loaded = read_settings(self._sources)
            fault = _explain(loaded)
        except ConfigInvalid as error:
            loaded, fault = None, error.message
        if loaded is None or loaded.settings is None or fault is not None:
            self._refuse(fault or "the configuration cannot be read")
            return False
        return await self._apply_loaded(loaded.settings)

    async def _apply_loaded(self, new: Settings) -> bool:
        old = self.settings
        changes = compare(old, new)
        try:
            await self._apply(old, new)
        except PasserelleError as error:
            self._refuse(error.message)
            return False
        self.settings, self.fault = new, None
        self._on_fault(None)
        self._metrics.config.faulty.set(0)
        self._metrics.config.reloads.labels("ok").inc()
        if changes.hot:
            self._log.info("config.reloaded", changed=", ".join(changes.hot))
        if changes.cold:
            self._log.warning("config.restart_wanted", settings=", ".join(changes.cold))
        return True

    def _refuse(self, fault: str) -> None:
        self.fault = fault
        self._on_fault(fault)
        self._metrics.config.faulty.set(1)
        self._metrics.config.reloads.labels("refused").inc()
        self._log.error("config.refused", fault=fault, kept="the previous configuration")

    async def _watch(self) -> None:
        """Polls the file that the path resolves to: a replaced file, or one behind a replaced symlink, sends no events.

        One stat call per beat is cheaper than a thread that waits for events.
        """
        path = find_config(self._sources)
        if path is None:
            return
        seen, known = _stat(path), _digest(path)
        while True:
            await sleep_until_beat()
            before, seen = seen, _stat(path)
            if seen == before:
                continue
            for _ in range(_MAX_CHECKS):
                before, seen = seen, await _stat_later(path)
                if seen == before:
                    break
            found = _digest(path)
            if found != known:
                known = found
                self._wanted.set()


def _explain(loaded: LoadResult) -> str | None:
    if not loaded.faults:
        return None
    more = len(loaded.faults) - 1
    rest = f" (and {more} more; passerelle check shows all)" if more else ""
    return f"{loaded.faults[0]}{rest}"


def _digest(path: Path) -> bytes | None:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None


def _stat(path: Path) -> tuple[int, int, int] | None:
    """Inode, size and change time, which differ once a file is written or replaced; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    # ctime and not mtime, which a copy may preserve.
    return found.st_ino, found.st_size, found.st_ctime_ns


async def _stat_later(path: Path) -> tuple[int, int, int] | None:
    await asyncio.sleep(_QUIET_S)
    return _stat(path)
