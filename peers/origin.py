"""Origins of URLs, which separate credentials and connections."""

from __future__ import annotations

from yarl import URL


def origin_of(url: str) -> str | None:
    """``scheme://host[:port]`` without a default port; None for anything but a plain http(s) URL."""
    try:
        parsed = URL(url)
        if parsed.scheme not in {"http", "https"} or not parsed.host:
            return None
        if parsed.raw_user is not None or parsed.raw_password is not None:
            return None
        # The resolver would raise for an empty or overlong label, long after this check.
        parsed.host.encode("idna")
        return str(parsed.origin())
    except ValueError:
        return None


def move(url: str, origin: str) -> str:
    """The same URL with the host of another origin that has the same scheme and port."""
    host = URL(origin).host
    return url if host is None else str(URL(url, encoded=True).with_host(host))


def host_of(url: str) -> str:
    """The host of an http or https URL; empty for anything else."""
    origin = origin_of(url)
    return (URL(origin).host or "") if origin is not None else ""
