"""The whole job with a generated client: dispatch, see the conditions, register, poll, ack, renew, report."""

from typing import TypeVar
from uuid import UUID

from roadstead_client import AuthenticatedClient
from roadstead_client.api.attempts import ack_attempt, renew_attempt, report_attempt
from roadstead_client.api.runs import dispatch_run, get_run
from roadstead_client.api.workers import poll_tasks, register_worker
from roadstead_client.models import (
    DispatchRequest,
    PollRequest,
    Problem,
    RegisterRequest,
    ReportRequest,
    ReportStatus,
    TokenRequest,
    WaitFor,
)

T = TypeVar("T")


def must(answer: T | Problem | None) -> T:
    if answer is None or isinstance(answer, Problem):
        raise RuntimeError(answer)
    return answer


client = AuthenticatedClient(base_url="http://127.0.0.1:8080", token="rst_of-a-caller")
dispatch = DispatchRequest.from_dict({"dag_name": "etl", "run_id": "r-1", "worker_selector": {"zone": "b"}})
run = must(dispatch_run.sync(client=client, body=dispatch))
for condition in run.conditions or []:
    print(condition.type_, condition.status, condition.reason)

registration = RegisterRequest.from_dict({"labels": {"zone": "b"}, "slots": 1})
session = must(register_worker.sync("w-1", client=client, body=registration))
answer = must(
    poll_tasks.sync("w-1", client=client, body=PollRequest(session_id=session.session_id, wait_seconds=20.0))
)
for task in answer.tasks:
    attempt_id: UUID = task.attempt_id
    lease = must(ack_attempt.sync(attempt_id, client=client, body=TokenRequest(token=task.token)))
    print(lease.lease_until)
    must(renew_attempt.sync(attempt_id, client=client, body=TokenRequest(token=task.token)))
    report = ReportRequest(token=task.token, status=ReportStatus.SUCCEEDED, output={"rows": 3})
    must(report_attempt.sync(attempt_id, client=client, body=report))

finished = must(get_run.sync("etl", run.run_id, client=client, wait_for=WaitFor.FINISHED, wait_seconds=10.0))
print(finished.status)
