"""Who may come in, put together by the settings and by what the store keeps of the owner."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.auth.access import Access
from passerelle.gateway.auth.owner import (
    NO_KEY,
    OWNER_FILE,
    KeptOwnerToken,
    OwnerPlace,
    load_owner_token,
)
from passerelle.gateway.settings_secrets import load_sealer, name_setting
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.common.refresh import NewsFollowing
from passerelle.runtime.common.sealer import SETTING
from passerelle.store.data_directory import make_data_directory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from passerelle.gateway.auth.owner import OwnerToken
    from passerelle.gateway.settings import Settings
    from passerelle.store.store import Store


@asynccontextmanager
async def open_access(
    settings: Settings, store: Store, introduce: Callable[[OwnerToken], None] | None = None
) -> AsyncGenerator[Access]:
    """Who may come in, until the end; ``introduce`` is told of the owner's token.

    Raises:
        ConfigInvalid: the secret key does not open the owner token of the store, or its file cannot be used.
        StoreUnavailable: the token of the store could not be read.
    """
    if settings.auth == "open":
        async with aclosing(Access(settings, None, SystemClock())) as access:
            yield access
        return
    place, log = find_place(settings, store), structlog.get_logger("passerelle")
    kept = None if place is None else KeptOwnerToken(place, log)
    if kept is None:
        await _refuse_sealed(store)
        log.warning("owner_token.unshared", reason=NO_KEY)
        token = load_owner_token(make_data_directory(settings.data_dir), SystemIds())
    else:
        token = await kept.load()
    if introduce is not None:
        introduce(token)
    async with aclosing(Access(settings, token.accepted, SystemClock())) as access:
        if kept is None:
            yield access
            return
        kept.on_change = access.know_owner
        listen = store.owner_tokens.listen
        async with NewsFollowing("owner_token", kept.refresh, listen, log).follow():
            yield access


def find_place(settings: Settings, store: Store) -> OwnerPlace | None:
    """Where the owner token of a store is kept; None where nothing can be sealed.

    Raises:
        ConfigInvalid: the secret key cannot be read or used.
    """
    data_dir, ids = make_data_directory(settings.data_dir), SystemIds()
    sealer = load_sealer(settings, data_dir, ids.draw)
    if sealer is None:
        return None
    return OwnerPlace(
        store.owner_tokens,
        sealer,
        name_setting(settings, data_dir),
        store.runtime_id,
        data_dir / OWNER_FILE,
        ids,
    )


async def _refuse_sealed(store: Store) -> None:
    """An instance that cannot read the token of the store would go on with one that may have been replaced."""
    if await store.owner_tokens.read() is not None:
        raise ConfigInvalid(
            SETTING,
            "is not given, and the store keeps its owner token sealed; every instance needs the key",
        )
