"""Receives webhooks at http://127.0.0.1:9000, and takes only what the gateway has signed."""

import base64
import hashlib
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import jwt

GATEWAY = "http://127.0.0.1:8080"
HOST, PORT = "127.0.0.1", 9000
AUDIENCE = f"http://{HOST}:{PORT}"  # scheme, host and port under which the gateway calls us
ALGORITHMS = ["ES256", "EdDSA"]
# It fetches the keys when it meets one that it does not know, and keeps them.
KEYS = jwt.PyJWKClient(f"{GATEWAY}/.well-known/jwks.json")
SEEN: set[str] = set()  # in a database, where a repeat after a restart would hurt


def verify_signature(header: str, body: bytes) -> None:
    """The JWS over the body, detached: its middle is empty, and is the body. While keys rotate there are several."""
    payload = base64.urlsafe_b64encode(body).rstrip(b"=").decode()
    signature = header.split(",", 1)[0].strip().replace("..", f".{payload}.")
    key = KEYS.get_signing_key_from_jwt(signature)
    jwt.PyJWS().decode(signature, key.key, algorithms=ALGORITHMS)


def verify_token(header: str, body: bytes) -> None:
    """The token says who called whom, with which body, and ends after five minutes."""
    token = header.removeprefix("Bearer ")
    key = KEYS.get_signing_key_from_jwt(token)
    claims = jwt.decode(token, key.key, algorithms=ALGORITHMS, audience=AUDIENCE)
    if claims["request_body_sha256"] != hashlib.sha256(body).hexdigest():
        raise jwt.InvalidTokenError("the token is for another body")


class Receiver(BaseHTTPRequestHandler):
    """Answers at once; the work comes after."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            verify_signature(self.headers["X-Passerelle-Signature"] or "", body)
            verify_token(self.headers["Authorization"] or "", body)
        except jwt.PyJWTError as error:
            print(f"refused: {error}", flush=True)
            return self.answer(401)
        event = self.headers["X-Passerelle-Delivery"].rpartition("/")[2]
        if event not in SEEN:  # a crash of the gateway may repeat one event
            SEEN.add(event)
            print(f"verified: {body.decode()}", flush=True)
        return self.answer(204)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    print(f"listening at {AUDIENCE}", flush=True)
    try:
        HTTPServer((HOST, PORT), Receiver).serve_forever()
    except KeyboardInterrupt:
        sys.exit(0)
