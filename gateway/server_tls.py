"""Our certificate towards callers: one for HTTP and gRPC, read again where it was renewed.

A connection that stands keeps what it began with.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final, NamedTuple

from passerelle.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.gateway.settings.model import Settings
    from passerelle.gateway.settings.section import TlsSettings

# Forward secrecy and authenticated encryption only; TLS 1.3 has nothing else (A2A 1.0 section 7.1).
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


class KeyPair(NamedTuple):
    """A certificate with its chain and the key of it, as PEM."""

    cert: bytes
    key: bytes


class ServerTls:
    """What both servers show. ``context`` is that of HTTP, and stays the same object over renewals."""

    def __init__(self, settings: TlsSettings) -> None:
        """Reads the files.

        Raises:
            ConfigInvalid: a file cannot be read, or key and certificate do not belong together.
        """
        self._settings = settings
        self.context: Final = _make_context()
        self.pair = self._read(self.context)

    def renew(self, settings: TlsSettings | None = None) -> bool:
        """Reads the files again, or those of other settings; whether they hold something else now.

        Raises:
            ConfigInvalid: they cannot be used; what was read before stays.
        """
        wanted, before = settings or self._settings, self._settings
        self._settings = wanted
        try:
            # A first try on the side: half of a new pair must not get into the context that serves.
            self._read(_make_context())
            pair = self._read(self.context)
        except ConfigInvalid:
            self._settings = before
            raise
        if pair == self.pair:
            return False
        self.pair = pair
        return True

    def _read(self, context: ssl.SSLContext) -> KeyPair:
        cert = self._settings.cert.expanduser()
        key = self._settings.key.expanduser() if self._settings.key else cert
        try:
            context.load_cert_chain(cert, key, password=_refuse_password)
            return KeyPair(cert.read_bytes(), key.read_bytes())
        except (OSError, ssl.SSLError) as error:
            raise ConfigInvalid("tls", f"{cert} and its key cannot be used: {error}") from None


def load_server_tls(settings: Settings) -> ServerTls | None:
    """What the settings say, None without a certificate.

    Raises:
        ConfigInvalid: see ``ServerTls``.
    """
    return ServerTls(settings.tls) if settings.tls else None


def trust_own_certificate(certificate: Path) -> ssl.SSLContext:
    """For a client on this machine that has the configuration: our certificate alone, under whatever name.

    Raises:
        ConfigInvalid: it cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # What is trusted is the very certificate, and not who signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cafile=certificate.expanduser())
    except (OSError, RuntimeError, ssl.SSLError) as error:
        raise ConfigInvalid("tls.cert", f"{certificate} cannot be used: {error}") from None
    return context


def _make_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _refuse_password() -> str:
    """The library would ask at the terminal."""
    raise ConfigInvalid("tls.key", "is locked with a password: give one without")
