"""The owner's token: made on the first start, kept in the data directory for the owner alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from passerelle.core.ports.chance import Ids
from passerelle.gateway.auth.keys import mint_token
from passerelle.gateway.private_file import load_or_mint
from passerelle.gateway.secret import Secret

OWNER_FILE: Final = "owner-token"


@dataclass(frozen=True, slots=True)
class OwnerToken:
    """The owner's token and the file that keeps it; ``minted`` only on the start that made it."""

    secret: Secret
    path: Path
    minted: bool


def load_owner_token(data_dir: Path, ids: Ids) -> OwnerToken:
    """Reads the owner token of a data directory, and makes it when there is none.

    Raises:
        ConfigInvalid: the file cannot be read, made or trusted.
    """
    path = data_dir / OWNER_FILE
    kept = load_or_mint(path, lambda: mint_token(ids).get_secret_value())
    return OwnerToken(Secret(kept.text), path, kept.minted)
