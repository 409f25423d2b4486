"""Settings of webhooks: who may be called, and what with."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from pydantic import Field

from passerelle.gateway.settings_section import Section

ALLOW_PATTERN: Final = r"^https?://(\*|(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:([0-9]{1,5}|\*))?$"

AllowedOrigin: TypeAlias = Annotated[str, Field(pattern=ALLOW_PATTERN)]


class WebhookSettings(Section):
    """Where push notifications may be sent."""

    allow: tuple[AllowedOrigin, ...] = Field(
        default=(),
        description="Origins that may be called, such as `https://*.example.com` or `http://127.0.0.1:9000`; `*` "
        "stands for a host, the first part of one, or a port. None: every public https address. An origin without "
        "a `*` in its host may be a private one.",
    )
    deliver_final: bool = Field(
        default=False,
        description="Whether a webhook that is set on a task which has ended gets the final task.",
    )
    sign: bool = Field(
        default=True,
        description="Whether deliveries are signed once `signing.keys` has a key.",
    )
