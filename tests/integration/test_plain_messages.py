"""Messages of plain tasks as Celery's own worker sees them first: expired, revoked, or somebody else's (I1, I2, I9)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import states
from celery.app.trace import trace_task_ret
from celery.exceptions import InvalidTaskError, Reject
from celery.utils import uuid
from celery.worker import state as worker_state
from kombu import Connection

from agent_tasks import AgentTask, DedupeConflict, RunHandle
from agent_tasks.answering import Answer, answer
from agent_tasks.doorbell import RING_HEADER, CeleryBell
from agent_tasks.errors import LedgerUnavailable
from agent_tasks.inline import answer_all, run_to_its_end
from agent_tasks.messages import headers_of
from agent_tasks.revokes import HeardRevokes
from agent_tasks.states import RunStatus
from agent_tasks.sweeper import end_lease
from agent_tasks.task import AgentRequest
from agent_tasks.testing import check_invariants
from tests.one_process import OneProcess, bound

pytestmark = pytest.mark.versions

KEYED: dict[str, Any] = {"effect": "keyed", "key_lifetime": timedelta(hours=24)}


class Shop(OneProcess):
    """A worker's parent and its child in one process, and somebody elsewhere who sends messages by name."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.app.conf.result_backend = "cache+memory://"

    def task(self, body: Callable[..., Any], **options: Any) -> Any:
        if "effect" in options and "bind" not in options:
            body, options["bind"] = bound(body), True
        return self.app.task(**{"base": AgentTask, "shared": False, "name": body.__name__, **options})(body)

    def run_of(self, run_id: str) -> RunHandle:
        return RunHandle(self.runtime, run_id)

    def row_of(self, run_id: str) -> Any:
        with self.runtime.engine.connect() as connection:
            return self.runtime.runs.find(connection, run_id)

    def received(
        self, task: Any, run_id: str, args: tuple[Any, ...] = (), *, rings: bool = False, **options: Any
    ) -> AgentRequest:
        """Send a message and return the request that the worker's parent makes of it."""
        with Connection("memory://") as connection, connection.SimpleQueue(f"{task.name}-{run_id}") as queue:
            message = self.app.amqp.as_task_v2(run_id, task.name, args, {}, **options)
            headers = {**message.headers, RING_HEADER: 1} if rings else message.headers
            queue.put(message.body, headers=headers, serializer="json")
            return AgentRequest(queue.get(timeout=5), app=self.app, task=task)

    def answered(self, request: AgentRequest) -> Answer:
        """Let the child answer a request, unless the parent drops it."""
        assert not request.revoked()
        task = request.task
        task.push_request(**request._request_dict, called_directly=False)
        try:
            return answer(task, task.job)
        finally:
            task.pop_request()

    def forged(
        self, task: Any, run_id: str, args: Any, *, headers: dict[str, Any], embedded: dict[str, Any] | None = None
    ) -> AgentRequest:
        """Send a message that says more about itself than Celery's own do, and let a worker's parent and child have it."""
        with Connection("memory://") as connection, connection.SimpleQueue(f"{task.name}-{run_id}") as queue:
            message = self.app.amqp.as_task_v2(run_id, task.name, args, {})
            body = (args, {}, {**message.body[2], **(embedded or {})})
            queue.put(body, headers={**message.headers, **headers}, serializer="json")
            request = AgentRequest(queue.get(timeout=5), app=self.app, task=task)
        content = request._content_type, request._content_encoding
        trace_task_ret(task.name, run_id, request._request_dict, request._body, *content, app=self.app)
        return request

    def loses_its_worker(self, job: Any, run_id: str) -> None:
        with self.runtime.engine.connect() as connection, connection.begin():
            row = self.runtime.runs.claim(connection, run_id, 1, agent=job.name, step="run", owner="w", token="t")
            assert row is not None
        assert end_lease(self.runtime, run_id, "t")

    def doorbell(self, task: Any, run_id: str) -> AgentRequest:
        return self.received(task, run_id, (run_id, 1), rings=True)


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    with closing(Shop(database_url)) as made:
        yield made
        with made.runtime.engine.connect().execution_options(agent_reads_only=True) as connection:
            assert check_invariants(connection) == []


@pytest.fixture
def mine() -> str:
    """An id that no other test's result is stored under, since the backend in memory is one for all of them."""
    return uuid()


@pytest.fixture(autouse=True)
def _no_revokes() -> Iterator[None]:
    yield
    worker_state.revoked.clear()
    worker_state.revoked_stamps.clear()
    HeardRevokes.of_this_process.clear()


def fails_once(shop: Shop) -> Any:
    """A task that waits for its second try after the first."""

    def pay(self: Any, order: str) -> str:
        shop.requests.append(order)
        if len(shop.requests) == 1:
            raise self.retry(exc=ConnectionError("reset"), countdown=30)
        return "paid"

    return shop.task(pay, bind=True, tools=[])


# -- expires= ---------------------------------------------------------------------------------------------------------


def test_a_message_that_comes_again_past_its_expiry_ends_no_run_that_was_begun(shop: Shop) -> None:
    task = fails_once(shop)
    soon = datetime.now(timezone.utc) + timedelta(seconds=60)
    assert not shop.answered(shop.received(task, "r", ("o-1",), expires=soon)).ended
    assert shop.run_of("r").status is RunStatus.WAITING

    past = datetime.now(timezone.utc) - timedelta(seconds=60)  # the same message, delivered again later
    again = shop.answered(shop.received(task, "r", ("o-1",), expires=past))
    assert (again.ended, again.revoked) == (False, None)
    assert "r" not in worker_state.revoked
    shop.runtime.clock.advance(120)
    run_to_its_end(shop.runtime, task.job, "r")
    assert shop.answered(shop.doorbell(task, "r")) == Answer(ended=True, output="paid")
    assert task.AsyncResult("r").state == states.PENDING  # nobody stored REVOKED


def test_a_message_that_comes_past_its_expiry_for_the_first_time_ends_as_expired(shop: Shop) -> None:
    task = fails_once(shop)
    past = datetime.now(timezone.utc) - timedelta(seconds=60)
    assert shop.answered(shop.received(task, "r", ("o-1",), expires=past)) == Answer(ended=True, revoked="expired")
    assert shop.run_of("r").status is RunStatus.CANCELLED
    assert shop.requests == []


def test_a_message_that_expires_while_its_run_waits_to_begin_ends_as_expired(shop: Shop) -> None:
    task = fails_once(shop)
    soon = datetime.now(timezone.utc) + timedelta(seconds=60)
    request = shop.received(task, "r", ("o-1",), expires=soon)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "agent_tasks.coordinator.Coordinator.handle", lambda *_: False
        )  # this child dies before its claim
        shop.answered(request)
    shop.runtime.clock.advance(120)
    assert shop.answered(shop.doorbell(task, "r")).revoked == "expired"


def test_a_doorbell_has_no_expiry_whatever_the_call_and_the_task_said(shop: Shop) -> None:
    def pay() -> None: ...

    task = shop.task(pay, tools=[], expires=60)
    shop.runtime.bell = CeleryBell(shop.app, shop.runtime.boundary, shop.runtime.settings)
    task.apply_async(task_id="r", expires=30, queue="doorbells")
    with shop.app.connection_for_write() as connection, connection.SimpleQueue("doorbells") as queue:
        request = AgentRequest(queue.get(timeout=5), app=shop.app, task=task)
    assert request.id == "r"
    assert request.expires is None


# -- somebody else's message under an id that is taken ----------------------------------------------------------------


@pytest.mark.parametrize("args", [("o-2",), ()], ids=["other arguments", "arguments that do not fit"])
@pytest.mark.parametrize("ends", [False, True], ids=["a live run", "a run that ended"])
def test_a_message_with_the_id_of_another_call_leaves_that_ones_result_alone(
    shop: Shop, caplog: pytest.LogCaptureFixture, args: tuple[str, ...], ends: bool
) -> None:
    task = fails_once(shop)
    task.apply_async(("o-1",), task_id="r")
    answer_all(shop.runtime, task.job)
    if ends:
        run_to_its_end(shop.runtime, task.job, "r")
    before = shop.row_of("r")["status"]
    with caplog.at_level(logging.ERROR), pytest.raises(Reject) as rejected:
        shop.answered(shop.received(task, "r", args))
    assert rejected.value.requeue is False
    request = shop.received(task, "r", args)
    request.on_failure(ExceptionInfo((Reject, rejected.value, rejected.tb)), return_ok=True)  # in the parent
    assert task.AsyncResult("r").state == states.PENDING
    assert request.acknowledged
    assert shop.row_of("r")["status"] == before
    (said,) = [record for record in caplog.records if getattr(record, "action", "") == "message_rejected"]
    assert "task pay was rejected, since its id is that of run r, whose" in said.getMessage()
    assert "send the call again under another id" in said.getMessage()
    run_to_its_end(shop.runtime, task.job, "r")
    assert shop.answered(shop.doorbell(task, "r")).output == "paid"


def test_a_message_with_the_id_of_another_tasks_run_leaves_that_ones_result_alone(shop: Shop) -> None:
    fails_once(shop).apply_async(("o-1",), task_id="r")

    def other(order: str) -> str:
        return order

    other = shop.task(other, tools=[])
    with pytest.raises(Reject):
        shop.answered(shop.received(other, "r", ("o-1",)))


def test_a_message_of_its_own_id_about_a_job_with_other_arguments_fails(shop: Shop) -> None:
    def pay(order: str, cents: int) -> int:
        return cents

    task = shop.task(pay, dedupe_on=("order",), **KEYED)
    task.delay("o-1", 3)
    answered = shop.answered(shop.received(task, "mine", ("o-1", 4)))
    assert isinstance(answered.error, DedupeConflict)


SAID_BY_A_SENDER: list[dict[str, Any]] = [
    {"headers": {"agent_answered": 1}},
    {"headers": {"agent_ended": "failed", "agent_kept": 1, "agent_shown": 1, "agent_progress": {"answered": True}}},
    {"headers": {"agent_revoked": "because", "delivery_info": {"agent_revoked": "because"}}},
    {"headers": {"is_eager": True, "called_directly": True}},
    {"headers": {}, "embedded": {"is_eager": True}},
    {"headers": {}, "embedded": {"called_directly": True, "agent_answered": 1, "agent_progress": {"answered": True}}},
    {"headers": {}, "embedded": {"delivery_info": {"agent_ring": 1, "agent_revoked": "because"}}},
    {"headers": {}, "embedded": {"id": "another"}},
]


@pytest.mark.parametrize("said", SAID_BY_A_SENDER, ids=str)
def test_a_message_under_the_id_of_a_call_says_nothing_about_that_calls_run(
    shop: Shop, mine: str, said: dict[str, Any]
) -> None:
    def pay(order: str) -> str:
        shop.requests.append(order)
        return f"paid {order}"

    task = shop.task(pay, **KEYED)
    task.apply_async(("o-2",), task_id="another")
    task.apply_async(("o-1",), task_id=mine)
    answer_all(shop.runtime, task.job)
    assert sorted(shop.requests) == ["o-1", "o-2"]
    shop.forged(task, mine, ["o-1"], **said)
    assert (task.AsyncResult(mine).state, task.AsyncResult(mine).result) == (states.SUCCESS, "paid o-1")
    assert sorted(shop.requests) == ["o-1", "o-2"]
    assert task.AsyncResult("another").state == states.PENDING


@pytest.mark.parametrize("said", SAID_BY_A_SENDER, ids=str)
def test_a_message_becomes_a_run_of_its_own_whatever_it_says(shop: Shop, mine: str, said: dict[str, Any]) -> None:
    def pay(self: Any, order: str) -> str:
        shop.requests.append(order)
        return str(self.operation.operation_id)

    task = shop.task(pay, bind=True, **KEYED)
    shop.forged(task, mine, ["o-1"], **said)
    (operation,) = shop.run_of(mine).operations()
    assert (shop.run_of(mine).status, shop.requests) == (RunStatus.SUCCEEDED, ["o-1"])
    assert task.AsyncResult(mine).result == operation.operation_id


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"callbacks": [{"task": None}]}, "callbacks cannot be read"),
        ({"callbacks": 5, "errbacks": ["x"]}, "callbacks and errbacks cannot be read"),
        ({"errbacks": [{"task": "a", "options": 7}]}, "errbacks cannot be read"),
        ({"chain": [[]], "chord": "x"}, "chain and chord cannot be read"),
    ],
    ids=str,
)
def test_a_message_whose_callbacks_cannot_be_read_fails_at_once(
    shop: Shop, mine: str, sent: dict[str, Any], said: str
) -> None:
    task = shop.task(pays, **KEYED)
    shop.forged(task, mine, ["o-1"], headers={}, embedded=sent)
    assert task.AsyncResult(mine).state == states.FAILURE
    assert said in str(task.AsyncResult(mine).result)
    assert shop.row_of(mine) is None


def pays(order: str) -> str:
    return f"paid {order}"


@pytest.mark.parametrize("queue", ["q" * 201, "a\0b", "\ud800"], ids=["long", "NUL", "surrogate"])
def test_a_message_through_a_queue_that_no_run_can_have_fails_at_once(shop: Shop, mine: str, queue: str) -> None:
    task = shop.task(pays, **KEYED)
    request = shop.received(task, mine, ("o-1",))
    request.delivery_info.update(exchange="", routing_key=queue)
    answered = shop.answered(request)
    assert "must be a text of 1 to 200 characters without NUL" in str(answered.error)
    assert shop.row_of(mine) is None


@pytest.mark.parametrize(
    ("sent", "kept"), [(99999999999, 255), (-3, 0), (7, 7), ("high", 0), (None, 0), (float("nan"), 0)]
)
def test_a_message_with_an_odd_priority_gets_the_nearest(shop: Shop, mine: str, sent: Any, kept: int) -> None:
    task = shop.task(pays, **KEYED)
    request = shop.received(task, mine, ("o-1",))
    request.delivery_info["priority"] = sent
    assert shop.answered(request).output == "paid o-1"
    assert shop.row_of(mine)["priority"] == kept


OF_NO_USE = [
    *({"timelimit": said} for said in ["abc", 5, [1], ["a", "b"], [None, {}], [-1, None], [10**400, None], {}, True]),
    *({"stamped_headers": said} for said in [5, "ab", [[]], ["unstamped"]]),
    {"stamps": ["ab"], "stamped_headers": ["ab"]},
    {"stamps": 5},
]


@pytest.mark.parametrize("said", OF_NO_USE, ids=lambda said: repr(said)[:30])
def test_headers_that_no_worker_can_go_by_are_left_out_of_a_message_and_of_its_runs_doorbells(
    shop: Shop, mine: str, caplog: pytest.LogCaptureFixture, said: dict[str, Any]
) -> None:
    task = shop.task(pays, **KEYED)
    worker_state.revoked_stamps.update(ab=["x"], unstamped=["x"])
    request = shop.forged(task, mine, ["o-1"], headers=said)
    assert not request.revoked()
    assert (list(request.time_limits), request.stamped_headers) == ([None, None], [])
    kept = headers_of(shop.row_of(mine)["message"])
    assert not any(kept[name] for name in said)
    assert [record.action for record in caplog.records if hasattr(record, "action")].count("header_ignored") == len(
        said
    )
    assert task.AsyncResult(mine).result == "paid o-1"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        *(({}, body) for body in [5, "abc", [1], [], [5, {}, {}], [["o-1"], [], {}], [["o-1"], {}, {}, {}]]),
        *(({name: said}, [["o-1"], {}, {}]) for name in ("eta", "expires") for said in (5, [1], {"a": 1}, "soon")),
        *(({"id": said}, [["o-1"], {}, {}]) for said in (5, [1], None)),
    ],
    ids=repr,
)
def test_a_message_that_nobody_can_read_is_refused_before_the_worker_ends_by_it(
    shop: Shop, mine: str, headers: dict[str, Any], body: Any
) -> None:
    task = shop.task(pays, **KEYED)
    with Connection("memory://") as connection, connection.SimpleQueue(f"unreadable-{mine}") as queue:
        queue.put(body, headers={**shop.app.amqp.as_task_v2(mine, task.name, (), {}).headers, **headers})
        message = queue.get(timeout=5)
    with pytest.raises(InvalidTaskError, match=r"a message was rejected for good|invalid (ETA|expires) value"):
        AgentRequest(message, app=shop.app, task=task)


def test_time_limits_of_a_message_go_with_its_runs_doorbells(shop: Shop, mine: str) -> None:
    request = shop.forged(shop.task(pays, **KEYED), mine, ["o-1"], headers={"timelimit": [9.5, 8]})
    assert request.time_limits == [9.5, 8]
    assert headers_of(shop.row_of(mine)["message"])["timelimit"] == [9.5, 8]


@pytest.mark.parametrize("run_id", ["a\0b", "x" * 300, "x\ud800", ""], ids=["NUL", "long", "surrogate", "empty"])
def test_a_message_whose_id_no_run_can_have_is_rejected_for_good(
    shop: Shop, caplog: pytest.LogCaptureFixture, run_id: str
) -> None:
    task = shop.task(pays, **KEYED)
    request = shop.received(task, "r", ("o-1",))
    request.id = request._request_dict["id"] = run_id
    with pytest.raises(Reject) as rejected:
        shop.answered(request)
    assert rejected.value.requeue is False
    (said,) = [record for record in caplog.records if getattr(record, "action", "") == "message_rejected"]
    assert "was rejected, since its id cannot be that of a run" in said.getMessage()
    assert "task_id must be a text of 1 to 200 characters without NUL, got '" in said.getMessage()


def test_a_message_that_no_ledger_keeps_goes_back_to_the_broker(
    shop: Shop, mine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **_more: object) -> None:
        raise LedgerUnavailable("away")

    monkeypatch.setattr("agent_tasks.plain.make_run", away)
    monkeypatch.setattr("agent_tasks.answering._REQUEUE_PAUSE_SECONDS", 0)
    with pytest.raises(Reject) as rejected:
        shop.answered(shop.received(shop.task(pays, **KEYED), mine, ("o-1",)))
    assert rejected.value.requeue is True


def test_a_message_whose_run_is_written_does_not_go_back_to_the_broker(
    shop: Shop, mine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise LedgerUnavailable("away")

    monkeypatch.setattr("agent_tasks.coordinator.Coordinator.handle", away)
    assert not shop.answered(shop.received(shop.task(pays, **KEYED), mine, ("o-1",))).ended
    assert shop.row_of(mine)["due_at"] is not None  # so that the sweeper rings for it


@pytest.mark.parametrize("args", [("o-1", 2), ("r", 2), ("another", 1)])
def test_a_call_that_passes_on_the_headers_of_a_doorbell_is_a_call(
    shop: Shop, mine: str, args: tuple[str, int]
) -> None:
    def pay(order: str, cents: int) -> str:
        return f"{order} {cents}"

    task = shop.task(pay, **KEYED)
    shop.forged(task, mine, list(args), headers={RING_HEADER: 1})
    assert task.AsyncResult(mine).result == f"{args[0]} {args[1]}"


def test_a_body_does_not_see_the_engines_own_headers_and_may_pass_on_what_it_sees(shop: Shop) -> None:
    seen: list[Any] = []

    def trace(self: Any, depth: int) -> None:
        seen.append(self.request.headers)
        if depth:
            task.apply_async((depth - 1,), task_id=f"r-{depth - 1}", headers=self.request.headers)

    task = shop.task(trace, bind=True, tools=[])
    task.apply_async((1,), task_id="r-1", headers={"x_trace": "t-1"})
    for run_id in ("r-1", "r-0"):
        headers = {**headers_of(shop.row_of(run_id)["message"]), RING_HEADER: 1}
        shop.forged(task, run_id, [run_id, 1], headers=headers)
    assert [headers["x_trace"] for headers in seen] == ["t-1", "t-1"]
    assert not [name for headers in seen for name in headers if name.startswith("agent_")]


# -- revokes ----------------------------------------------------------------------------------------------------------


def fails_first(shop: Shop) -> Any:
    """A task whose run fails, and succeeds when it is resumed."""

    def pay(order: str) -> str:
        shop.requests.append(order)
        if len(shop.requests) == 1:
            raise ValueError("a bug")
        return "paid"

    return shop.task(pay, tools=[])


def heard(shop: Shop, run_id: str) -> None:
    """Let the worker's parent hear that an id is revoked."""
    worker_state.revoked.update([run_id])
    HeardRevokes.note(run_id, shop.runtime.clock.local())


def told(_shop: Shop, run_id: str) -> None:
    """Let the worker's parent be told by another worker, or by its own memory of an earlier start."""
    merge = getattr(worker_state, "merge_revoked", worker_state.revoked.update)  # Celery 5.7 has a function for it
    merge([run_id])


@pytest.mark.parametrize("learnt", [heard, told])
def test_a_revoke_from_before_a_resume_does_not_end_the_run(
    shop: Shop, caplog: pytest.LogCaptureFixture, learnt: Callable[[Shop, str], None]
) -> None:
    task = fails_first(shop)
    task.apply_async(("o-1",), task_id="r")
    run_to_its_end(shop.runtime, task.job, "r")
    learnt(shop, "r")
    shop.runtime.clock.advance(10)
    shop.run_of("r").resume(who="kim", why="the bug is mended")
    assert shop.answered(shop.doorbell(task, "r")) == Answer(ended=True, output="paid")
    assert "run r goes on although its id was revoked (revoked), since kim let it go on after that" in caplog.text


def test_a_revoke_after_a_resume_ends_the_run(shop: Shop) -> None:
    task = fails_first(shop)
    task.apply_async(("o-1",), task_id="r")
    run_to_its_end(shop.runtime, task.job, "r")
    shop.run_of("r").resume(who="kim", why="the bug is mended")
    shop.runtime.clock.advance(10)
    heard(shop, "r")
    shop.runtime.clock.advance(10)
    assert shop.answered(shop.doorbell(task, "r")).revoked == "cancelled by revoke: revoked"
    assert shop.requests == ["o-1"]


def test_a_revoke_that_another_worker_told_of_is_not_taken_for_one_after_the_resume(shop: Shop) -> None:
    """Each worker that starts lets the others forget how old their memories are."""
    task = fails_first(shop)
    task.apply_async(("o-1",), task_id="r")
    run_to_its_end(shop.runtime, task.job, "r")
    heard(shop, "r")
    shop.runtime.clock.advance(10)
    shop.run_of("r").resume(who="kim", why="the bug is mended")
    shop.runtime.clock.advance(10)
    told(shop, "r")
    assert shop.answered(shop.doorbell(task, "r")).output == "paid"


def test_a_revoke_from_before_a_person_let_a_run_go_on_does_not_end_it(shop: Shop) -> None:
    task = fails_first(shop)
    task.apply_async(("o-1",), task_id="r")
    for _ in range(shop.runtime.settings.max_crashes):
        shop.loses_its_worker(task.job, "r")
    assert shop.run_of("r").status is RunStatus.NEEDS_ATTENTION
    heard(shop, "r")
    shop.runtime.clock.advance(10)
    (item,) = shop.run_of("r").inbox()
    shop.run_of("r").resolve(item.item_id, "retry", who="kim", why="more memory now")
    shop.requests.append("counted")
    assert shop.answered(shop.doorbell(task, "r")).output == "paid"


@pytest.mark.parametrize("learnt", [heard, told])
def test_a_revoked_run_that_nobody_resumed_ends_however_the_worker_learnt_of_it(
    shop: Shop, learnt: Callable[[Shop, str], None]
) -> None:
    task = fails_first(shop)
    task.apply_async(("o-1",), task_id="r")
    learnt(shop, "r")
    assert shop.answered(shop.doorbell(task, "r")).revoked == "cancelled by revoke: revoked"
    assert shop.requests == []
