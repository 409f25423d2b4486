"""Which URLs webhooks may have, with an allow-list and without."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from passerelle.core.errors import InvalidInput
from passerelle.gateway.settings.section import WebhookSettings
from passerelle.webhooks.addresses import WebhookRules


def refused(rules: WebhookRules, url: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        rules.judge(url)
    assert caught.value.field == "url"
    return caught.value.reason


ANY = WebhookRules(())


@pytest.mark.parametrize("url", ["https://example.com/hook", "https://example.com:8443/?q=1#x"])
def test_public_https_passes_without_a_list_and_is_screened(url: str) -> None:
    address = ANY.judge(url)
    assert not address.trusted
    assert address.url.fragment == ""


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/",
        "https://10.1.2.3/",
        "https://192.168.0.1:8443/",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[fd00:ec2::254]/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://127.1/",
        "https://0177.0.0.1/",
        "https://localhost/",
        "https://LOCALHOST./",
        "https://a.localhost/",
    ],
)
def test_inside_of_a_network_is_refused_in_every_notation(url: str) -> None:
    assert "addresses are not allowed" in refused(ANY, url)
    assert "addresses are not allowed" in refused(WebhookRules(("https://*:*",)), url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.com/", "must be https"),
        ("ftp://example.com/", "absolute"),
        ("//example.com/", "absolute"),
        ("example.com", "absolute"),
        ("https://", "absolute"),
        ("https://example.com:99999/", "absolute"),
        ("https://exa mple.com/", "visible ASCII"),
        ("https://example.com/\r\nX: y", "visible ASCII"),
        ("https://exämple.com/", "visible ASCII"),
        ("https://user@example.com/", "credentials"),
        ("https://:pw@example.com/", "credentials"),
    ],
)
def test_url_other_than_plain_https_is_refused(url: str, why: str) -> None:
    assert why in refused(ANY, url)


def test_only_listed_origins_are_allowed() -> None:
    rules = WebhookRules(("https://*.example.com", "http://hooks.internal:9000"))
    assert not rules.judge("https://a.b.example.com/x").trusted
    assert rules.judge("http://hooks.internal:9000/x").trusted
    for url in (
        "https://example.com/",
        "https://notexample.com/",
        "https://a.example.com:8443/",
        "http://a.example.com/",
        "http://hooks.internal/",
        "https://hooks.internal:9000/",
        "https://other.org/",
    ):
        assert "not on the allow-list" in refused(rules, url)


def test_port_of_an_entry_may_be_any() -> None:
    rules = WebhookRules(("http://127.0.0.1:*", "http://[::1]:*"))
    assert rules.judge("http://127.0.0.1:1/").trusted
    assert rules.judge("http://127.0.0.1/").trusted
    assert rules.judge("http://[::1]:8000/").trusted
    assert "not on the allow-list" in refused(rules, "http://127.0.0.2:1/")


def test_pattern_allows_http_and_vouches_for_no_address() -> None:
    rules = WebhookRules(("http://*:*",))
    assert not rules.judge("http://example.com:9000/").trusted
    assert "loopback" in refused(rules, "http://127.0.0.1:9000/")


def test_origin_of_an_address_is_its_scheme_host_and_port() -> None:
    assert ANY.judge("https://Example.com/a?b=1").origin == "https://example.com"
    assert ANY.judge("https://example.com:8443/a").origin == "https://example.com:8443"


@pytest.mark.parametrize(
    "entry",
    ["example.com", "https://example.com/path", "ftp://x", "https://*.*.com", "https://a:b"],
)
def test_entry_that_is_no_origin_is_refused_when_the_file_is_read(entry: str) -> None:
    with pytest.raises(ValidationError):
        WebhookSettings(allow=(entry,))
    assert WebhookSettings(allow=("https://*", "http://[::1]:*")).allow
