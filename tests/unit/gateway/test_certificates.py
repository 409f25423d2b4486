"""Client certificates behind a proxy: accepted from the proxy only."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from passerelle.core.credentials import Credentials
from passerelle.core.errors import Unauthenticated
from passerelle.gateway.auth.authenticator import Callers, KnownCallers
from passerelle.gateway.auth.credentials import Certificates, read_envoy
from passerelle.gateway.auth.keys import KeyRing
from passerelle.gateway.settings.callers import ProxySettings
from passerelle.runtime.common.secret import Secret
from tests.support.clients import make_client

pytestmark = pytest.mark.anyio
NGINX = ProxySettings(
    addresses=(ip_network("10.1.0.0/16"), ip_network("::1")),
    certificate_header="X-SSL-Client-S-DN",
)
ENVOY = ProxySettings(addresses=(ip_network("10.1.0.0/16"),))
CLIENTS = (
    make_client("till", None, "pay", certificate="CN=till,O=Example"),
    make_client("robot", None, "echo", certificate="spiffe://example.com/robot"),
)


def door(proxy: ProxySettings) -> KnownCallers:
    keys = KeyRing((Secret("owner"),), CLIENTS)
    return KnownCallers(Callers(keys, certificates=Certificates(proxy, CLIENTS)))


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "::1"])
async def test_identity_from_the_proxy_is_believed(address: str) -> None:
    shown = Credentials(certificate="CN=till,O=Example", address=address)
    assert (await door(NGINX).authenticate(shown)).id == "till"


@pytest.mark.parametrize("address", ["10.2.0.1", "192.0.2.1", "::2", "unix:", "", None])
async def test_same_header_from_anywhere_else_is_nothing(address: str | None) -> None:
    shown = Credentials(certificate="CN=till,O=Example", address=address)
    with pytest.raises(Unauthenticated, match="a bearer token is required"):
        await door(NGINX).authenticate(shown)


@pytest.mark.parametrize("identity", ["CN=till", "CN=till,O=Example,OU=x", "cn=till,O=Example", ""])
async def test_identity_is_compared_as_a_whole(identity: str) -> None:
    with pytest.raises(Unauthenticated):
        await door(NGINX).authenticate(Credentials(certificate=identity, address="10.1.0.1"))


async def test_wrong_token_is_not_saved_by_a_certificate() -> None:
    shown = Credentials("wrong", certificate="CN=till,O=Example", address="10.1.0.1")
    with pytest.raises(Unauthenticated):
        await door(NGINX).authenticate(shown)


async def test_header_of_envoy_is_read_by_its_parts() -> None:
    header = "By=spiffe://example.com/us;Hash=ab12;URI=spiffe://example.com/robot"
    shown = Credentials(certificate=header, address="10.1.0.1")
    assert (await door(ENVOY).authenticate(shown)).id == "robot"


@pytest.mark.parametrize(
    ("header", "identities"),
    [
        ('Hash=1;Subject="CN=till,O=Example";URI=', ("CN=till,O=Example",)),
        ('Subject="CN=\\"x\\",O=y"', ('CN="x",O=y',)),
        ("URI=spiffe%3A%2F%2Fexample.com%2Frobot", ("spiffe://example.com/robot",)),
        ("URI=spiffe://evil,By=b;URI=spiffe://good", ("spiffe://good",)),
        ("URI=spiffe://evil,By=b", ()),
        ("URI=a;URI=b", ("a", "b")),
        ("", ()),
        ("garbage", ()),
        ('Subject="CN=till', ()),
        ("URI=spiffe://good,garbage", ()),
    ],
)
def test_last_element_counts_and_half_read_ones_do_not(
    header: str, identities: tuple[str, ...]
) -> None:
    assert read_envoy(header) == identities
