"""The control plane as the command line calls it: ``/v1`` of a gateway that runs, with the owner's token or another.

A store is open in one place only, so commands that look at a running gateway ask it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

import httpx

from passerelle.core.errors import (
    CallerError,
    ConfigInvalid,
    Forbidden,
    RemoteError,
    Unauthenticated,
)
from passerelle.gateway.auth.owner import OWNER_FILE
from passerelle.gateway.secret import Secret
from passerelle.gateway.settings_source import TOKEN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.json import JsonObject
    from passerelle.gateway.settings import Settings

TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ControlClient:
    """Calls one gateway. Proxies of the environment are not asked, since a token travels along."""

    url: str
    token: Secret | None

    def get(self, path: str, params: Mapping[str, str | int] | None = None) -> JsonObject:
        """The answer of a query."""
        return self._call("GET", path, params=params)

    def post(self, path: str, body: JsonObject) -> JsonObject:
        """The answer of a command."""
        return self._call("POST", path, body=body)

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: JsonObject | None = None,
    ) -> JsonObject:
        headers = {"Authorization": f"Bearer {self.token.get_secret_value()}"} if self.token else {}
        try:
            with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as http:
                answer = http.request(
                    method, f"{self.url}{path}", params=params, json=body, headers=headers
                )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise RemoteError(f"no gateway answers at {self.url}: {reason}") from None
        return _read(answer)


def open_client(settings: Settings, url: str | None) -> ControlClient:
    """A client for the gateway of the settings, or for the one at ``url``.

    The token is that of the variable ``PASSERELLE_TOKEN``, else the owner's from the data directory.
    """
    host = "127.0.0.1" if settings.host in {"0.0.0.0", "::"} else settings.host  # noqa: S104  compared, never bound
    target = url or f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
    given = os.environ.get(TOKEN_VARIABLE, "").strip()
    if given:
        return ControlClient(target.rstrip("/"), Secret(given))
    path = settings.data_dir / OWNER_FILE
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        if settings.auth == "open":
            return ControlClient(target.rstrip("/"), None)
        raise ConfigInvalid(
            str(path), f"there is no owner token to show; give one in {TOKEN_VARIABLE}"
        ) from None
    return ControlClient(target.rstrip("/"), Secret(text))


def _read(answer: httpx.Response) -> JsonObject:
    try:
        content = answer.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise RemoteError(f"{answer.url.host} does not answer as a gateway does")
    if answer.is_success:
        return cast("JsonObject", content)
    detail = str(content.get("detail") or content.get("title") or answer.status_code)
    if answer.status_code == HTTPStatus.UNAUTHORIZED:
        raise Unauthenticated(detail)
    if answer.status_code == HTTPStatus.FORBIDDEN:
        raise Forbidden(detail)
    raise (CallerError if answer.is_client_error else RemoteError)(detail)
