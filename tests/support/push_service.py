"""A push service and its browser in a separate process: receives, decrypts and keeps messages.

It checks the same as a real one: the headers of RFC 8030, the signature and audience of the VAPID token (RFC 8292),
and that the message decrypts with the keys of the subscription (RFC 8291, RFC 8188), with independent code.

Run as ``python -m tests.support.push_service``: prints its port and, as JSON, its subscription.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDH,
    SECP256R1,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

_SALT_BYTES: Final = 16
_POINT_BYTES: Final = 65


def encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Browser:
    """The keys of one subscription."""

    def __init__(self) -> None:
        self.private = generate_private_key(SECP256R1())
        self.auth = os.urandom(_SALT_BYTES)
        self.public = self.private.public_key().public_bytes(
            Encoding.X962, PublicFormat.UncompressedPoint
        )

    def decrypt(self, body: bytes) -> bytes:
        """RFC 8188 section 2 with the key derivation of RFC 8291 section 3.3."""
        salt, length = body[:_SALT_BYTES], body[20]
        sender, cipher = body[21 : 21 + length], body[21 + length :]
        assert length == _POINT_BYTES
        point = EllipticCurvePublicKey.from_encoded_point(SECP256R1(), sender)
        shared = self.private.exchange(ECDH(), point)
        info = b"WebPush: info\0" + self.public + sender
        secret = HKDF(SHA256(), 32, self.auth, info).derive(shared)
        key = HKDF(SHA256(), 16, salt, b"Content-Encoding: aes128gcm\0").derive(secret)
        nonce = HKDF(SHA256(), 12, salt, b"Content-Encoding: nonce\0").derive(secret)
        plain = AESGCM(key).decrypt(nonce, cipher, None)
        padded = plain.rstrip(b"\0")
        assert padded.endswith(b"\x02"), "the last record ends with its mark"
        return padded[:-1]


class PushHandler(BaseHTTPRequestHandler):
    """``POST /push/<name>`` receives a message; ``GET /seen`` lists all; ``POST /gone`` ends the subscription."""

    browser: Browser
    seen: list[dict[str, object]]
    status = 201

    def do_GET(self) -> None:
        self._answer(200, json.dumps(self.seen).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path.startswith("/answer/"):
            type(self).status = int(self.path.rpartition("/")[2])
            self._answer(200, b"")
            return
        if self.status == 201:
            self.seen.append(self._read(body))
        self._answer(self.status, b"")

    def _read(self, body: bytes) -> dict[str, object]:
        scheme, _, rest = self.headers["Authorization"].partition(" ")
        parts = dict(part.strip().split("=", 1) for part in rest.split(","))
        key = EllipticCurvePublicKey.from_encoded_point(SECP256R1(), decode(parts["k"]))
        origin = f"http://{self.headers['Host']}"
        claims = jwt.decode(parts["t"], key, algorithms=["ES256"], audience=origin)
        return {
            "scheme": scheme,
            "key": parts["k"],
            "contact": claims["sub"],
            "topic": self.headers["Topic"],
            "ttl": int(self.headers["TTL"]),
            "urgency": self.headers["Urgency"],
            "encoding": self.headers["Content-Encoding"],
            "size": len(body),
            "message": json.loads(self.browser.decrypt(body)),
        }

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the library's
        """Logs nothing."""


def main() -> None:
    PushHandler.browser, PushHandler.seen = Browser(), []
    server = ThreadingHTTPServer(("127.0.0.1", 0), PushHandler)
    origin = f"http://127.0.0.1:{server.server_port}"
    made = {
        "origin": origin,
        "endpoint": f"{origin}/push/1",
        "p256dh": encode(PushHandler.browser.public),
        "auth": encode(PushHandler.browser.auth),
    }
    sys.stdout.write(json.dumps(made) + "\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
