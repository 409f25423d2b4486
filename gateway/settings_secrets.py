"""From the settings to what seals secrets, signs, and may call webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.errors import ConfigInvalid
from passerelle.runtime.common.private_file import load_or_mint
from passerelle.runtime.common.sealer import KEY_FILE, SETTING, make_sealer, mint_key, read_keys
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.common.signatures import JWKS_PATH, Signer, load_signing_key
from passerelle.webhooks.addresses import WebhookRules
from passerelle.webhooks.push import Authority
from passerelle.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.core.ports.chance import Clock
    from passerelle.gateway.settings import Settings
    from passerelle.runtime.common.sealer import Draw, Sealer


def load_sealer(settings: Settings, data_dir: Path, draw: Draw) -> Sealer | None:
    """The sealer of the settings. None: nothing that holds a secret can be stored, so such features stay off.

    The embedded engine's gateway makes its key on the first start. With ``redis_url`` several instances share
    what is stored, so the key has to be given to all of them.

    Raises:
        ConfigInvalid: a key that cannot be read or used.
    """
    given = check_keys(settings)
    if given:
        return make_sealer(given, draw)
    if settings.redis_url is not None:
        return None
    kept = load_or_mint(data_dir / KEY_FILE, lambda: mint_key(draw).get_secret_value())
    return make_sealer(read_keys(Secret(kept.text), str(data_dir / KEY_FILE)), draw)


def name_setting(settings: Settings, data_dir: Path) -> str:
    """Where the keys come from, for whoever has to mend them."""
    if settings.secret_key is not None:
        return SETTING
    if settings.secret_key_file is not None:
        return f"{SETTING}_file"
    return str(data_dir / KEY_FILE) if settings.redis_url is None else SETTING


def check_keys(settings: Settings) -> list[bytes]:
    """The keys that are given; none where the gateway makes one itself, or does without.

    Raises:
        ConfigInvalid: a key that cannot be read or used.
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
        raise ConfigInvalid(f"{SETTING}_file", f"cannot be read: {error}") from None


def load_signer(settings: Settings) -> Signer | None:
    """The signer of the settings, or None where no key is configured.

    Raises:
        ConfigInvalid: a key file that cannot be used, or the same key twice.
    """
    section = settings.signing
    keys = tuple(
        load_signing_key(entry.file.expanduser(), signs=entry.signs) for entry in section.keys
    )
    if not keys:
        return None
    for index, key in enumerate(keys):
        if any(key.kid == other.kid for other in keys[:index]):
            raise ConfigInvalid(f"signing.keys.{index}.file", f"holds the key {key.kid} again")
    jku = f"{settings.public_url}{JWKS_PATH}" if settings.public_url else None
    return Signer(keys, jku)


def load_webhooks(
    settings: Settings, data_dir: Path, signer: Signer | None, clock: Clock, draw: Draw
) -> Webhooks:
    """The webhooks of the settings.

    Raises:
        ConfigInvalid: a secret key that cannot be read or used.
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
