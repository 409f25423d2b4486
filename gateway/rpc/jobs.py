"""The calls about jobs. Their parameters are the command or query itself: its fields are documented."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from passerelle.core.job.requests import (
    CancelJob,
    GetJob,
    GetJobResults,
    JobChanged,
    JobModel,
    JobResults,
    ListJobs,
    RetryJob,
    SubmitJob,
)
from passerelle.core.principal import AccessScope
from passerelle.gateway.rpc.forms import JobResultsParams
from passerelle.gateway.rpc.paging import choose_position, choose_size
from passerelle.runtime.common.calls import MethodRow


def _row(
    name: str,
    summary: str,
    scope: AccessScope,
    params: type[Any],
    result: type[Any] | None = None,
    model: type[Any] | None = None,
) -> MethodRow:
    return MethodRow(name, summary, (scope,), params, lambda given, _: given, result, model=model)


JOB_ROWS: Final[Sequence[MethodRow]] = (
    _row(
        "submit_job",
        "Start a task for each of many inputs, or for each of many agents",
        AccessScope.CALL,
        SubmitJob,
        JobChanged,
    ),
    _row("list_jobs", "The jobs of the caller, the newest first", AccessScope.READ_TASKS, ListJobs),
    _row("get_job", "A job and its progress", AccessScope.READ_TASKS, GetJob, model=JobModel),
    MethodRow(
        "get_job_results",
        "The items of a job, each with its state, attempts, task and result",
        (AccessScope.READ_TASKS,),
        JobResultsParams,
        lambda given, _: GetJobResults(
            given.job_id,
            choose_position(given.page_token, given.after),
            choose_size(given.page_size, given.limit, 50),
            given.state,
        ),
        model=JobResults,
    ),
    _row(
        "cancel_job",
        "Cancel a job: stop running items, start no more",
        AccessScope.WRITE_TASKS,
        CancelJob,
        JobChanged,
    ),
    _row(
        "retry_job",
        "Retry failed and cancelled items of a job",
        AccessScope.WRITE_TASKS,
        RetryJob,
        JobChanged,
    ),
)
