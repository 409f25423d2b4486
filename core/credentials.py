"""What a caller shows of itself, as an edge read it and before anybody believed it."""

from __future__ import annotations

from dataclasses import field

from passerelle.core.record import value


@value
class Credentials:
    """Everything an authenticator may look at; secrets stay out of ``repr``.

    ``certificate`` is the identity that a proxy wrote into its header after it had checked the caller's certificate.
    Anybody can write that header: it means something only beside ``address``, the other end of the socket itself
    (never what a forwarding header says). ``device`` is a name the caller chose, and proves nothing.
    ``origin`` is that of the web page, where it is one.
    """

    bearer: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    certificate: str | None = None
    address: str | None = None
    device: str | None = None
    origin: str | None = None
