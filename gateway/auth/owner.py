"""The owner token: one per store, which keeps it sealed, and a copy in each data directory for this machine.

Without a ``secret_key`` nothing can be sealed; then each data directory has its own token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.errors import ConfigInvalid, WriteConflict
from passerelle.core.frozen import frozen
from passerelle.gateway.auth.keys import mint_token
from passerelle.gateway.settings.local_gateway import OWNER_FILE
from passerelle.runtime.common.private_file import load_or_mint, read_private, replace_private
from passerelle.runtime.common.secret import Secret
from passerelle.store.sealed_values import SealedToken

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ports.chance import Ids
    from passerelle.runtime.common.sealer import Sealer
    from passerelle.store.sealed_values import RedisOwnerTokens

NO_KEY: Final = "redis_url is set and secret_key is not"
_FIRST: Final = 1


@frozen
class OwnerToken:
    """The owner token and its file; ``minted`` only on the start that created it.

    ``accepted`` has it first; another one is from this data directory, from before the store had one.
    """

    accepted: tuple[Secret, ...]
    path: Path
    minted: bool

    @property
    def secret(self) -> Secret:
        """The token that is valid at every instance."""
        return self.accepted[0]


def load_owner_token(data_dir: Path, ids: Ids) -> OwnerToken:
    """Reads the owner token of a data directory, and creates it if there is none.

    Raises:
        ConfigInvalid: the file cannot be read, created or trusted.
    """
    path = data_dir / OWNER_FILE
    kept = load_or_mint(path, lambda: mint_token(ids).get_secret_value())
    return OwnerToken((Secret(kept.text),), path, kept.minted)


@frozen
class OwnerTokenStore:
    """Where a store keeps its token; ``key_name`` is the setting with the key of ``sealer``."""

    rows: RedisOwnerTokens
    sealer: Sealer
    key_name: str
    runtime_id: str
    path: Path
    ids: Ids

    def seal(self, token: Secret, generation: int) -> SealedToken:
        """Seals a token, bound to its runtime, purpose and generation."""
        plain = token.get_secret_value().encode()
        return SealedToken(generation, self.sealer.seal(plain, self._name(generation)))

    def unseal(self, stored: SealedToken) -> Secret:
        """Opens a stored token.

        Raises:
            ConfigInvalid: the key does not open it.
        """
        try:
            plain = self.sealer.unseal(stored.sealed, self._name(stored.generation))
        except ConfigInvalid as error:
            reason = f"cannot decrypt the owner token of the store: {error.message}"
            raise ConfigInvalid(self.key_name, reason) from None
        return Secret(plain.decode())

    def _name(self, generation: int) -> str:
        return f"owner token {self.runtime_id} {generation}"


class StoredOwnerToken:
    """The store's token as one instance follows it. ``on_change`` gets all tokens that are valid from now on."""

    def __init__(self, place: OwnerTokenStore, log: FilteringBoundLogger) -> None:
        self._place = place
        self._log = log
        self._known: SealedToken | None = None
        self._undecryptable: bytes | None = None
        self.on_change: Callable[[tuple[Secret, ...]], None] = lambda _accepted: None

    async def load(self) -> OwnerToken:
        """Loads the store's token; the first instance stores that of its data directory, or a new one.

        Raises:
            ConfigInvalid: the key does not open the stored token, or the file cannot be read or trusted.
            StoreUnavailable: it could not be read or written.
        """
        place = self._place
        own = _read_own(place.path)
        stored = await place.rows.read()
        fresh = own or mint_token(place.ids)
        if stored is None:
            stored = await place.rows.keep(place.seal(fresh, _FIRST))
        token = place.unseal(stored)
        if not place.sealer.is_current(stored.sealed):
            stored = place.seal(token, stored.generation)
            await place.rows.seal_anew(stored)
        self._known = stored
        accepted = self._accept(stored, token, own)
        return OwnerToken(accepted, place.path, minted=own is None and token == fresh)

    async def refresh(self) -> None:
        """Reads the stored token again, and uses it.

        Raises:
            StoreUnavailable: it could not be read.
        """
        place, known = self._place, self._known
        stored = await place.rows.read()
        if known is not None and (stored is None or stored.generation < known.generation):
            # Acknowledged writes were lost: any instance that knows the last rotation stores it again.
            self._log.warning("owner_token.lost", generation=known.generation)
            stored = await place.rows.keep(known)
        if stored is None or stored == known or stored.sealed == self._undecryptable:
            return
        try:
            token = place.unseal(stored)
        except ConfigInvalid as error:
            self._undecryptable = stored.sealed
            self._log.error("owner_token.invalid", reason=error.message, kept="the previous token")
            return
        before = None if known is None else place.unseal(known)
        self._known = stored
        if token == before:
            return
        self._log.warning("owner_token.rotated", generation=stored.generation)
        self.on_change(self._accept(stored, token, before))

    def _accept(self, stored: SealedToken, token: Secret, own: Secret | None) -> tuple[Secret, ...]:
        """Returns the tokens valid at this instance, and updates its file."""
        path = self._place.path
        if own == token:
            return (token,)
        if own is not None and stored.generation == _FIRST:
            self._log.warning("owner_token.differs", file=str(path), advice=_DIFFERS)
            return (token, own)
        try:
            replace_private(path, token.get_secret_value())
        except OSError as error:
            self._log.warning("owner_token.stale", file=str(path), reason=str(error))
        else:
            write = self._log.info if own is None else self._log.warning
            write("owner_token.written", file=str(path), generation=stored.generation)
        return (token,)


async def rotate_owner_token(place: OwnerTokenStore, *, key_lost: bool = False) -> Secret:
    """Replaces the store's token; all earlier tokens become invalid.

    ``key_lost`` replaces a token that can no longer be opened.

    Raises:
        ConfigInvalid: the key does not open what is stored.
        Conflict: another process replaced it at the same moment.
        StoreUnavailable: whether the new token counts is unknown.
    """
    stored = await place.rows.read()
    if stored is not None and not key_lost:
        place.unseal(stored)
    token = mint_token(place.ids)
    made = place.seal(token, (stored.generation if stored else _FIRST) + 1)
    if await place.rows.keep(made) != made:
        raise WriteConflict(
            "another owner token was created at the same moment and replaces this one"
        )
    await place.rows.forget_before(made.generation)
    await place.rows.tell()
    return token


def _read_own(path: Path) -> Secret | None:
    text = read_private(path)
    return None if text is None else Secret(text)


_DIFFERS: Final = (
    "the store has another token, and this release accepts both; copy that of another instance "
    "there, or run passerelle token rotate"
)
