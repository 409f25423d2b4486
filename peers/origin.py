"""Origins of URLs, as credentials and connections are kept apart by."""

from __future__ import annotations

from yarl import URL


def origin_of(url: str) -> str | None:
    """``scheme://host[:port]`` without a default port; None for what is no plain http(s) URL."""
    try:
        parsed = URL(url)
        if parsed.scheme not in {"http", "https"} or not parsed.host:
            return None
        if parsed.raw_user is not None or parsed.raw_password is not None:
            return None
        # The resolver would raise for a name with an empty or overlong label, long after the check.
        parsed.host.encode("idna")
        return str(parsed.origin())
    except ValueError:
        return None


def move(url: str, origin: str) -> str:
    """The same URL at the host of another origin, whose scheme and port it has."""
    host = URL(origin).host
    return url if host is None else str(URL(url, encoded=True).with_host(host))


def host_of(url: str) -> str:
    """The host of an http or https URL; empty for what is none."""
    origin = origin_of(url)
    return (URL(origin).host or "") if origin is not None else ""
