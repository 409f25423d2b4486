"""The example's receivers: they accept only deliveries that the gateway has signed for them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx

from tests.examples.stage import Example, open_example

COMPLETED = r"^verified: .*TASK_STATE_COMPLETED"


def catch_delivery(port: int) -> tuple[dict[str, str], bytes]:
    """One delivery to a port: its headers and body. It is answered with 503, so that it is repeated."""
    caught: list[tuple[dict[str, str], bytes]] = []

    class Catcher(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            caught.append((dict(self.headers), body))
            self.send_response(503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Logs nothing."""

    with HTTPServer(("127.0.0.1", port), Catcher) as server:
        server.timeout = 30
        server.handle_request()
    return caught[0]


def post(url: str, headers: Mapping[str, str], body: bytes) -> int:
    """The status of a receiver's answer."""
    return httpx.post(f"{url}/hook", headers=headers, content=body, trust_env=False).status_code


def catch_next(example: Example, receiver: str, port: str) -> tuple[dict[str, str], bytes]:
    """A genuine delivery that the receiver has not seen yet."""
    example.stop(receiver)
    caught: list[tuple[dict[str, str], bytes]] = []
    catching = threading.Thread(target=lambda: caught.append(catch_delivery(example.ports[port])))
    catching.start()
    example.run(f"ask m-{receiver} http://127.0.0.1:{example.ports[port]}/hook")
    catching.join(30)
    return caught[0]


def test_receivers_accept_only_deliveries_signed_for_them(tmp_path: Path) -> None:
    with open_example("webhook-receiver", tmp_path) as example:
        example.play()
        for receiver, port, other in (("python", "9000", "9100"), ("node", "9100", "9000")):
            example.await_said(receiver, COMPLETED)
            headers, body = catch_next(example, receiver, port)
            example.restart(receiver)
            url = example.url(port)
            without = {name: value for name, value in headers.items() if name != "Authorization"}
            forged = headers | {
                "X-Passerelle-Signature": headers["X-Passerelle-Signature"][:-8] + "AAAAAAAA"
            }
            assert post(url, headers, body.replace(b"TASK_STATE", b"TASK_STALE")) == 401
            assert post(url, without, body) == 401
            assert post(url, forged, body) == 401
            assert post(example.url(other), headers, body) == 401, "it is for another receiver"
            assert post(url, headers, body) == 204
            assert post(url, headers, body) == 204
            event = headers["X-Passerelle-Delivery"].rpartition("/")[2]
            assert event
            said = example.said(receiver)
            assert said.count(f"verified: {body.decode()}") == 1, "a repeat has no effect"
