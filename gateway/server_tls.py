"""The gateway's server certificate, for HTTP and gRPC, reloaded when it is renewed.

An open connection keeps the certificate it started with.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final, NamedTuple

from passerelle.core.errors import ConfigInvalid
from passerelle.core.wire.display import explain_error

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.gateway.settings.model import Settings
    from passerelle.gateway.settings.section import TlsSettings

# Forward secrecy and authenticated encryption only; TLS 1.3 has nothing else (A2A 1.0 section 7.1).
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


class KeyPair(NamedTuple):
    """A certificate chain and its key, as PEM."""

    cert: bytes
    key: bytes


class ServerTls:
    """The certificate of both servers. ``context`` is for HTTP, and stays the same object when renewed."""

    def __init__(self, settings: TlsSettings) -> None:
        """Reads the files.

        Raises:
            ConfigInvalid: a file cannot be read, or the key does not match the certificate.
        """
        self._settings = settings
        self.context: Final = _make_context()
        self.pair = self._read(self.context)

    def renew(self, settings: TlsSettings | None = None) -> bool:
        """Reads the files again, or those of other settings; returns whether their content changed.

        Raises:
            ConfigInvalid: they cannot be used; the previous certificate stays.
        """
        wanted, before = settings or self._settings, self._settings
        self._settings = wanted
        try:
            # Load into a separate context first: the serving context must never get half of a new pair.
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
            raise ConfigInvalid(
                "tls", f"{cert} and its key cannot be used: {explain_error(error)}"
            ) from None


def load_server_tls(settings: Settings) -> ServerTls | None:
    """The certificate of the settings; None without one.

    Raises:
        ConfigInvalid: see ``ServerTls``.
    """
    return ServerTls(settings.tls) if settings.tls else None


def trust_own_certificate(certificate: Path) -> ssl.SSLContext:
    """A client context for this machine: it trusts this certificate only, under any host name.

    Raises:
        ConfigInvalid: it cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # Trust the certificate itself, not its issuer.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cafile=certificate.expanduser())
    except (OSError, RuntimeError, ssl.SSLError) as error:
        raise ConfigInvalid(
            "tls.cert", f"{certificate} cannot be used: {explain_error(error)}"
        ) from None
    return context


def _make_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _refuse_password() -> str:
    """Raises ConfigInvalid; the library would ask at the terminal."""
    raise ConfigInvalid("tls.key", "is encrypted with a password: give a key without one")
