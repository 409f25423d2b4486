"""The calls about jobs. Their parameters are the command or query itself: its fields are documented."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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

_READ: Final = (AccessScope.READ_TASKS,)
_WRITE: Final = (AccessScope.WRITE_TASKS,)

JOB_ROWS: Final[Sequence[MethodRow]] = (
    MethodRow(
        "submit_job",
        "Start a task for each of many inputs, or for each of many agents",
        (AccessScope.CALL,),
        SubmitJob,
        JobChanged,
    ),
    MethodRow("list_jobs", "The jobs of the caller, the newest first", _READ, ListJobs),
    MethodRow("get_job", "A job and its progress", _READ, GetJob, model=JobModel),
    MethodRow(
        "get_job_results",
        "The items of a job, each with its state, attempts, task and result",
        _READ,
        JobResultsParams,
        read=lambda given, _: GetJobResults(
            given.job_id,
            choose_position(given.page_token, given.after),
            choose_size(given.page_size, given.limit, 50),
            given.state,
        ),
        model=JobResults,
    ),
    MethodRow(
        "cancel_job",
        "Cancel a job: stop running items, start no more",
        _WRITE,
        CancelJob,
        JobChanged,
    ),
    MethodRow(
        "retry_job",
        "Retry failed and cancelled items of a job",
        _WRITE,
        RetryJob,
        JobChanged,
    ),
)
