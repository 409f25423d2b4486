"""The command line's client of ``/v1`` of a running gateway, with the owner token or another token.

Commands that inspect or change running work call the gateway; they never open its store.
"""

from __future__ import annotations

import json
import os
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from passerelle.a2a_mapping.members import object_at, text_at, whole_at
from passerelle.cli.contexts import find_context
from passerelle.cli.http_request import HttpAnswer, NoAnswer, UnsendableRequest, ask
from passerelle.core.errors import (
    ActionClosed,
    CallerError,
    ClosedState,
    ConfigInvalid,
    Forbidden,
    InvalidInput,
    NotFound,
    RemoteError,
    StaleAnswer,
    Unauthenticated,
    VersionMismatch,
)
from passerelle.core.frozen import frozen
from passerelle.core.wire.display import explain_error
from passerelle.gateway.server_tls import trust_own_certificate
from passerelle.gateway.settings.variables import TOKEN_VARIABLE, URL_VARIABLE
from passerelle.runtime.common.calls import KEY_HEADER
from passerelle.runtime.common.secret import Secret

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from pathlib import Path

    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.gateway.settings.local_gateway import LocalGateway

TIMEOUT_S: Final = 30.0
A2A_VERSION: Final = "1.0"
_FIELDS: Final = {KEY_HEADER: "key", "Authorization": "token"}
"""The parameter that sets a header, for error messages."""
_CLOSED: Final = frozenset(get_args(ClosedState))
_STALE: Final = frozenset({"stale_revision", "digest_mismatch"})


class ReportedNotFound(NotFound):
    """A gateway has answered with 404; the message is the gateway's."""

    def __init__(self, detail: str) -> None:
        CallerError.__init__(self, detail)
        self.kind = ""
        self.name = ""


@frozen
class ControlClient:
    """Calls one gateway. Ignores proxies of the environment, since requests carry a token."""

    url: str
    token: Secret | None
    tls: ssl.SSLContext | None = None
    """None: the certificates that the system trusts."""

    def get(self, path: str, params: Mapping[str, Json] | None = None) -> JsonObject:
        """Returns the response of a query. A list is sent as a repeated parameter."""
        return _read(self._ask("GET", path, params=params))

    def get_lines(self, path: str) -> list[JsonObject]:
        """Returns the JSON lines of a query."""
        answer = self._ask("GET", path, headers={"Accept": "application/jsonl"})
        if not answer.is_success:
            _read(answer)
        try:
            return [json.loads(line) for line in answer.content.splitlines()]
        except ValueError:
            raise RemoteError(f"{self.url} did not respond with JSON lines") from None

    def send(
        self,
        method: Literal["POST", "PUT", "PATCH", "DELETE"],
        path: str,
        body: JsonObject,
        key: str | None = None,
    ) -> JsonObject:
        """Returns the response of a command, sent with an idempotency key."""
        headers = {KEY_HEADER: key} if key else {}
        return _read(self._ask(method, path, body=body, headers=headers))

    def call_agent(
        self, path: str, body: JsonObject, key: str | None, timeout_s: float
    ) -> JsonObject:
        """Returns the response of an agent behind the gateway, over A2A."""
        headers = {"A2A-Version": A2A_VERSION, **({KEY_HEADER: key} if key else {})}
        late = f" within {timeout_s:g} s; its task continues: see passerelle tasks list"
        return _read(
            self._ask("POST", path, body=body, headers=headers, timeout_s=timeout_s, late=late)
        )

    def _ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Json] | None = None,
        body: JsonObject | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        late: str = f" within {TIMEOUT_S:g} s",
    ) -> HttpAnswer:
        headers = {**(headers or {})}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token.get_secret_value()}"
        try:
            return ask(
                method,
                f"{self.url}{path}",
                headers=headers,
                params=params,
                body=body,
                timeout_s=timeout_s,
                tls=self.tls,
            )
        except UnicodeEncodeError:
            raise InvalidInput("text", "an argument or the input is not UTF-8") from None
        except UnsendableRequest as error:
            raise InvalidInput(_FIELDS.get(error.field, error.field), error.reason) from None
        except NoAnswer as error:
            if error.is_late:
                raise RemoteError(f"{self.url} did not respond{late}") from None
            raise RemoteError(f"no gateway responds at {self.url}: {error.reason}") from None


def open_client(
    local: LocalGateway,
    url: str | None = None,
    token_env: str | None = None,
    *,
    is_local: bool = False,
) -> ControlClient:
    """Opens a client for ``url``, else for ``PASSERELLE_URL``, else for the gateway of this machine.

    Without a URL, a context has priority over the settings: the one that ``PASSERELLE_CONTEXT`` names, or the current
    one. ``is_local`` selects the settings of this machine instead.

    The token comes from the variable ``token_env``, else ``PASSERELLE_TOKEN``, else the context, else the owner token
    file, if this user can read it. The token of a context is sent only to its own gateway.

    Raises:
        ConfigInvalid: the variable is not set, the owner token cannot be read, or the context does not exist.
    """
    url = url or os.environ.get(URL_VARIABLE) or None
    if token_env is None and os.environ.get(TOKEN_VARIABLE):
        token_env = TOKEN_VARIABLE
    context = None if url or is_local else find_context()
    if context is not None:
        token = context.token if token_env is None else _find_token(local, token_env)
        return ControlClient(context.url.rstrip("/"), token)
    own = trust_own_certificate(local.certificate) if local.certificate and url is None else None
    return ControlClient((url or local.url).rstrip("/"), _find_token(local, token_env), own)


def _find_token(local: LocalGateway, token_env: str | None) -> Secret | None:
    if token_env is not None:
        text = os.environ.get(token_env, "").strip()
    elif local.is_open:
        return None
    else:
        text = _read_owner(local.owner_file)
    if not text:
        raise ConfigInvalid(
            token_env or local.owner_file.name, "holds no token; --token-env names a variable"
        )
    return Secret(text)


def _read_owner(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        reason = f"does not exist yet: start `passerelle serve`, or set a token with --token-env or {TOKEN_VARIABLE}"
        raise ConfigInvalid(str(path), reason) from None
    except (OSError, UnicodeDecodeError) as error:
        hint = f"see --token-env and {TOKEN_VARIABLE}"
        raise ConfigInvalid(str(path), f"cannot be read: {explain_error(error)}; {hint}") from None


def _read(answer: HttpAnswer) -> JsonObject:
    answered = answer.read_object()
    if answered is None or answer.location is not None:
        raise RemoteError(f"{answer.host} {answer.describe_unexpected()}")
    if answer.is_success:
        return answered
    refused = object_at(answered, "error")
    detail = text_at(answered, "detail") or text_at(refused, "message") or f"HTTP {answer.status}"
    if answer.status == HTTPStatus.UNAUTHORIZED:
        raise Unauthenticated(detail)
    if answer.status == HTTPStatus.FORBIDDEN:
        raise Forbidden(detail)
    if answer.status == HTTPStatus.NOT_FOUND:
        raise ReportedNotFound(detail)
    code = text_at(answered, "code")
    if code in _CLOSED:
        raise ActionClosed(cast("ClosedState", code), object_at(answered, "winner"))
    if code in _STALE:
        raise StaleAnswer(cast("Literal['stale_revision', 'digest_mismatch']", code), "approval")
    if answered.get("code") == VersionMismatch.code:
        raise VersionMismatch(
            whole_at(answered, "expected") or 0, whole_at(answered, "actual") or 0
        )
    may_succeed_later = (
        answer.status == HTTPStatus.TOO_MANY_REQUESTS
        or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    )
    raise (RemoteError if may_succeed_later else CallerError)(detail)
