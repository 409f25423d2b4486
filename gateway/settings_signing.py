"""Settings of what we sign, and with which keys."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from passerelle.gateway.settings_section import Section


class SigningKeySettings(Section):
    """One private key; `passerelle signing-key FILE` makes one."""

    file: Path = Field(description="PEM file of a P-256 or Ed25519 key, mode 0600.")
    signs: bool = Field(
        default=True,
        description="`false`: it is published only, so that what it signed can be verified.",
    )


class SigningSettings(Section):
    """What is signed, by which keys. The public halves stand at `/.well-known/jwks.json`."""

    keys: tuple[SigningKeySettings, ...] = Field(
        default=(), description="Each key that signs makes a signature of its own."
    )
    cards: bool = Field(
        default=True, description="Whether agent cards are signed once there is a key."
    )

    @property
    def signs_cards(self) -> bool:
        """Whether cards get signatures."""
        return self.cards and any(key.signs for key in self.keys)
