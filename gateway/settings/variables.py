"""The names by which settings are found: the file of a folder, and the variables that are no settings themselves."""

from __future__ import annotations

from typing import Final

FILE_NAME: Final = "passerelle.yaml"
PREFIX: Final = "PASSERELLE_"
CONFIG_VARIABLE: Final = "PASSERELLE_CONFIG"
URL_VARIABLE: Final = "PASSERELLE_URL"
TOKEN_VARIABLE: Final = "PASSERELLE_TOKEN"  # noqa: S105  a name, not a token
CONTEXT_VARIABLE: Final = "PASSERELLE_CONTEXT"
NO_SETTINGS: Final = frozenset({CONFIG_VARIABLE, URL_VARIABLE, TOKEN_VARIABLE, CONTEXT_VARIABLE})
