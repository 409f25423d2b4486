"""Which network addresses the gateway may connect to for a URL that its operator did not write.

A webhook, a key set, an address on a foreign card: the author of such a URL could point it at our internal network. A
name is resolved once, each address is checked right before its socket is opened, and exactly this address is connected
to, with the name kept for TLS and ``Host``. So a name that resolves differently between check and connection gains
nothing.

Pure: ``peers.sessions`` connects. The operator configures the exceptions.
"""

from __future__ import annotations

import errno
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from ipaddress import IPv4Network

    Address: TypeAlias = IPv4Address | IPv6Address
    Network: TypeAlias = IPv4Network | IPv6Network

REFUSED_ERRNO: Final = errno.EACCES

# The kinds of the IANA special-purpose registries. The standard library has such a list too, but it
# changed between patch releases of Python, and it treats cloud metadata addresses as public.
_REFUSED: Final = tuple(
    (kind, tuple(ip_network(network) for network in networks.split()))
    for kind, networks in (
        (
            "metadata",
            # Listed first for the name "metadata": some are also link-local or private, and Azure's looks public.
            "169.254.169.254/32 169.254.170.2/32 168.63.129.16/32 100.100.100.200/32 192.0.0.192/32",
        ),
        ("metadata", "fd00:ec2::254/128 fd20:ce::254/128"),
        ("loopback", "127.0.0.0/8 ::1/128"),
        ("private", "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10"),
        ("link-local", "169.254.0.0/16 fe80::/10"),
        ("carrier-grade NAT", "100.64.0.0/10"),
        ("multicast", "224.0.0.0/4 ff00::/8"),
        ("unspecified", "0.0.0.0/8 ::/128"),
        (
            "reserved",
            "192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4",
        ),
        ("reserved", "2001::/23 2001:db8::/32 3fff::/20"),
    )
)
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_UNSPECIFIED_OR_LOOPBACK: Final = IPv6Network("::/127")
# Ways to write an IPv4 address as an IPv6 one, with the bits that follow it.
_CARRIERS: Final = (
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("::/96"), 0),
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("2002::/16"), 80),
)


class AddressRefused(OSError):
    """The address may not be connected to. The text names its kind, never the address: callers may read it."""

    def __init__(self, kind: str) -> None:
        super().__init__(REFUSED_ERRNO, f"{kind} addresses are not allowed")


@frozen
class AddressScreen:
    """Allows every public address, and the networks in ``allowed``."""

    allowed: tuple[Network, ...] = ()

    def judge(self, text: str) -> str | None:
        """The kind of the address ``text`` if it is refused; None if it may be connected to."""
        try:
            address = ip_address(text)
        except ValueError:
            return "malformed"
        carried = _unwrap(address)
        if any(one in network for network in self.allowed for one in (address, carried)):
            return None
        return _find_kind(carried)

    def check(self, text: str) -> None:
        """Returns if an address is allowed.

        Raises:
            AddressRefused: it is of a refused kind.
        """
        kind = self.judge(text)
        if kind is not None:
            raise AddressRefused(kind)


def _find_kind(address: Address) -> str | None:
    for kind, networks in _REFUSED:
        if any(address in network for network in networks):
            return kind
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return "reserved"
    return None


def _unwrap(address: Address) -> Address:
    """The IPv4 address embedded in an IPv6 one, to which packets finally go; else the address itself."""
    if isinstance(address, IPv4Address) or address in _UNSPECIFIED_OR_LOOPBACK:
        return address
    for network, trailing_bits in _CARRIERS:
        if address in network:
            return IPv4Address(int(address) >> trailing_bits & 0xFFFF_FFFF)
    return address
