"""Certificates for one test: a certificate authority and the certificates that it issues."""

from __future__ import annotations

import ssl
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_BEGIN = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate and its key as PEM files."""

    cert: Path
    key: Path


class CertificateAuthority:
    """Issues long-lived certificates; ``root`` is the trust anchor."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        cert = (
            self._start(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.root = folder / "root.pem"
        self.root.write_bytes(cert.public_bytes(serialization.Encoding.PEM))

    def _start(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_BEGIN)
            .not_valid_after(_BEGIN + timedelta(days=36_500))
        )

    def issue(self, host: str) -> CertificateFiles:
        """A credential for a server or client of that name."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        cert = (
            self._start(name, key)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        made = CertificateFiles(self._folder / f"{host}.pem", self._folder / f"{host}.key")
        made.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        made.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return made

    def serve(self, host: str, *, ask_client: bool = False) -> ssl.SSLContext:
        """TLS settings of a server with that name; with ``ask_client`` only clients of this authority are accepted."""
        own = self.issue(host)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own.cert, own.key)
        if ask_client:
            context.load_verify_locations(self.root)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def trust(self) -> ssl.SSLContext:
        """TLS settings of a client that trusts this authority."""
        return ssl.create_default_context(cafile=str(self.root))


def weaken(context: ssl.SSLContext) -> ssl.SSLContext:
    """The same context, for obsolete TLS versions only."""
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context
