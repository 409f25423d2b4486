"""Names of devices and tabs: whatever characters they have, each pair has a name of its own."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from passerelle.channels.link_record import join_tab, split_tab

NAMES = st.text(alphabet="a%#@2345", max_size=6)
TABS = st.none() | NAMES


@given(NAMES, TABS)
@example("a#b", None)
@example("a", "b")
@example("a%23b", "")
def test_each_device_with_its_tab_has_a_name_of_its_own(device: str, tab: str | None) -> None:
    assert split_tab(join_tab(device, tab)) == (device, tab)


@given(NAMES, TABS)
def test_separators_in_a_device_name_are_set_only_by_the_gateway(
    device: str, tab: str | None
) -> None:
    name = join_tab(device, tab)
    assert (name.count("#"), name.count("@")) == (0 if tab is None else 1, 0)


def test_a_plain_name_is_stored_as_it_is() -> None:
    assert join_tab("Ada's phone", "left") == "Ada's phone#left"
