"""Connection slots: unauthenticated connections are closed first, then idle ones, and never a busy one."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from passerelle.gateway.connection_settings import make_connections
from passerelle.gateway.connections import (
    SLOT,
    ConnectionTable,
    find_most,
    note_authenticated,
)
from passerelle.gateway.proxies import Proxies
from passerelle.gateway.settings.callers import ConnectionSettings
from passerelle.gateway.settings.model import ChannelSettings, GrpcSettings, Settings
from passerelle.runtime.common.descriptors import Descriptors

HERE, THERE = "192.0.2.1", "192.0.2.2"


@dataclass(eq=False)
class Link:
    """A connection whose state the test sets."""

    is_idle: bool = True
    is_open: bool = True

    def evict(self) -> None:
        self.is_open = False


def test_oldest_stranger_makes_room_before_any_caller() -> None:
    table = ConnectionTable(3)
    caller, first, second, new = (Link() for _ in range(4))
    slot = table.admit(caller, HERE)
    assert slot is not None
    slot.authenticate()
    for link in (first, second, new):
        assert table.admit(link, HERE)
    assert (caller.is_open, first.is_open, second.is_open) == (True, False, True)
    assert len(table) == 3
    assert table.counts == {"evicted": 1}


def test_a_busy_unauthenticated_connection_is_closed_too() -> None:
    table, busy = ConnectionTable(1), Link(is_idle=False)
    assert table.admit(busy, HERE)
    assert table.admit(Link(), HERE)
    assert not busy.is_open


def test_callers_that_are_idle_make_room_and_no_others() -> None:
    table = ConnectionTable(2)
    busy, idle = Link(is_idle=False), Link()
    for link in (busy, idle):
        slot = table.admit(link, HERE)
        assert slot is not None
        slot.authenticate()
    third = Link(is_idle=False)
    slot = table.admit(third, HERE)
    assert slot is not None
    assert (busy.is_open, idle.is_open) == (True, False)
    slot.authenticate()
    assert table.admit(Link(), HERE) is None
    assert (busy.is_open, third.is_open, len(table)) == (True, True, 2)
    slot.release()
    slot.release()
    assert len(table) == 1
    assert table.admit(Link(), HERE)


def test_socket_that_was_a_request_is_no_longer_idle() -> None:
    table = ConnectionTable(1)
    request, socket = Link(), Link(is_idle=False)
    slot = table.admit(request, HERE)
    assert slot is not None
    table.replace_connection(slot, socket)
    slot.authenticate()
    assert table.admit(Link(), THERE) is None
    assert socket.is_open


def test_one_address_fills_its_part_and_makes_room_for_itself() -> None:
    table = ConnectionTable(10, 2)
    links = [Link() for _ in range(4)]
    other = Link()
    assert table.admit(other, THERE)
    assert all(table.admit(link, HERE) for link in links)
    assert [link.is_open for link in links] == [False, False, True, True]
    assert other.is_open
    for _ in range(5):
        assert table.admit(Link(), None)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.1.2.3"])
def test_proxies_and_this_machine_have_no_part(address: str) -> None:
    table = ConnectionTable(10, 1, Proxies([ip_network("10.0.0.0/8")]))
    links = [Link() for _ in range(5)]
    assert all(table.admit(link, address) for link in links)
    assert all(link.is_open for link in links)


def test_connection_of_a_proxy_counts_for_whose_request_is_under_way_on_it() -> None:
    table = ConnectionTable(10, 2, Proxies([ip_network("10.0.0.0/8")]))
    links = [Link(is_idle=False) for _ in range(4)]
    slots = [slot for link in links if (slot := table.admit(link, "10.1.1.1"))]
    for slot in slots[:2]:
        assert slot.begin(HERE)
        slot.authenticate()
    assert not slots[2].begin(HERE)
    assert slots[2].begin(THERE)
    assert slots[0].count_for(None)
    assert slots[3].begin(HERE)
    slots[3].release()
    slots[3].count_for(HERE)
    assert slots[0].begin(HERE), "what has ended counts for nobody"
    assert all(link.is_open for link in links)


def test_request_of_a_stranger_behind_a_proxy_makes_room_for_its_address() -> None:
    table = ConnectionTable(10, 1, Proxies([ip_network("10.0.0.0/8")]))
    first, second = Link(is_idle=False), Link(is_idle=False)
    one, other = table.admit(first, "10.1.1.1"), table.admit(second, "10.1.1.1")
    assert one is not None
    assert other is not None
    one.authenticate()
    assert one.begin(HERE), "who was served before on it says nothing of this one"
    assert other.begin(HERE)
    assert (first.is_open, second.is_open) == (False, True)


def test_authentication_is_noted_for_its_connection_only() -> None:
    table = ConnectionTable(2)
    first, second = table.admit(Link(), HERE), table.admit(Link(), HERE)
    assert first is not None
    assert second is not None
    note_authenticated()
    token = SLOT.set(second)
    try:
        note_authenticated()
    finally:
        SLOT.reset(token)
    assert (first.is_authenticated, second.is_authenticated) == (False, True)


def test_a_full_table_is_logged_once_with_the_newcomer() -> None:
    table = ConnectionTable(1)
    with capture_logs() as logs:
        for _ in range(5):
            table.admit(Link(), HERE)
    (said,) = logs
    assert (said["event"], said["most"], said["newcomer"]) == ("server.connections_full", 1, HERE)


@pytest.mark.parametrize("limit", [65, 256, 1_024, 4_096, 65_536, 1_048_576])
def test_room_is_kept_for_what_is_opened_here(limit: int) -> None:
    assert 1 <= find_most(limit) <= limit - 64
    assert find_most(limit) >= limit - max(4_096, limit // 4, 64)


def test_ports_share_the_connection_limit(tmp_path: Path) -> None:
    def fill(settings: Settings) -> tuple[int, int, int]:
        made = make_connections(settings, 1_024)
        links = [Link(is_idle=False) for _ in range(2_000)]
        for link in links:
            slot = made.admission.table.admit(link, None)
            if slot is not None:
                slot.authenticate()
        return len(made.admission.table), made.grpc or 0, made.channels or 0

    plain = Settings(data_dir=tmp_path)
    assert fill(plain) == (768, 0, 0)
    both = Settings(data_dir=tmp_path, grpc=GrpcSettings(port=0), channels=ChannelSettings(port=0))
    assert fill(both) == (144, 192, 432)
    fewer = Settings(data_dir=tmp_path, connections=ConnectionSettings(most=5, per_address=1))
    assert fill(fewer) == (5, 0, 0)


def test_descriptors_that_run_out_are_logged_once_and_so_is_their_return() -> None:
    least = os.open(os.devnull, os.O_RDONLY)
    os.close(least)
    limit: int | None = least + 20
    descriptors = Descriptors(lambda: limit)
    with capture_logs() as logs:
        assert not descriptors.are_out()
        descriptors.watch()
        limit = least + 4
        assert descriptors.are_out()
        descriptors.watch()
        descriptors.watch()
        limit = None
        descriptors.watch()
    assert [one["event"] for one in logs] == [
        "server.out_of_descriptors",
        "server.descriptors_again",
    ]


def test_system_that_gives_no_descriptor_is_out_of_them() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = os.open(os.devnull, os.O_RDONLY)
    os.close(least)
    resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard))
    try:
        are_out = Descriptors(lambda: 10**6).are_out()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert are_out
