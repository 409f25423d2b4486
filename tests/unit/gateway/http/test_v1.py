"""The control plane over HTTP: who gets in, what a body may be, how answers and errors look."""

from collections.abc import AsyncIterator
from typing import cast

import pytest
from httpx import ASGITransport, AsyncClient, Response

from passerelle.core.commands import (
    ActionAnswered,
    CancelTask,
    GetAction,
    GetSession,
    RespondAction,
    SubmitTurn,
)
from passerelle.core.errors import (
    ActionClosed,
    NotFound,
    StoreUnavailable,
    UnsupportedOperation,
)
from passerelle.gateway.http.bodies import BODY_LIMIT_BYTES
from passerelle.gateway.http.site import make_site
from passerelle.gateway.http.v1 import OPERATIONS, RouteOperation, make_v1_routes
from passerelle.gateway.settings.model import Settings
from passerelle.runtime.common.clock import SystemIds
from passerelle.runtime.common.secret import Secret
from tests.support.clients import make_client
from tests.support.known_keys import make_authenticator
from tests.support.scripted_service import ScriptedService
from tests.unit.gateway.test_rpc import ACCEPTED, DECISION

OWNER = {"Authorization": "Bearer owner-token"}
DECIDE = "/v1/approvals/act_1/decision"
ANSWER = {"rev": 3, "digest": "sha256:d", "decisionId": "dec_1", "optionId": "allow_once"}


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService(result=ACCEPTED)


@pytest.fixture
async def http(service: ScriptedService) -> AsyncIterator[AsyncClient]:
    client = make_client("c", "k-client", "*")
    auth = make_authenticator(Secret("owner-token"), (client,))
    site = make_site(make_v1_routes(service, auth, SystemIds()), Settings())
    transport = ASGITransport(site, raise_app_exceptions=False)
    async with AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield http


def code(response: Response) -> tuple[int, str]:
    assert response.headers["Content-Type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == response.status_code
    return response.status_code, body["code"]


@pytest.mark.anyio
@pytest.mark.requirement("CMD-1", "CMD-27")
async def test_turn_is_accepted(http: AsyncClient, service: ScriptedService) -> None:
    response = await http.post("/v1/turns", json={"agent": "echo", "text": "hi"}, headers=OWNER)
    assert response.status_code == 202
    assert response.json()["taskId"] == "task_1~2"
    principal, command, idem = service.asked[0]
    assert isinstance(command, SubmitTurn)
    assert (principal.id, command.source) == ("owner", "http")
    assert idem is not None


@pytest.mark.anyio
@pytest.mark.requirement("CMD-30")
async def test_key_of_the_caller_is_the_key_of_the_command(
    http: AsyncClient, service: ScriptedService
) -> None:
    for _ in range(2):
        await http.post(
            "/v1/turns",
            json={"agent": "echo", "text": "hi"},
            headers={**OWNER, "Idempotency-Key": "k-7", "Passerelle-Device": "phone"},
        )
    assert service.asked[0] == service.asked[1]
    assert (service.asked[0][0].device, service.asked[0][2]) == ("phone", "k-7")


@pytest.mark.anyio
@pytest.mark.requirement("CMD-14")
async def test_answer_goes_with_key_and_etag(http: AsyncClient, service: ScriptedService) -> None:
    service.result = ActionAnswered("won", 4, DECISION)
    headers = {**OWNER, "Idempotency-Key": "k-1"}
    response = await http.post(DECIDE, json=ANSWER, headers=headers)
    assert (response.status_code, response.headers["ETag"]) == (200, '"4"')
    assert service.asked[0][1] == RespondAction("act_1", 3, "sha256:d", "dec_1", "allow_once")


@pytest.mark.anyio
async def test_answer_with_an_unusable_key_names_the_header(http: AsyncClient) -> None:
    headers = {**OWNER, "Idempotency-Key": "x" * 256}
    response = await http.post(DECIDE, json=ANSWER, headers=headers)
    assert code(response) == (400, "invalid_input")
    assert response.json()["field"] == "Idempotency-Key"


@pytest.mark.anyio
async def test_decision_takes_its_id_as_the_key_or_the_key_as_its_id(
    http: AsyncClient, service: ScriptedService
) -> None:
    """Newcomers had to send both, with no word on how they differ."""
    service.result = ActionAnswered("won", 4, DECISION)
    by_id = await http.post(DECIDE, json=ANSWER, headers=OWNER)
    unnamed = {name: said for name, said in ANSWER.items() if name != "decisionId"}
    by_key = await http.post(DECIDE, json=unnamed, headers={**OWNER, "Idempotency-Key": "k-7"})
    assert (by_id.status_code, by_key.status_code) == (200, 200)
    named = [(cast("RespondAction", one).decision_id, idem) for _, one, idem in service.asked]
    assert named == [("dec_1", "dec_1"), ("k-7", "k-7")]
    without = await http.post(DECIDE, json=unnamed, headers=OWNER)
    assert code(without) == (400, "invalid_input")
    assert without.json()["field"] == "decisionId"


@pytest.mark.anyio
@pytest.mark.requirement("CMD-14")
async def test_loser_learns_the_winner(http: AsyncClient, service: ScriptedService) -> None:
    service.error = ActionClosed(
        "already_resolved", {"decidedBy": "ada", "optionId": "reject_once"}
    )
    headers = {**OWNER, "Idempotency-Key": "k-1"}
    response = await http.post(DECIDE, json=ANSWER, headers=headers)
    assert code(response) == (409, "already_resolved")
    assert response.json()["winner"] == {"decidedBy": "ada", "optionId": "reject_once"}


@pytest.mark.anyio
async def test_problem_says_the_status_of_what_refuses_beside_that_of_http(
    http: AsyncClient, service: ScriptedService
) -> None:
    """Channels say it as ``d.status``; here the status of the answer stood in its place."""
    service.error = UnsupportedOperation("a task that is completed cannot be paused", status="done")
    response = await http.post("/v1/tasks/task_1/pause", headers=OWNER)
    assert code(response) == (409, "unsupported_operation")
    assert (response.json()["status"], response.json()["state"]) == (409, "done")


@pytest.mark.anyio
async def test_cancel_takes_an_empty_body(http: AsyncClient, service: ScriptedService) -> None:
    service.error = StoreUnavailable("loading", "no", 3)
    response = await http.post("/v1/tasks/task_1/cancel", headers=OWNER)
    assert code(response) == (503, "store_unavailable")
    assert response.headers["Retry-After"] == "3"
    assert service.asked[0][1] == CancelTask("task_1")


@pytest.mark.anyio
async def test_question_is_read_with_its_revision(
    http: AsyncClient, service: ScriptedService
) -> None:
    service.view = {"actionId": "act_1", "rev": 3}
    response = await http.get("/v1/approvals/act_1", headers=OWNER)
    assert (response.json(), response.headers["ETag"]) == (service.view, '"3"')
    assert service.asked[0][1] == GetAction("act_1")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("limit=99999999999999999999999", "limit"),
        ("limit=1&limit=2", "limit"),
        ("colour=red", "colour"),
    ],
)
async def test_query_that_cannot_be_read_names_the_field(
    http: AsyncClient, query: str, field: str
) -> None:
    response = await http.get(f"/v1/approvals?{query}", headers=OWNER)
    assert code(response) == (400, "invalid_input")
    assert response.json()["field"] == field


@pytest.mark.anyio
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.call.name)
@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer nobody"}, {"Authorization": "x"}]
)
async def test_nobody_gets_in_without_a_credential(
    http: AsyncClient, service: ScriptedService, operation: RouteOperation, headers: dict[str, str]
) -> None:
    response = await http.request(operation.method, operation.path, headers=headers, content=b"{")
    assert code(response) == (401, "unauthenticated")
    assert response.headers["WWW-Authenticate"].startswith("Bearer")
    assert service.asked == []


@pytest.mark.anyio
async def test_client_without_the_right_is_refused(
    http: AsyncClient, service: ScriptedService
) -> None:
    headers = {"Authorization": "Bearer k-client", "Idempotency-Key": "k"}
    assert code(await http.post(DECIDE, json=ANSWER, headers=headers)) == (403, "forbidden")
    assert code(await http.get("/v1/approvals", headers=headers)) == (403, "forbidden")
    assert service.asked == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("content", "media_type", "answer"),
    [
        (b"{", "application/json", (400, "malformed_body")),
        (b"[]", "application/json", (400, "malformed_body")),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "application/json", (400, "malformed_body")),
        (b"\xff", "application/json", (400, "malformed_body")),
        (b"a=1", "application/x-www-form-urlencoded", (415, "content_type_not_supported")),
        (b"{}", "text/plain", (415, "content_type_not_supported")),
        (b"{}", "", (415, "content_type_not_supported")),
        (b"{}", "application/json; charset=utf-8", (400, "invalid_input")),
        (b" " * (BODY_LIMIT_BYTES + 1), "application/json", (413, "too_large")),
    ],
)
async def test_body_that_cannot_be_read_is_refused(
    http: AsyncClient,
    service: ScriptedService,
    content: bytes,
    media_type: str,
    answer: tuple[int, str],
) -> None:
    headers = {**OWNER, "Content-Type": media_type}
    assert code(await http.post("/v1/turns", content=content, headers=headers)) == answer
    assert service.asked == []


@pytest.mark.anyio
async def test_body_without_a_length_is_bounded_too(http: AsyncClient) -> None:
    async def stream() -> AsyncIterator[bytes]:
        for _ in range(BODY_LIMIT_BYTES // 65_536 + 1):
            yield b" " * 65_536

    headers = {**OWNER, "Content-Type": "application/json"}
    assert code(await http.post("/v1/turns", content=stream(), headers=headers)) == (
        413,
        "too_large",
    )


@pytest.mark.anyio
async def test_member_that_stands_in_the_path_is_not_said_again(http: AsyncClient) -> None:
    body = {"taskId": "task_2"}
    response = await http.post("/v1/tasks/task_1/cancel", json=body, headers=OWNER)
    assert code(response) == (400, "invalid_input")


@pytest.mark.anyio
async def test_unknown_path_and_method_are_problems(http: AsyncClient) -> None:
    assert code(await http.get("/v1/nothing", headers=OWNER)) == (404, "not_found")
    assert code(await http.delete("/v1/turns", headers=OWNER)) == (405, "method_not_allowed")
    several = await http.put("/v1/tasks", headers=OWNER)
    assert several.headers["Allow"] == "GET, HEAD, POST"
    assert several.json()["detail"] == "PUT is not allowed here; use GET, HEAD, POST"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ("-1", "should be 1 or more"),
        ("0", "should be 1 or more"),
        ("1.5", "should be a whole number"),
        ("-", "should be a whole number"),
        ("9" * 40, "should be 200 or less"),
        ("-" + "9" * 40, "should be 1 or more"),
    ],
)
async def test_number_of_the_address_is_judged_as_a_number(
    http: AsyncClient, size: str, reason: str
) -> None:
    refused = await http.get(f"/v1/tasks?pageSize={size}", headers=OWNER)
    assert code(refused) == (400, "invalid_input")
    assert refused.json()["detail"] == f"pageSize: {reason}"


@pytest.mark.anyio
async def test_fault_of_ours_is_told_without_its_inside(
    http: AsyncClient, service: ScriptedService
) -> None:
    service.error = RuntimeError("the inside")
    response = await http.get("/v1/tasks/task_1", headers=OWNER)
    assert code(response) == (500, "internal")
    assert "the inside" not in response.text


@pytest.mark.anyio
async def test_sentence_says_approval_and_members_keep_their_names(
    http: AsyncClient, service: ScriptedService
) -> None:
    """One word for one thing: what the commands call an approval had been an action here."""
    service.error = NotFound("action", "act_1")
    response = await http.get("/v1/approvals/act_1", headers=OWNER)
    assert code(response) == (404, "not_found")
    assert response.json()["detail"] == "there is no approval 'act_1'"
    assert (response.json()["kind"], response.json()["name"]) == ("action", "act_1")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("before", "told"),
    [("1234567890", 1234567890), ("9" * 18, int("9" * 18)), ("9" * 40, 10**18)],
)
async def test_whole_number_of_the_address_is_read_to_its_last_digit(
    http: AsyncClient, service: ScriptedService, before: str, told: int
) -> None:
    """The first nine digits of a longer one were taken for the number."""
    response = await http.get(f"/v1/sessions/se_1?before={before}", headers=OWNER)
    assert response.status_code == 200
    assert cast("GetSession", service.asked[0][1]).before == told
