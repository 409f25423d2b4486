"""``passerelle agents``: asks a gateway that runs for the agents that one may use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import httpx
import orjson

from passerelle.a2a_mapping.members import objects_at, text_at, texts_at
from passerelle.core.errors import (
    CallerError,
    ConfigInvalid,
    Forbidden,
    RemoteError,
    Unauthenticated,
)
from passerelle.gateway.auth.owner import OWNER_FILE
from passerelle.gateway.http.v1 import AGENTS_PATH
from passerelle.gateway.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from passerelle.core.json import JsonObject
    from passerelle.gateway.settings import Settings

TIMEOUT_S: Final = 15.0
_REFUSALS: Final = {401: Unauthenticated, 403: Forbidden}


def read_token(settings: Settings, token_env: str | None) -> Secret | None:
    """The token of a variable, else the owner's, where this user can read it; None for an open gateway.

    Raises:
        ConfigInvalid: the variable is not set, or the file cannot be read.
    """
    if token_env is not None:
        text = os.environ.get(token_env, "")
    elif settings.auth == "open":
        return None
    else:
        text = _read_owner(settings.data_dir / OWNER_FILE)
    if not text.strip():
        raise ConfigInvalid(token_env or OWNER_FILE, "holds no token; --token-env names a variable")
    return Secret(text.strip())


def fetch_agents(
    settings: Settings, url: str | None, token: Secret | None, filters: Mapping[str, str | None]
) -> list[JsonObject]:
    """The agents that match ``filters``, as ``GET /v1/agents`` lists them.

    Raises:
        RemoteError: nobody answers there.
        Unauthenticated, Forbidden, CallerError: the answer is a problem.
    """
    base = (url or f"http://{settings.host}:{settings.port}").rstrip("/")
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
    params = {name: value for name, value in filters.items() if value is not None}
    try:
        response = httpx.get(
            f"{base}{AGENTS_PATH}",
            headers=headers,
            params=params,
            timeout=TIMEOUT_S,
            trust_env=False,
        )
        answer: JsonObject = orjson.loads(response.content)
    except (httpx.HTTPError, httpx.InvalidURL, orjson.JSONDecodeError) as error:
        raise RemoteError(f"no gateway answers at {base}: {error}") from None
    if response.is_error:
        refused = _REFUSALS.get(response.status_code, CallerError)
        raise refused(text_at(answer, "detail") or f"HTTP {response.status_code}")
    return objects_at(answer, "agents")


def render_agents(agents: list[JsonObject]) -> Iterator[str]:
    """One line for each agent, and one for each of its skills."""
    for agent in agents:
        yield f"{text_at(agent, 'name')}  {text_at(agent, 'status')}  {text_at(agent, 'url')}"
        for skill in objects_at(agent, "skills"):
            tags = ", ".join(texts_at(skill, "tags"))
            yield f"  {text_at(skill, 'id')}: {text_at(skill, 'name')}{f' [{tags}]' if tags else ''}"
    count = len(agents)
    yield f"agents: {count}"


def _read_owner(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(str(path), f"cannot be read: {error}; see --token-env") from None
