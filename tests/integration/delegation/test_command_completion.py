"""A command runs to its end also if its caller is cancelled; a waiting caller gets the result (I6)."""

from __future__ import annotations

import asyncio
import gc
from weakref import ReferenceType, ref

import pytest

from passerelle.core.commands import SubmitTurn
from passerelle.core.errors import NotFound
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs import active_runs as commands
from passerelle.delegation.runs.active_runs import ActiveRuns
from tests.support.harness import ADA, Harness, task_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class Work:
    """A command that ends when the test allows it, with a result or a failure."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.has_begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.has_ended = False
        self._failure = failure

    async def run(self) -> str:
        self.has_begun.set()
        await self.may_end.wait()
        self.has_ended = True
        if self._failure is not None:
            raise self._failure
        return "done"


async def abandon(harness: Harness, work: Work) -> None:
    """A caller that is cancelled after its command has begun."""

    async def wait() -> str:
        return await harness.parts.dispatch.commands.see_through(work.run())

    caller = asyncio.create_task(wait())
    await work.has_begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_caller_gets_the_result_of_its_command(harness: Harness) -> None:
    dispatch = harness.parts.dispatch
    done, failed = Work(), Work(NotFound("task", "x"))
    done.may_end.set()
    assert await dispatch.commands.see_through(done.run()) == "done"
    failed.may_end.set()
    with pytest.raises(NotFound):
        await dispatch.commands.see_through(failed.run())


class FailingCallback:
    """A result callback that raises."""

    def on_result(self, result: object) -> None:
        raise KeyError(result)

    def on_failure(self, failure: BaseException) -> None:
        raise failure


@pytest.mark.requirement("I6")
async def test_run_continues_when_the_result_callback_raises(harness: Harness) -> None:
    message: JsonObject = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "echo hi"}]}
    harness.service.begin(ADA, SubmitTurn("echo", message, "a2a", "unary"), FailingCallback())

    async def has_ended() -> bool:
        return bool(harness.peer.messages) and not harness.parts.dispatch.runs.list_tasks()

    await wait_until(has_ended, 5, "the run has gone on to its end")


@pytest.mark.requirement("I6")
async def test_command_ends_after_its_caller_was_cancelled(harness: Harness) -> None:
    work = Work()
    await abandon(harness, work)
    assert not work.has_ended
    work.may_end.set()
    await wait_until(lambda: work.has_ended, 5, "the command goes on")


async def fail_abandoned(harness: Harness) -> ReferenceType[Work]:
    """Runs a command that fails after its caller was cancelled; returns a reference that dies with its task."""
    work = Work(NotFound("task", "x"))
    await abandon(harness, work)
    work.may_end.set()
    return ref(work)


async def test_failure_of_an_abandoned_command_is_not_reported_by_the_event_loop(
    harness: Harness,
) -> None:
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, fault: faults.append(fault))
    work = await fail_abandoned(harness)

    def is_gone() -> bool:
        gc.collect()
        return work() is None

    await wait_until(is_gone, 5, "the command has failed")
    assert faults == []


async def test_shutdown_cancels_the_wait_for_a_slow_command(harness: Harness) -> None:
    waiting = harness.parts.dispatch.commands.see_through(Work().run())
    await harness.parts.dispatch.drain()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await waiting


@pytest.mark.requirement("I6")
async def test_message_is_sent_though_its_caller_was_cancelled_during_the_append(
    harness: Harness,
) -> None:
    waiting = asyncio.ensure_future(
        harness.service.execute(
            ADA, SubmitTurn("echo", harness.message("hello"), "a2a", "unary"), None
        )
    )
    await asyncio.sleep(0)
    assert harness.peer.count("SendMessage") == 0
    waiting.cancel()
    runs = harness.parts.dispatch.runs
    await wait_until(runs.list_tasks, 5, "the run is driven")
    (task_id,) = runs.list_tasks()
    driver = runs.find(task_id)
    assert driver is not None
    harness.remember(driver.run.record.session_id)
    await wait_until(lambda: not runs.list_tasks(), 5, "the run has ended")
    assert driver.run.has_ended()
    assert harness.peer.count("SendMessage") == 1


async def test_shutdown_waits_for_the_append_of_a_message_and_not_for_its_run(
    harness: Harness,
) -> None:
    harness.peer.hold()
    dispatch = harness.parts.dispatch
    submitting = asyncio.create_task(harness.send("hello"))
    await asyncio.sleep(0)
    await dispatch.drain()
    assert (await harness.record(await submitting)).attempts
    assert dispatch.runs.list_tasks() == []
    harness.peer.release_all()


async def test_run_is_dropped_by_the_instance_that_accepted_its_command(harness: Harness) -> None:
    harness.peer.hold()
    accepted = await harness.send("hello")
    dispatch = harness.parts.dispatch
    driver = dispatch.find(accepted.task_id)
    dispatch.drop(task_of(accepted).shard)
    await wait_until(lambda: not dispatch.runs.list_tasks(), 5, "the run has no driver")
    assert driver is not None
    assert driver.run.moved
    harness.peer.release_all()


async def test_command_cancelled_by_shutdown_before_its_first_step_cancels_its_caller(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_LAST_S", 0.01)
    dispatch, slow, begun = harness.parts.dispatch, Work(), list[str]()
    waiting = [dispatch.commands.see_through(slow.run())]
    await slow.has_begun.wait()

    async def begin() -> tuple[str, None]:
        begun.append("late")
        return "done", None

    refuse = ActiveRuns.refuse

    def refuse_and_open_late(runs: ActiveRuns) -> None:
        refuse(runs)
        waiting.append(dispatch.commands.open_run(begin()))

    monkeypatch.setattr(ActiveRuns, "refuse", refuse_and_open_late)
    await dispatch.commands.drain()
    assert [one.cancelled() for one in waiting] == [True, True]
    assert begun == []
