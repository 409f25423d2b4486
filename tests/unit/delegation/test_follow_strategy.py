"""Which follow strategy comes next, and when (A2A-6)."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from passerelle.delegation.runs.follow_strategy import FollowStrategy, PollThrottle, Timeouts

pytestmark = pytest.mark.requirement("A2A-6")


def ladder() -> FollowStrategy:
    return FollowStrategy(Timeouts(poll_s=1, poll_max_s=30, parked_poll_s=2, parked_poll_max_s=60))


def test_first_try_is_a_subscription_unless_the_task_waits() -> None:
    assert ladder().subscribes(parked=False)
    assert not ladder().subscribes(parked=True)


def test_peer_without_subscriptions_is_asked() -> None:
    run = ladder()
    run.can_subscribe = False
    assert not run.subscribes(parked=False)


def test_subscription_that_brought_news_is_tried_again_at_once() -> None:
    run = ladder()
    run.note_subscription(brought_news=True)
    assert run.subscribes(parked=False)


def test_subscription_that_brought_nothing_is_left_for_a_while_and_longer_each_time() -> None:
    run = ladder()
    waits: list[int] = []
    for _ in range(3):
        run.note_subscription(brought_news=False)
        looks = 0
        while not run.subscribes(parked=False):
            run.note_look(reached=True)
            looks += 1
        waits.append(looks)
    assert waits == [4, 8, 12]


def test_peer_that_is_back_is_subscribed_to_at_once() -> None:
    run = ladder()
    run.note_subscription(brought_news=False)
    run.note_look(reached=False)
    assert not run.subscribes(parked=False)
    run.note_look(reached=True)
    assert run.subscribes(parked=False)


def test_pauses_grow_to_their_limit_and_are_reset_by_any_change() -> None:
    run = ladder()
    pauses = [run.rest(0.5, changed=False, parked=False) for _ in range(7)]
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert run.rest(0.5, changed=True, parked=False) == 1
    assert run.rest(0.5, changed=False, parked=False) == 2
    run.reset()
    assert run.rest(0.5, changed=False, parked=False) == 1


def test_task_that_waits_is_asked_more_seldom() -> None:
    run = ladder()
    assert [run.rest(0.5, changed=False, parked=True) for _ in range(6)] == [2, 4, 8, 16, 32, 60]


def test_task_that_waits_for_a_login_is_asked_every_few_seconds() -> None:
    run = ladder()
    pauses = [run.rest(0.5, changed=False, parked=True, at_login=True) for _ in range(4)]
    assert pauses == [2, 4, 4, 4]
    assert run.rest(0.5, changed=False, parked=True, at_login=True, least_s=100) == 60, "under load"
    assert [run.rest(0.5, changed=False, parked=True) for _ in range(2)] == [8, 16], "later"
    seldom = FollowStrategy(Timeouts(parked_poll_s=30, parked_poll_max_s=60))
    assert [seldom.rest(0.5, changed=False, parked=True, at_login=True) for _ in range(2)] == [
        30,
        30,
    ]


def test_rest_leaves_others_their_turn_but_does_not_grow_beyond_its_limit() -> None:
    run, crowd = ladder(), PollThrottle()
    with ExitStack() as others:
        for _ in range(500):
            others.enter_context(crowd.rest())
        assert crowd.pause_s == 5
        assert run.rest(0.5, changed=True, parked=False, least_s=crowd.pause_s) == 5
        assert run.rest(0.5, changed=False, parked=False, least_s=100) == 30
    assert crowd.pause_s == 0
    assert run.rest(0.5, changed=False, parked=False, least_s=crowd.pause_s) == 4, "its own rest"


def test_chance_spreads_the_pauses_of_runs_that_began_together() -> None:
    assert ladder().rest(0.0, changed=False, parked=False) == 0.75
    assert ladder().rest(1.0, changed=False, parked=False) == 1.25


def test_rung_below_is_push_where_the_peer_calls_back() -> None:
    called = ladder()
    called.calls_back = True
    assert [one.below for one in (ladder(), called)] == ["polling", "push"]
