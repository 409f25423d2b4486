"""An artifact refined in its context: each task adds a version of it (LT-17, SNAP-7)."""

from __future__ import annotations

from typing import cast

import anyio
import pytest

from passerelle.core.commands import GetTaskModel, GetThread, TurnAccepted
from passerelle.core.session.thread import KEPT_NAMES
from passerelle.core.task.record import ArtifactRef
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.support.harness import ADA, Harness
from tests.support.scripted_tasks import Turn, TurnScript
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def draw(picture: str, name: str = "sailboat") -> TurnScript:
    """An agent that creates one picture, with a new artifact id."""

    async def work(turn: Turn) -> None:
        task = await turn.open()
        task.artifact([{"text": picture}], artifact_id=f"id of {picture}", name=name)
        await turn.status("COMPLETED")

    return work


async def refine(
    harness: Harness, picture: str, before: TurnAccepted | None = None
) -> TurnAccepted:
    """Sends another turn in the context that refers to the previous task."""
    harness.peer.next(draw(picture))
    if before is None:
        return (await harness.talk(f"draw a {picture}"))[0]
    message = harness.message(f"make it a {picture}")
    message["referenceTaskIds"] = [before.facade]
    accepted = await harness.send("", message=message, context_id=before.context_id)
    await harness.await_answer(accepted)
    return accepted


async def artifact_of(harness: Harness, accepted: TurnAccepted) -> ArtifactRef:
    (artifact,) = (await harness.record(accepted)).artifacts
    return artifact


@pytest.mark.requirement("LT-17", "EVC-14", "SNAP-7")
async def test_refined_artifact_is_a_new_version_and_earlier_ones_stay_readable(
    harness: Harness,
) -> None:
    tasks = [await refine(harness, "sailboat in blue")]
    tasks.append(await refine(harness, "sailboat in red", tasks[-1]))
    await harness.restart()
    tasks.append(await refine(harness, "sailboat in green", tasks[-1]))
    made = [await artifact_of(harness, one) for one in tasks]
    assert [one.version for one in made] == [1, 2, 3]
    assert [one.replaces for one in made] == [None, made[0].artifact_id, made[1].artifact_id]
    assert len({one.artifact_id for one in made}) == 3
    thread = await harness.service.read(ADA, GetThread(tasks[0].thread_id))
    (chain,) = cast("list[JsonObject]", thread["artifacts"])
    lines = cast("list[JsonObject]", chain["versions"])
    assert (chain["name"], chain["latest"]) == ("sailboat", made[2].artifact_id)
    assert [(one["version"], one["taskId"]) for one in lines] == [
        (place, accepted.facade) for place, accepted in enumerate(tasks, start=1)
    ]
    assert "sailboat in blue" in str((await harness.read(tasks[0]))["artifacts"])
    model = await harness.service.read(ADA, GetTaskModel(tasks[1].facade, "artifacts"))
    (shown,) = cast("list[JsonObject]", model["artifacts"])
    assert shown["replaces"] == made[0].artifact_id
    assert "versions" not in cast("JsonObject", shown["marks"])


async def test_versions_are_counted_across_tasks(harness: Harness) -> None:
    async def work(turn: Turn) -> None:
        task = await turn.open()
        for text in ("a draft", "a better draft"):
            task.artifact([{"text": text}], artifact_id="a-1", name="sailboat")
            await turn.status("WORKING")
        await turn.status("COMPLETED")

    harness.peer.next(work)
    first = await harness.send("draw", wait="stream")
    await harness.watch(first)
    second = await refine(harness, "sailboat in red", first)
    before, after = await artifact_of(harness, first), await artifact_of(harness, second)
    assert (before.version, before.replaces) == (2, before.artifact_id)
    assert (after.version, after.replaces) == (3, before.artifact_id)


@pytest.mark.parametrize("name", ["", "rowing boat"])
async def test_artifact_with_another_name_or_none_is_not_a_version(
    harness: Harness, name: str
) -> None:
    first = await refine(harness, "sailboat")
    harness.peer.next(draw("boat", name))
    second = await harness.send("another", context_id=first.context_id)
    await harness.await_answer(second)
    artifact = await artifact_of(harness, second)
    assert (artifact.version, artifact.replaces) == (1, None)


async def test_each_context_has_its_own_versions(harness: Harness) -> None:
    await refine(harness, "sailboat")
    artifact = await artifact_of(harness, await refine(harness, "sailboat"))
    assert (artifact.version, artifact.replaces) == (1, None)


@pytest.mark.requirement("SNAP-7", "PO-9")
async def test_model_of_a_large_artifact_has_a_preview_and_its_number_of_issues(
    harness: Harness,
) -> None:
    harness.acceptance = ({"artifact": {"name": "report"}}, {"artifact": {"name": "sailboat"}})
    harness.peer.next(draw("sail " * 10_000))
    accepted, _ = await harness.talk("a report, please")
    model = await harness.service.read(ADA, GetTaskModel(accepted.facade, "artifacts"))
    assert model["issues"] == 1
    (shown,) = cast("list[JsonObject]", model["artifacts"])
    (version,) = cast("list[JsonObject]", shown["versions"])
    assert str(version["preview"]).startswith("sail sail")
    assert version["blob"] is not None


@pytest.mark.requirement("LT-17")
@pytest.mark.parametrize("restarts", [False, True])
async def test_referenced_task_is_refined_beyond_the_names_that_a_context_keeps(
    harness: Harness, *, restarts: bool
) -> None:
    first = await refine(harness, "sailboat in blue")
    for number in range(KEPT_NAMES):
        harness.peer.next(draw("other", f"other {number}"))
        accepted = await harness.send("another", context_id=first.context_id)
        await harness.await_answer(accepted)
    if restarts:
        await harness.restart()
    refined = await refine(harness, "sailboat in red", first)
    before, after = await artifact_of(harness, first), await artifact_of(harness, refined)
    assert (after.name, after.version, after.replaces) == ("sailboat", 2, before.artifact_id)
    harness.peer.next(draw("boat", "sailboat"))
    unnamed = await harness.send("another", context_id=first.context_id)
    await harness.await_answer(unnamed)
    assert (await artifact_of(harness, unnamed)).version == 3


@pytest.mark.requirement("LT-17")
async def test_reference_applies_after_a_takeover(harness: Harness) -> None:
    first = await refine(harness, "sailboat in blue")
    for number in range(KEPT_NAMES):
        harness.peer.next(draw("other", f"other {number}"))
        await harness.await_answer(await harness.send("another", context_id=first.context_id))
    go_on = anyio.Event()

    async def work(turn: Turn) -> None:
        task = await turn.open()
        await turn.status("WORKING")
        await go_on.wait()
        task.artifact([{"text": "in red"}], artifact_id="a-1", name="sailboat")
        await turn.status("COMPLETED")

    harness.peer.next(work)
    message = harness.message("make it red")
    message["referenceTaskIds"] = [first.facade]
    refined = await harness.send("", message=message, context_id=first.context_id, wait="stream")

    async def is_known() -> bool:
        run = (await harness.record(refined)).run
        return run is not None and run.remote_task_id is not None

    await wait_until(is_known, 15, "the agent works on it")
    await harness.restart()
    go_on.set()
    await harness.adopt(refined)
    await harness.until(refined, Status.COMPLETED)
    after = await artifact_of(harness, refined)
    assert (after.version, after.replaces) == (2, (await artifact_of(harness, first)).artifact_id)
