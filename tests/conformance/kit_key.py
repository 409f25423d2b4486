# ruff: noqa: ANN401  what both libraries hand through is their own business
"""A pytest plugin for the official kit, which cannot authenticate: adds a key to every call.

It is loaded in the environment of the kit, which contains no module of this project. The key is in ``KIT_KEY``.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

import grpc
import httpx

_BEARER: Final = f"Bearer {os.environ['KIT_KEY']}"
_HEADER: Final = "authorization"


class _Details(NamedTuple):
    """The details of a call that gRPC reads; the interceptor has to copy all of them."""

    method: str
    timeout: float | None
    metadata: list[tuple[str, str]]
    credentials: object
    wait_for_ready: bool | None
    compression: object


class _ShowKey(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        return continuation(_add_key(client_call_details), request)

    def intercept_unary_stream(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        return continuation(_add_key(client_call_details), request)


def _add_key(details: Any) -> _Details:
    metadata = [*(details.metadata or ()), (_HEADER, _BEARER)]
    return _Details(
        details.method,
        details.timeout,
        metadata,
        details.credentials,
        details.wait_for_ready,
        details.compression,
    )


def pytest_configure() -> None:
    """Wraps the kit's client functions."""
    build, open_channel = httpx.Client.build_request, grpc.insecure_channel

    def build_with_key(client: httpx.Client, *args: Any, **named: Any) -> httpx.Request:
        request = build(client, *args, **named)
        request.headers.setdefault(_HEADER, _BEARER)
        return request

    def open_with_key(*args: Any, **named: Any) -> Any:
        return grpc.intercept_channel(open_channel(*args, **named), _ShowKey())

    setattr(httpx.Client, "build_request", build_with_key)  # noqa: B010  typed as a method
    setattr(grpc, "insecure_channel", open_with_key)  # noqa: B010  typed as a function
