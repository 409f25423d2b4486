"""How a peer is shown who calls: values that the configuration gives, and what they add to a request.

The credential is the operator's. A caller's own goes on only where the operator says so (``forward_auth``).
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Protocol, TypeAlias, assert_never
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping


HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
"""CR and LF would let a value write header lines of its own."""


class SecretText(Protocol):
    """A secret that does not print itself."""

    def get_secret_value(self) -> str:
        """The secret in the clear."""
        ...


@dataclass(frozen=True, slots=True)
class Bearer:
    """A token that does not change."""

    token: SecretText


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key under ``name`` in headers, query or cookies."""

    place: Literal["header", "query", "cookie"]
    name: str
    key: SecretText


@dataclass(frozen=True, slots=True)
class Basic:
    """HTTP basic authentication (RFC 7617)."""

    user: str
    password: SecretText


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """OAuth2 client credentials (RFC 6749 section 4.4): tokens come from ``token_url``."""

    token_url: str
    client_id: str
    secret: SecretText
    scopes: tuple[str, ...] = ()
    audience: str | None = None


Auth: TypeAlias = Bearer | ApiKey | Basic | ClientCredentials


@dataclass(frozen=True, slots=True)
class Shown:
    """What a request carries: headers, and a query member that is written already."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    query: str = ""


class Credential(Protocol):
    """Shows itself on each request."""

    renews: ClassVar[bool]
    """Whether it may ever show something else."""

    @property
    def shown(self) -> Shown | None:
        """What the next request carries, where nothing has to be found out for it."""
        ...

    async def show(self) -> Shown:
        """What the next request carries.

        Raises:
            PeerUnavailable: there is nothing to show, and nothing may be sent.
        """
        ...

    def renew(self, refused: Shown) -> bool:
        """After a 401: whether another try shows something else."""
        ...


class Fixed:
    """A credential that is always the same."""

    renews: ClassVar[bool] = False

    def __init__(self, shown: Shown) -> None:
        self.shown = shown

    async def show(self) -> Shown:
        return self.shown

    def renew(self, refused: Shown) -> bool:  # noqa: ARG002
        return False


def show_fixed(auth: Bearer | ApiKey | Basic | None) -> Shown:
    """What a credential that does not change adds to every request."""
    match auth:
        case None:
            return Shown()
        case Bearer(token=token):
            return Shown({"Authorization": f"Bearer {token.get_secret_value()}"})
        case Basic(user=user, password=password):
            return Shown({"Authorization": encode_basic(user, password.get_secret_value())})
        case ApiKey(place="header", name=name, key=key):
            return Shown({name: key.get_secret_value()})
        case ApiKey(place="cookie", name=name, key=key):
            return Shown({"Cookie": f"{name}={key.get_secret_value()}"})
        case ApiKey(name=name, key=key):
            return Shown(query=f"{quote(name)}={quote(key.get_secret_value(), safe='')}")
        case _:
            assert_never(auth)


def encode_basic(user: str, password: str) -> str:
    """The value of an ``Authorization`` header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def is_writable(auth: Auth) -> bool:
    """Whether there is a secret, and a request can carry it."""
    match auth:
        case Basic(password=secret) | ClientCredentials(secret=secret):
            return bool(secret.get_secret_value())
        case Bearer(token=secret):
            return HEADER_VALUE.fullmatch(secret.get_secret_value()) is not None
        case ApiKey(place=place, key=secret):
            value = secret.get_secret_value()
            fits = HEADER_VALUE.fullmatch(value) is not None
            return fits and not (place == "cookie" and ";" in value)
        case _:
            assert_never(auth)
