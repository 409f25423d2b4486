"""The task machine: every pair of status and command, random lives, and what no life may do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passerelle.core.errors import (
    CallerError,
    InvalidInput,
    NotCancelable,
    NotFound,
    UnsupportedOperation,
)
from passerelle.core.events import Event, decode_event, encode_event
from passerelle.core.payloads import task as task_facts
from passerelle.core.payloads.run import ArtifactChanged, RunStatus
from passerelle.core.task.commands import (
    AcceptTask,
    ArchiveTask,
    BeginTask,
    ConfirmCancel,
    EndInError,
    EndRun,
    FailRun,
    LeaveBehind,
    LinkTask,
    ObserveArtifact,
    ObserveStatus,
    PrepareRetry,
    RecordDelivery,
    RequestCancel,
    StartRun,
    SucceedTask,
    TaskCommand,
    WaitFor,
)
from passerelle.core.task.completion import find_missing
from passerelle.core.task.fold import evolve
from passerelle.core.task.machine import SAME, TABLE, decide
from passerelle.core.task.record import KEPT_ARTIFACTS, TaskRecord
from passerelle.core.task.status import ENDED, TERMINAL, Delivery, Status
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.record import change
from tests.support.task_commands import (
    ARTIFACT,
    COMMANDS,
    CREATED,
    FAILURE,
    ONE_OF_EACH,
    SCOPE,
    STARTED,
    Story,
    make_story,
)

WAYS: dict[Status, tuple[TaskCommand, ...]] = {
    Status.ACCEPTED: (),
    Status.QUEUED: (ONE_OF_EACH[2],),
    Status.PREPARING: (ONE_OF_EACH[3],),
    Status.RUNNING: (StartRun("run_1", STARTED),),
    Status.WAITING_INPUT: (
        StartRun("run_1", STARTED),
        WaitFor(task_facts.TaskWaiting("input", Status.WAITING_INPUT)),
    ),
    Status.WAITING_PERMISSION: (
        StartRun("run_1", STARTED),
        WaitFor(task_facts.TaskWaiting("permission", Status.WAITING_PERMISSION)),
    ),
    Status.WAITING_RESOURCE: (
        StartRun("run_1", STARTED),
        WaitFor(task_facts.TaskWaiting("resource", Status.WAITING_RESOURCE)),
    ),
    Status.BLOCKED: (StartRun("run_1", STARTED), ONE_OF_EACH[11]),
    Status.PAUSED: (StartRun("run_1", STARTED), ONE_OF_EACH[12]),
    Status.RETRYING: (StartRun("run_1", STARTED), FailRun(Status.FAILED, FAILURE), ONE_OF_EACH[19]),
    Status.CANCELLING: (StartRun("run_1", STARTED), ONE_OF_EACH[21]),
    Status.CANCELLED: (ONE_OF_EACH[21], ONE_OF_EACH[22]),
    Status.TIMED_OUT: (StartRun("run_1", STARTED), ONE_OF_EACH[23]),
    Status.FAILED: (StartRun("run_1", STARTED), EndInError(FAILURE)),
    Status.LOST: (StartRun("run_1", STARTED), ONE_OF_EACH[20]),
    Status.UNKNOWN: (
        StartRun("run_1", STARTED),
        ObserveStatus(Status.UNKNOWN, RunStatus(native_status="TASK_STATE_ODD"), "step_1"),
    ),
    Status.COMPLETED: (
        StartRun("run_1", STARTED),
        EndRun("TASK_STATE_COMPLETED"),
        RecordDelivery("facade", Delivery.DELIVERED),
        ONE_OF_EACH[17],
    ),
    Status.ARCHIVED: (StartRun("run_1", STARTED), EndInError(FAILURE), ONE_OF_EACH[26]),
}
"""How each status is reached by commands. ``draft`` has a start of its own; ``stale`` is a mark of readers."""


def reach(status: Status) -> Story:
    if status is Status.DRAFT:
        story = Story()
        story.tell(BeginTask(SCOPE, CREATED, accepts=False))
        return story
    return make_story(*WAYS[status])


def is_waiting_for_a_fact(error: CallerError) -> bool:
    return "missing" in error.details or "no live run" in str(error) or "no run" in str(error)


REACHED = [status for status in Status if status is not Status.STALE]


@pytest.mark.parametrize("status", REACHED)
def test_every_status_is_reached_by_commands(status: Status) -> None:
    state = reach(status).state
    assert state is not None
    assert state.status is status


@pytest.mark.requirement("TR-7")
@pytest.mark.parametrize("command", ONE_OF_EACH, ids=lambda command: type(command).__name__)
@pytest.mark.parametrize("status", REACHED)
def test_every_pair_is_a_row_of_the_table_or_a_typed_refusal(
    status: Status, command: TaskCommand
) -> None:
    story = reach(status)
    before = story.state
    row = TABLE[type(command)].get(status)
    refusal = story.find_refusal(command)
    if refusal is not None:
        assert row is None or is_waiting_for_a_fact(refusal)
        assert story.state == before
        return
    assert row is not None
    assert story.state is not None
    assert story.state.status in (row or {status})
    assert row is not SAME or story.state.status is status


def test_every_command_and_every_status_is_in_the_table() -> None:
    assert {type(command) for command in ONE_OF_EACH} == set(TABLE)
    sources = {status for rows in TABLE.values() for status in rows}
    targets = {status for rows in TABLE.values() for row in rows.values() for status in row}
    assert sources == {None, *Status} - {Status.ARCHIVED}
    assert targets == {*Status} - {Status.STALE}


@settings(max_examples=200)
@given(commands=st.lists(COMMANDS, max_size=25))
def test_a_random_life_follows_the_table_and_replays_to_the_same_bytes(
    commands: list[TaskCommand],
) -> None:
    story = make_story()
    for command in commands:
        before = story.state
        assert before is not None
        taken = story.try_to(command)
        after = story.state
        assert after is not None
        if not taken:
            assert after == before
            continue
        row = TABLE[type(command)][before.status]
        assert after.status in row or after.status is before.status
        assert before.status not in ENDED or after.status in {before.status, Status.ARCHIVED}
    assert story.state is not None
    stored = [b'{"sequence":%d,' % e.sequence + encode_event(e).body for e in story.events]
    replayed: TaskRecord | None = None
    for data in stored:
        replayed = evolve(replayed, decode_event(data))
    assert replayed is not None
    assert to_bytes(replayed) == to_bytes(story.state)
    assert from_bytes(TaskRecord, to_bytes(replayed)) == replayed


@settings(max_examples=100)
@given(commands=st.lists(COMMANDS, max_size=20), cut=st.integers(0, 60))
def test_any_part_of_a_stream_folds_without_error(commands: list[TaskCommand], cut: int) -> None:
    story = make_story()
    for command in commands:
        story.try_to(command)
    for part in (story.events[:cut], story.events[cut:]):
        state: TaskRecord | None = None
        for event in part:
            state = evolve(state, event)
        assert state is None or isinstance(state.status, Status)


@given(commands=st.lists(COMMANDS, max_size=15))
def test_an_event_that_is_contained_changes_nothing(commands: list[TaskCommand]) -> None:
    story = make_story()
    for command in commands:
        story.try_to(command)
    for event in story.events:
        assert evolve(story.state, event) == story.state


@pytest.mark.requirement("GR-7", "A2A-10", "I4")
def test_counted_artifact_has_an_edge_if_its_fact_is_linked() -> None:
    story = make_story(StartRun("run_1", STARTED))
    for number in range(KEPT_ARTIFACTS + 2):
        linked = True if number > KEPT_ARTIFACTS else None
        told = change(
            ARTIFACT, artifact_id=f"art_{number}", name_at_peer=f"{number}", linked=linked
        )
        story.tell(ObserveArtifact(told, f"step_{number}"))
    assert story.state is not None
    numbers = [
        *range(KEPT_ARTIFACTS),
        KEPT_ARTIFACTS + 1,
    ]  # an older fact gave none to the seventeenth
    assert [one.target for one in story.state.relationships] == [f"art_{one}" for one in numbers]
    assert story.state.artifact_count == KEPT_ARTIFACTS + 2


@pytest.mark.requirement("I5", "AP-4", "TR-7")
def test_a_task_completes_only_after_each_of_the_three_facts() -> None:
    complete = ONE_OF_EACH[17]
    story = make_story(StartRun("run_1", STARTED))
    with pytest.raises(UnsupportedOperation, match="the agent has not ended the run"):
        story.tell(complete)
    loose = ArtifactChanged(
        artifact_id="art_1",
        name_at_peer="a",
        version=1,
        sha256="0" * 64,
        size=3,
        parts=1,
        stored=False,
    )
    story.tell(ObserveArtifact(loose, "step_1"))
    story.tell(EndRun("TASK_STATE_COMPLETED"))
    with pytest.raises(UnsupportedOperation, match="art_1 is not stored"):
        story.tell(complete)
    story.tell(ObserveArtifact(ARTIFACT, "step_2"))
    with pytest.raises(UnsupportedOperation, match="no delivery is recorded"):
        story.tell(complete)
    story.tell(RecordDelivery("facade", Delivery.DELIVERED))
    story.tell(complete)
    assert story.state is not None
    assert story.state.status is Status.COMPLETED


@pytest.mark.requirement("LT-12")
@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_a_terminal_task_is_frozen(status: Status) -> None:
    story = reach(status)
    before = story.state
    for command in ONE_OF_EACH[1:]:
        if isinstance(command, LinkTask | ArchiveTask | LeaveBehind):
            continue
        refused = (
            NotCancelable if isinstance(command, RequestCancel | ConfirmCancel) else CallerError
        )
        with pytest.raises(refused):
            story.tell(command)
    assert story.state == before


@pytest.mark.requirement("EXT-11")
@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_a_rolled_back_task_is_marked_once_and_not_retried(status: Status) -> None:
    story = reach(status)
    assert story.state is not None
    before = story.state
    story.tell(LeaveBehind("bd_1"))
    after = story.state
    assert (after.rolled_back, after.status) == ("bd_1", status)
    assert change(after, rolled_back=None, last=before.last, updated_at=before.updated_at) == before
    story.tell(LeaveBehind("bd_2"))
    assert story.state == after
    with pytest.raises(UnsupportedOperation, match="rolled back"):
        story.tell(PrepareRetry(task_facts.TaskRetrying("again", 2, actor="owner", exposure=2)))


@pytest.mark.requirement("LT-12", "ATT-17")
@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_an_ended_task_lives_again_only_by_a_wish_and_under_an_id_of_which_no_end_was_seen(
    status: Status,
) -> None:
    story = reach(status)
    assert story.state is not None
    ended = change(story.state, shown=True, exposure=2)
    story.state = ended
    wish = task_facts.TaskRetrying("again", 2, actor="owner")
    for exposure in (None, 2, 4):
        with pytest.raises(UnsupportedOperation, match="seen the task end"):
            story.tell(PrepareRetry(change(wish, exposure=exposure)))
    story.tell(PrepareRetry(change(wish, exposure=3)))
    again = story.state
    assert again.attempts == ended.attempts
    assert (again.status, again.exposure, again.shown) == (Status.RETRYING, 3, False)
    assert (again.ended_at, again.last_error, again.asked_by) == (None, None, "owner")


def test_a_requested_cancel_stays_whatever_the_agent_reports() -> None:
    story = make_story(StartRun("run_1", STARTED), ONE_OF_EACH[21])
    story.tell(ObserveStatus(Status.RUNNING, RunStatus(native_status="TASK_STATE_WORKING"), "s_1"))
    with pytest.raises(UnsupportedOperation):
        story.tell(ONE_OF_EACH[17])
    assert story.state is not None
    assert story.state.status is Status.CANCELLING
    assert story.tell(ONE_OF_EACH[21]) == []


@pytest.mark.requirement("TR-4", "TR-20")
def test_times_are_set_by_transitions_and_in_order() -> None:
    story = make_story()
    state = story.state
    assert state is not None
    assert (state.started_at, state.ended_at) == (None, None)
    assert (state.title, state.objective) == ("say hello", "say hello")
    story.tell(StartRun("run_1", STARTED))
    state = story.state
    assert state is not None
    assert state.started_at is not None
    assert state.ended_at is None
    story.tell(EndInError(FAILURE))
    state = story.state
    assert state is not None
    assert state.started_at is not None
    assert state.ended_at is not None
    assert state.created_at <= state.started_at <= state.ended_at == state.updated_at


@pytest.mark.requirement("ID-7")
def test_each_frame_of_a_peer_is_one_step_of_its_run() -> None:
    story = make_story(StartRun("run_1", STARTED))
    for ordinal in range(1, 6):
        said = RunStatus(native_status="TASK_STATE_WORKING", text=f"frame {ordinal}")
        story.tell(ObserveStatus(Status.RUNNING, said, f"step_{ordinal}"))
    steps = [e.fact.scope.step_id for e in story.events if e.fact.scope.step_id]
    assert steps == [f"step_{ordinal}" for ordinal in range(1, 6)]
    assert story.state is not None
    assert story.state.attempts[-1].steps == 5
    assert all(e.fact.scope.run_id == "run_1" for e in story.events if e.fact.scope.step_id)


@pytest.mark.requirement("EVC-5")
def test_words_of_a_peer_change_no_status() -> None:
    story = make_story(StartRun("run_1", STARTED))
    said = RunStatus(native_status="TASK_STATE_WORKING", text="half way")
    facts = story.tell(ObserveStatus(Status.RUNNING, said, "step_1"))
    assert [fact.payload.type for fact in facts] == ["run.status"]
    assert story.state is not None
    assert story.state.status is Status.RUNNING
    assert story.state.progress.summary == "half way"


@pytest.mark.requirement("A2A-7", "ST-20", "ST-21")
def test_an_unknown_native_status_is_kept() -> None:
    state = reach(Status.UNKNOWN).state
    assert state is not None
    assert state.attempts[-1].native_status == "TASK_STATE_ODD"


@pytest.mark.requirement("ENV-5")
def test_an_event_of_a_newer_schema_marks_the_record_stale() -> None:
    story = make_story(StartRun("run_1", STARTED))
    newer = Event("ev_99", "2026-01-01T00:00:00.000Z", "rt_1", story.events[-1].fact, 99, "2.0")
    data = b'{"sequence":99,' + encode_event(newer).body
    state = evolve(story.state, decode_event(data))
    assert state is not None
    assert state.stale_from == 99
    assert state.status is Status.RUNNING


def test_a_task_is_created_once_and_commands_need_an_existing_task() -> None:
    story = make_story()
    with pytest.raises(InvalidInput, match="taskId"):
        story.tell(BeginTask(SCOPE, CREATED))
    with pytest.raises(NotFound):
        decide(None, AcceptTask())


def test_a_run_that_is_over_takes_no_further_word() -> None:
    story = make_story(StartRun("run_1", STARTED), EndRun("TASK_STATE_COMPLETED"))
    with pytest.raises(UnsupportedOperation, match="no live run"):
        story.tell(EndRun("TASK_STATE_COMPLETED"))
    assert find_missing(story.state) == "no delivery is recorded" if story.state else False


def test_the_snapshot_of_a_long_run_stays_small() -> None:
    story = make_story(StartRun("run_1", STARTED))
    for number in range(2000):
        said = RunStatus(native_status="TASK_STATE_WORKING", text=f"step {number}")
        story.tell(ObserveStatus(Status.RUNNING, said, f"step_{number}"))
    assert story.state is not None
    assert len(to_bytes(story.state)) < 16 * 1024
    assert isinstance(ONE_OF_EACH[17], SucceedTask)
