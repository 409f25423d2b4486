"""The file name of the configuration, and the environment variables that are not settings."""

from __future__ import annotations

from typing import Final

FILE_NAME: Final = "passerelle.yaml"
PREFIX: Final = "PASSERELLE_"
CONFIG_VARIABLE: Final = "PASSERELLE_CONFIG"
URL_VARIABLE: Final = "PASSERELLE_URL"
TOKEN_VARIABLE: Final = "PASSERELLE_TOKEN"  # noqa: S105  a name, not a token
CONTEXT_VARIABLE: Final = "PASSERELLE_CONTEXT"
NO_SETTINGS: Final = frozenset({CONFIG_VARIABLE, URL_VARIABLE, TOKEN_VARIABLE, CONTEXT_VARIABLE})
