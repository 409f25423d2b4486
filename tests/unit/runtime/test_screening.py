"""Which addresses are refused, in every notation of the same address."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from passerelle.runtime.common.address_screen import REFUSED_ERRNO, AddressRefused, AddressScreen


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("::1", "loopback"),
        ("10.0.0.1", "private"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("fd12:3456::1", "private"),
        ("fec0::1", "private"),
        ("169.254.10.10", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("100.64.0.1", "carrier-grade NAT"),
        ("100.127.255.255", "carrier-grade NAT"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("169.254.169.254", "metadata"),
        ("168.63.129.16", "metadata"),
        ("100.100.100.200", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("0.0.0.1", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("::", "unspecified"),
        ("255.255.255.255", "reserved"),
        ("198.18.0.1", "reserved"),
        ("203.0.113.7", "reserved"),
        ("2001:db8::1", "reserved"),
        ("2001:0:1::1", "reserved"),
        ("4000::1", "reserved"),
        ("", "malformed"),
        ("0x7f.1", "malformed"),
    ],
)
def test_addresses_that_are_not_public_are_refused_by_kind(address: str, kind: str) -> None:
    assert AddressScreen().judge(address) == kind


@pytest.mark.parametrize(
    "address",
    [
        "::ffff:127.0.0.1",
        "::ffff:7f00:1",
        "::127.0.0.1",
        "64:ff9b::127.0.0.1",
        "2002:7f00:1::",
        "2002:7f00:1::dead:beef",
    ],
)
def test_loopback_wrapped_in_another_form_is_loopback(address: str) -> None:
    assert AddressScreen().judge(address) == "loopback"


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "172.15.255.255",
        "172.32.0.1",
        "100.63.255.255",
        "100.128.0.1",
        "223.255.255.255",
        "2606:4700::1111",
        "::ffff:1.1.1.1",
        "64:ff9b::1.1.1.1",
    ],
)
def test_public_addresses_pass(address: str) -> None:
    assert AddressScreen().judge(address) is None


def test_allowed_network_applies_in_every_notation_and_to_nothing_else() -> None:
    screen = AddressScreen((ip_network("10.1.0.0/16"), ip_network("fd00::/64")))
    assert screen.judge("10.1.2.3") is None
    assert screen.judge("::ffff:10.1.2.3") is None
    assert screen.judge("fd00::5") is None
    assert screen.judge("10.2.0.1") == "private"
    assert screen.judge("127.0.0.1") == "loopback"


def test_refusal_names_the_kind_and_never_the_address() -> None:
    with pytest.raises(AddressRefused) as caught:
        AddressScreen().check("10.1.2.3")
    assert caught.value.errno == REFUSED_ERRNO
    assert "private addresses are not allowed" in str(caught.value)
    assert "10.1" not in str(caught.value)
