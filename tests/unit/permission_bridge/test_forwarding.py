"""What is recorded when a question is sent to devices."""

import pytest

from passerelle.core.approval.machine import evolve, folds_action
from passerelle.core.payloads.approval import ChannelPermissionForwarded
from passerelle.permission_bridge.delivery_record import DeliveryTarget, record_forwarding
from tests.support.approvals import Stream


@pytest.mark.requirement("CHN-6", "EXT-8")
def test_each_connected_device_gets_a_fact_of_its_own() -> None:
    record = Stream().open()
    facts = record_forwarding(
        record, [DeliveryTarget("chan-1"), DeliveryTarget("chan-2", "failed")], attempt=2
    )
    told = [fact.payload for fact in facts]
    assert told == [
        ChannelPermissionForwarded(
            "ws", "queued", 2, "payments", "session", channel_scoped=False, channel_id="chan-1"
        ),
        ChannelPermissionForwarded(
            "ws", "failed", 2, "payments", "session", channel_scoped=False, channel_id="chan-2"
        ),
    ]
    assert {fact.scope.action_id for fact in facts} == {record.request.action_id}


@pytest.mark.requirement("CHN-6")
def test_forwarding_without_a_device_is_recorded() -> None:
    [fact] = record_forwarding(Stream().open(), [])
    assert isinstance(fact.payload, ChannelPermissionForwarded)
    assert (fact.payload.transport, fact.payload.outcome) == ("none", "no_device")
    assert fact.payload.channel_id is None


@pytest.mark.requirement("I6")
def test_forwarding_decides_nothing() -> None:
    stream = Stream()
    record = stream.open()
    for fact in record_forwarding(record, []):
        event = stream.push(fact)
        assert not folds_action(event)
        assert evolve(record, event) is record
