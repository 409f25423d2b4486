"""Settings of the encryption that this gateway offers to its callers."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from passerelle.gateway.settings_section import Section


class TlsSettings(Section):
    """A certificate of ours. With it both ports speak TLS 1.2 or newer, and nothing else."""

    cert: Path = Field(description="Our certificate, with its chain, as PEM.")
    key: Path | None = Field(default=None, description="Its key; absent: in the same file.")
