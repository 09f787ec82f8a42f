"""Plain tasks in one process: what is refused, what a call becomes, and how a retry is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, ClassVar

import celery
import pytest
from celery import Celery
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry
from kombu.utils import json

from agent_tasks import (
    AgentTask,
    AgentTasksError,
    CannotTell,
    DedupeConflict,
    NotHappened,
    OutsideRun,
    RunFailed,
    RunHandle,
    RunUnfinished,
    UnguardedTool,
    calls,
    cleanup,
    run_calls,
    tool,
)
from agent_tasks.cleaning import Cleaned, Kept
from agent_tasks.doorbell import RING_HEADER
from agent_tasks.enqueue import make_run
from agent_tasks.errors import ArgumentsNotStorable, ConfigurationError, InsideTransaction, RunNotFound
from agent_tasks.inline import answer_all, run_to_its_end
from agent_tasks.integration import AppState
from agent_tasks.messages import read_message
from agent_tasks.retention import Deletion
from agent_tasks.states import FINISHED, OperationStatus, RunStatus
from agent_tasks.sweeper import Sweeper
from agent_tasks.task import AgentRequest
from agent_tasks.testing import check_invariants
from checkpoint import codec
from tests.one_process import OneProcess, bound

pytestmark = pytest.mark.versions

KEYED: dict[str, Any] = {"effect": "keyed", "key_lifetime": timedelta(hours=24)}


def trace_doorbell(task: Any, run_id: str) -> None:
    """Let Celery's own tracer answer a doorbell, as in the child of a worker."""
    request = {
        "id": run_id,
        "args": [run_id, 1],
        "kwargs": {},
        "delivery_info": {RING_HEADER: 1},
        "hostname": "w",
        "is_eager": False,
    }
    build_tracer(task.name, task, app=task.app)(run_id, [run_id, 1], {}, request)


class Shop(OneProcess):
    """One process whose app keeps results."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.app.conf.result_backend = "cache+memory://"

    def task(self, body: Callable[..., Any], **options: Any) -> Any:
        options = {"base": AgentTask, "shared": False, "name": body.__name__, **options}
        body.__name__ = options["name"].rpartition(".")[2]  # Celery takes no <lambda>
        if options.get("effect") in ("keyed", "probed") and "bind" not in options:
            body, options["bind"] = bound(body), True
        return self.app.task(**options)(body)

    def row(self, run_id: str) -> Any:
        with self.runtime.engine.connect() as connection:
            return self.runtime.runs.find(connection, run_id)

    def operations(self, run_id: str) -> Any:
        with self.runtime.engine.connect() as connection:
            return self.runtime.ledger.of_run(connection, run_id)

    def finish(self, task: Any, run_id: str) -> Any:
        """Work and let time pass until a run has ended or waits for a person; return its row."""
        run_to_its_end(self.runtime, task.job, run_id)
        with self.runtime.engine.connect() as connection:
            assert check_invariants(connection) == []
        return self.row(run_id)


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    made = Shop(database_url)
    yield made
    made.close()


@pytest.fixture
def app() -> Celery:
    return Celery("declared", broker="memory://", set_as_current=False)


def output(row: Any) -> Any:
    assert row["status"] == RunStatus.SUCCEEDED, row
    return codec.loads(row["output"])


# -- declarations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"task 'pay' has base=AgentTask and neither effect= nor tools=: give it effect='keyed'"),
        ({**KEYED, "tools": []}, "both effect= and tools="),
        ({"effect": "keyd"}, "effect= of task 'pay' must be .* Did you mean 'keyed'"),
        ({"effect": "keyed"}, "task 'pay' is 'keyed' and has no key_lifetime="),
        ({"effect": "manual"}, "has no timeout="),
        ({"tools": [], "timeout": timedelta(seconds=1)}, "and timeout=, which belongs to effect="),
        ({"tools": [len]}, "task 'pay': 'len' is in tools= and not declared as a tool"),
        ({**KEYED, "dedupe_on": ("order",)}, "must name its parameters .*got 'order'. Did you mean 'order_id'"),
        ({**KEYED, "dedupe_on": "order_id"}, "must be a tuple of names of its parameters, got 'order_id'"),
        (
            KEYED,
            r"task 'pay' is 'keyed' and does not get its operation, .*send self\.operation\.idempotency_key: add bind=True",
        ),
        (
            {"effect": "probed", "timeout": timedelta(seconds=5)},
            r"task 'pay' is 'probed' and does not .*send self\.operation\.operation_id, by which the probe .*: add bind=True",
        ),
        (
            {**KEYED, "bind": False},
            r"is 'keyed' and does not get its operation.*also where an argument .* is the vendor's key",
        ),
    ],
)
def test_a_task_that_does_not_say_how_it_is_guarded_is_not_made(app: Celery, options: Any, said: str) -> None:
    def pay(order_id: str) -> None: ...

    with pytest.raises(UnguardedTool, match=said):
        app.task(base=AgentTask, name="pay", lazy=False, shared=False, **options)(pay)


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("refusd", "refused"),
        ("max_retry", "max_retries"),
        ("retry_backof", "retry_backoff"),
        ("auto_retry_for", "autoretry_for"),
        ("dedupe", "dedupe_on"),
        ("key_life_time", "key_lifetime"),
        ("timeouts", "timeout"),
    ],
)
def test_a_misspelt_option_is_refused(app: Celery, option: str, meant: str) -> None:
    def pay(order_id: str) -> None: ...

    with pytest.raises(ConfigurationError, match=f"task 'pay' has no option {option}=. Did you mean '{meant}'"):
        app.task(base=AgentTask, name="pay", lazy=False, shared=False, **KEYED, **{option: 3})(pay)


def test_a_misspelt_option_of_a_base_class_is_refused(app: Celery) -> None:
    class Payment(AgentTask):
        abstract = True
        refusd = (KeyError,)

        @property
        def refunds(self) -> int:
            return 0

    def pay(order_id: str) -> None: ...

    with pytest.raises(ConfigurationError, match=r"task 'pay' has no option refusd=\. Did you mean 'refused'"):
        app.task(base=Payment, name="pay", lazy=False, shared=False, **KEYED)(pay)
    del Payment.refusd
    made = app.task(base=Payment, name="paid", lazy=False, shared=False, bind=True, **KEYED)(bound(pay))
    assert made.refunds == 0


def test_celerys_options_and_ones_of_the_users_own_are_left_alone(app: Celery) -> None:
    def pay(order_id: str) -> None: ...

    options = {"time_limit": 9, "soft_time_limit": 8, "rate_limit": "1/s", "throws": (KeyError,), "team": "billing"}
    retries = {"autoretry_for": (KeyError,), "retry_kwargs": {"max_retries": 2}, "retry_backoff": True}
    made = app.task(base=AgentTask, name="pay", bind=True, lazy=False, shared=False, **KEYED, **options, **retries)(
        bound(pay)
    )
    assert made.team == "billing"


@pytest.mark.parametrize("limit", ["9", -1, float("nan"), True, timedelta(seconds=9)], ids=repr)
@pytest.mark.parametrize("name", ["time_limit", "soft_time_limit"])
def test_time_limits_that_no_worker_can_count_by_are_refused(app: Celery, name: str, limit: object) -> None:
    def pay(order_id: str) -> None: ...

    with pytest.raises(ConfigurationError, match=f"^{name}= of task 'pay' must be a number of seconds from 0 to"):
        app.task(base=AgentTask, name="pay", lazy=False, shared=False, **{name: limit}, **KEYED)(pay)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"acks_late": False}, "cannot have acks_late=False: its runs go on when a process dies, which rests on True"),
        ({"reject_on_worker_lost": False}, "cannot have reject_on_worker_lost=False"),
        ({"Strategy": "celery.worker.strategy:default"}, "cannot have Strategy='celery.worker.strategy:default'"),
        ({"Request": "celery.worker.request:Request"}, "derive it from agent_tasks.task.AgentRequest"),
        ({"Request": "celery.worker.request:Reqest"}, "which cannot be loaded: "),
    ],
    ids=str,
)
@pytest.mark.parametrize("annotated", [True, False])
def test_another_handling_of_messages_is_refused(
    app: Celery, option: dict[str, Any], said: str, annotated: bool
) -> None:
    app.conf.task_annotations = {"*": option} if annotated else None
    options = {} if annotated else option
    with pytest.raises(ConfigurationError, match=rf"task 'pay' .*{said}"):
        _ = app.task(base=AgentTask, name="pay", tools=[], shared=False, **options)(listed).job


def listed(items: str) -> list[str]:
    return [*items]


def test_a_request_of_the_users_own_may_know_more(app: Celery) -> None:
    class Logged(AgentRequest):
        """It writes down what came in."""

    assert app.task(base=AgentTask, name="pay", tools=[], shared=False, Request=Logged)(listed).job


def test_retries_without_an_end_are_refused(app: Celery) -> None:
    def pay(order_id: str) -> None: ...

    with pytest.raises(ConfigurationError, match=r"max_retries= of task 'pay' .*got None. Tries without an end"):
        app.task(base=AgentTask, name="pay", lazy=False, shared=False, max_retries=None, **KEYED)(pay)


def test_a_lazy_body_is_refused(app: Celery) -> None:
    async def pay(order_id: str) -> None: ...

    with pytest.raises(UnguardedTool, match="task 'pay' must be a plain function, got async"):
        app.task(base=AgentTask, name="pay", lazy=False, shared=False, **KEYED)(pay)


def test_a_probed_task_without_a_probe_is_refused_at_its_call(shop: Shop) -> None:
    refund = shop.task(lambda: None, name="shop.refund", effect="probed", timeout=timedelta(seconds=5))
    said = "^task 'shop.refund' is 'probed' and has no probe. Declare one with @refund.probe,"
    with pytest.raises(UnguardedTool, match=said):
        refund.delay()
    with pytest.raises(UnguardedTool, match=said):
        refund.job.check_ready()
    refund.probe(lambda operation: NotHappened())
    refund.job.check_ready()
    with pytest.raises(UnguardedTool, match="'step' has no effect= that a probe could be asked about"):
        shop.task(lambda: None, name="step", tools=[]).probe(print)
    with pytest.raises(UnguardedTool, match=r"the probe of task 'shop.pay' must have a timeout.* write @pay\.probe"):
        shop.task(lambda: None, name="shop.pay", **KEYED).probe(print)


def test_celerys_own_tasks_stay_plain_under_task_cls() -> None:
    app = Celery("all", broker="memory://", task_cls="agent_tasks:AgentTask", set_as_current=False)

    def body() -> None: ...

    assert app.task(name="celery.mine", lazy=False, shared=False)(body).job is None
    with pytest.raises(UnguardedTool, match="neither effect= nor tools="):
        app.task(name="pay", lazy=False, shared=False)(body)


@pytest.mark.parametrize("option", ["dedupe_key", "run_id"])
def test_a_key_of_agents_names_what_plain_tasks_have_in_its_place(shop: Shop, option: str) -> None:
    pay = shop.task(lambda: None, name="pay", tools=[])
    with pytest.raises(
        AgentTasksError, match=rf"with {option}=, which agents have.* dedupe_on=\(…\), or .* a task_id="
    ):
        pay.apply_async(**{option: "cart-42"})
    assert shop.counts()["agent_runs"] == 0


# -- calling ----------------------------------------------------------------------------------------------------------


def test_a_function_call_of_a_task_with_an_effect_is_refused_and_names_the_ways_out(shop: Shop) -> None:
    pay = shop.task(lambda order_id: order_id, name="pay", **KEYED)
    with pytest.raises(OutsideRun, match=r"Call pay.delay\(…\), or pay.unguarded\(…\)"):
        pay("o-1")
    assert pay.unguarded("o-1") == "o-1"
    assert pay.run("o-1") == "o-1"
    assert shop.task(lambda: 3, name="look", effect="read")() == 3
    assert shop.task(lambda: 4, name="step", tools=[])() == 4


def test_unguarded_hands_a_bound_body_its_task_and_no_operation(shop: Shop) -> None:
    named = shop.task(lambda self, order_id: f"{self.name} {order_id}", name="named", bind=True, **KEYED)
    assert named.unguarded("o-1") == "named o-1"
    keyed = shop.task(lambda self: self.operation.idempotency_key, name="keyed", bind=True, **KEYED)
    with pytest.raises(OutsideRun, match=r"self.operation of task 'keyed' exists only .* \.unguarded\(…\) has none"):
        keyed.unguarded()


def test_the_operation_exists_in_the_body_only(shop: Shop) -> None:
    def pay(self: Any) -> Any:
        return self.operation.idempotency_key, inner.apply().get()

    def inner(self: Any) -> str:
        with pytest.raises(OutsideRun, match="exists only while its body runs"):
            self.operation  # noqa: B018
        return "none"

    pay, inner = shop.task(pay, bind=True, **KEYED), shop.task(inner, bind=True, tools=[])
    key, there = pay.apply().get()
    assert key.startswith("op_")
    assert there == "none"
    with pytest.raises(OutsideRun):
        pay.operation  # noqa: B018


class InContext(AgentTask):
    """As the documentation of Flask has it: whatever runs, runs in the app's context."""

    abstract = True
    inside: ClassVar[list[Any]] = []
    calls_super = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.inside.append(args)
        return super().__call__(*args, **kwargs) if self.calls_super else self.run(*args, **kwargs)


@pytest.fixture(params=[True, False], ids=["super", "run"])
def base(request: pytest.FixtureRequest) -> type[InContext]:
    return type("Base", (InContext,), {"abstract": True, "inside": [], "calls_super": request.param})


@pytest.mark.parametrize("options", [KEYED, {"tools": []}], ids=["effect", "tools"])
def test_a_call_of_the_users_own_class_is_around_the_body_and_answers_no_doorbell(
    shop: Shop, base: type[InContext], options: dict[str, Any]
) -> None:
    done: list[str] = []
    pay = shop.task(lambda self, order: done.append(order) or order, name="pay", base=base, bind=True, **options)
    called = pay.delay("o-1")
    for _ in range(2):
        trace_doorbell(pay, called.id)
    assert output(shop.row(called.id)) == called.get(timeout=0) == "o-1"
    assert base.inside == [("o-1",)]
    assert done == ["o-1"]
    assert pay.apply(("o-2",)).get() == "o-2"
    assert pay.unguarded("o-3") == "o-3"
    assert base.inside == [("o-1",), ("o-2",), ("o-3",)]


def test_a_body_in_a_call_of_the_users_own_class_may_not_call_its_task_as_a_function(
    shop: Shop, base: type[InContext]
) -> None:
    pay = shop.task(lambda self, order: pay(order), name="pay", base=base, bind=True, **KEYED, refused=(OutsideRun,))
    with pytest.raises(OutsideRun, match="was called as a function"):
        pay.apply(("o-1",)).get()
    assert base.inside == [("o-1",)]


class Closed(AgentTask):
    abstract = True
    seen: ClassVar[list[Any]] = []

    def before_start(self, task_id: str, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.seen.append((task_id, args, kwargs))
        if args == ["closed"]:
            raise PermissionError("closed")


@pytest.mark.parametrize("options", [KEYED, {"tools": []}], ids=["effect", "tools"])
def test_what_is_raised_before_the_body_ends_the_run_and_no_more_than_that(shop: Shop, options: dict[str, Any]) -> None:
    base = type("Base", (Closed,), {"abstract": True, "seen": []})
    pay = shop.task(lambda self, order: order, name="pay", base=base, bind=True, **options)
    opened, closed = pay.delay("o-1"), pay.delay("closed")
    for each in (opened, closed, opened, closed):
        trace_doorbell(pay, each.id)
    assert opened.get(timeout=0) == "o-1"
    with pytest.raises(PermissionError, match="closed"):
        closed.get(timeout=0)
    assert shop.row(closed.id)["status"] == RunStatus.FAILED
    assert shop.operations(closed.id) == []
    assert base.seen == [(opened.id, ["o-1"], {}), (closed.id, ["closed"], {})]


@pytest.mark.parametrize(
    "said", [Ignore("no"), Reject("no", requeue=True), Retry("no")], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("listed", [True, False])
def test_what_celery_takes_for_a_word_about_the_message_is_a_failure_of_the_run(
    shop: Shop, said: Exception, listed: bool
) -> None:
    def pay() -> None:
        raise said

    pay = shop.task(pay, tools=[], throws=(type(said),) if listed else ())
    called = pay.delay()
    for _ in range(2):
        trace_doorbell(pay, called.id)
        with pytest.raises(RunFailed, match=rf"failed: celery\.exceptions\.{type(said).__name__}: "):
            called.get(timeout=0)
    with pytest.raises(RunFailed):
        pay.apply().get()
    assert shop.row(called.id)["due_at"] is None


def test_an_eager_call_has_an_id_that_a_real_one_may_have(shop: Shop) -> None:
    pay = shop.task(lambda order: order, name="pay", **KEYED)
    shop.app.conf.task_always_eager = True
    for call in (pay.apply_async, pay.apply):
        assert call(("o-1",), task_id="x" * 200).get() == "o-1"
        for wrong in ("a\0", "x" * 201):
            with pytest.raises(AgentTasksError, match="task_id must be a text of 1 to 200 characters without NUL"):
                call(("o-1",), task_id=wrong).get()


def test_a_tool_that_is_not_listed_raises_at_the_call(shop: Shop) -> None:
    mail = tool(effect="read", name="mail")(lambda: None)
    offer = shop.task(lambda: mail() or 1, name="offer", tools=[])
    called = offer.apply()
    assert isinstance(called.result, AgentTasksError)
    assert "tool 'mail' was called in step 'run' and is not in tools= of task 'offer'" in str(called.result)


def test_both_forms_of_a_call_are_the_same_job(shop: Shop) -> None:
    def pay(order_id: str, cents: int = 3) -> None: ...

    pay = shop.task(pay, dedupe_on=("order_id",), **KEYED)
    first = pay.delay("o-1", cents=3)
    assert pay.delay(order_id="o-1").id == first.id
    assert shop.row(first.id)["dedupe_key"] == "order_id='o-1'"
    with pytest.raises(DedupeConflict, match=r"dedupe key .* of task 'pay', which was started with another input"):
        pay.delay("o-1", 4)
    assert pay.delay("o-2").id != first.id


def test_a_long_or_odd_dedupe_key_is_a_digest(shop: Shop) -> None:
    def pay(order_id: Any) -> None: ...

    pay = shop.task(pay, dedupe_on=("order_id",), **KEYED)
    for order_id in ("x" * 300, {"id": 1}):
        called = pay.delay(order_id)
        assert len(shop.row(called.id)["dedupe_key"]) == len(codec.digest(1))
        assert pay.delay(order_id).id == called.id


def test_a_second_call_that_is_known_by_an_id_of_its_own_ends_as_the_first_does(shop: Shop) -> None:
    asked: list[str] = []

    def pay(order_id: str) -> int:
        asked.append(order_id)
        return len(asked)

    pay = shop.task(pay, dedupe_on=("order_id",), **KEYED)
    first = pay.delay("o-1")
    second = pay.apply_async(("o-1",), task_id="of-a-chain")
    assert (second.id, pay.apply_async(("o-1",), task_id="of-a-chain").id) == ("of-a-chain", "of-a-chain")
    with_callback = pay.apply_async(("o-1",), link=pay.si("o-2"))
    assert with_callback.id != first.id
    for run_id in (second.id, with_callback.id, first.id):
        assert output(shop.finish(pay, run_id)) == 1
    assert asked == ["o-1"]


def test_the_job_of_a_dedupe_key_is_not_deleted_before_a_call_that_ends_as_it_did_has_ended(shop: Shop) -> None:
    asked: list[str] = []

    def pay(order_id: str) -> int:
        asked.append(order_id)
        return len(asked)

    pay = shop.task(pay, dedupe_on=("order_id",), **KEYED)
    for order_id in ("o-1", "o-2"):
        first = pay.apply_async((order_id,), task_id=f"first {order_id}", ignore_result=True)
        shop.finish(pay, first.id)
    pay.apply_async(("o-1",), task_id="later", countdown=3 * 86400, ignore_result=True)
    shop.runtime.clock.advance(2 * 86400)
    dry = cleanup(shop.app, older_than=timedelta(0), dry_run=True)
    kept = (Kept(1, "a later call of the same job waits for its end"),)
    assert (
        dry == cleanup(shop.app, older_than=timedelta(0)) == Cleaned(1, kept=kept)
    )  # nobody waits for the other order's
    assert shop.row("first o-2") is None
    assert output(shop.finish(pay, "later")) == 1
    assert asked == ["o-1", "o-2"]
    shop.runtime.clock.advance(1)
    assert cleanup(shop.app, older_than=timedelta(0)) == Cleaned(2)


@pytest.mark.parametrize("is_known", [False, True], ids=["a new call", "a call that came again"])
def test_a_call_whose_dedupe_job_is_deleted_while_it_is_made_is_the_job_itself(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    asked: list[str] = []

    def pay(order_id: str) -> int:
        asked.append(order_id)
        return len(asked)

    pay = shop.task(pay, dedupe_on=("order_id",), **KEYED)
    pay.apply_async(("o-1",), task_id="first", ignore_result=True)
    shop.finish(pay, "first")
    if is_known:
        pay.apply_async(("o-1",), task_id="second", ignore_result=True)
        shop.finish(pay, "second")
    shop.runtime.clock.advance(2 * 86400)
    deleted: list[Cleaned] = []

    def make_too_late(*args: Any, follows: str | None = None, **values: Any) -> Any:
        if follows is not None:
            deleted.append(cleanup(shop.app, older_than=timedelta(0)))
        return make_run(*args, follows=follows, **values)

    monkeypatch.setattr("agent_tasks.plain.make_run", make_too_late)
    pay.apply_async(("o-1",), task_id="second", ignore_result=True)
    assert deleted == [Cleaned(2 if is_known else 1)]
    assert output(shop.finish(pay, "second")) == 2  # its key was free again
    assert shop.row("second")["dedupe_key"] == "order_id='o-1'"


def test_the_job_of_a_dedupe_key_cannot_be_deleted_while_a_call_is_made_that_ends_as_it_did(
    postgres_database: Callable[[], str],
) -> None:
    shop = Shop(postgres_database())
    try:
        pay = shop.task(lambda: 1, name="pay", **KEYED)
        pay.apply_async(task_id="first", ignore_result=True)
        shop.finish(pay, "first")
        shop.runtime.clock.advance(2 * 86400)
        with shop.runtime.engine.connect() as maker, maker.begin():
            assert shop.runtime.runs.keep(maker, "first")
            with shop.runtime.engine.connect() as rival, rival.begin():
                assert shop.runtime.retention.delete(rival, "first", 0) is Deletion.HELD
        with shop.runtime.engine.connect() as rival, rival.begin():
            assert shop.runtime.retention.delete(rival, "first", 0) is Deletion.DONE
    finally:
        shop.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"routing_key": "a"}, "routing_key=, which cannot be honoured"),
        ({"countdwn": 3}, r"countdwn=, which is no option of a call\. Nothing was sent\. Did you mean 'countdown'\?$"),
        (
            {"ledger_conection": 3},
            r"ledger_conection=, which is no option of a call\. .*Did you mean 'ledger_connection'\?$",
        ),
        ({"exchange": "a"}, "exchange=, which cannot be honoured"),
        ({"foo": "a"}, "foo=, which cannot be honoured"),
        ({"retries": 2}, "retries=, which"),
        ({"priority": -1}, "priority of task 'pay' must be a whole number"),
        ({"task_id": "ü" * 150}, "task_id must be a text of at most 255 bytes in UTF-8"),
        ({"queue": "ü" * 150}, "the queue of run '.*' must be a text of at most 255 bytes in UTF-8"),
        (
            {"headers": {"x": float("nan")}},
            "task 'pay': its headers and stamps cannot be sent by every broker, so no run",
        ),
        ({"headers": {"x": [-float("inf")]}}, "cannot be sent by every broker"),
        ({"headers": {"x": 2**64}}, "cannot be sent by every broker"),
        ({"headers": {"x" * 300: 1}}, "cannot be sent by every broker"),
        ({"headers": {"x": "y" * 70_000}}, "they have 70[0-9]{3} bytes, 65536 at the most fit beside a doorbell"),
        ({"time_limit": "9"}, r"^time_limit= of task 'pay' must be .* got '9'\. Nothing was sent\.$"),
        ({"soft_time_limit": 10**400}, r"^soft_time_limit= of task 'pay' must be a number of seconds .* Nothing was"),
        ({"task_id": "x" * 300}, "task_id must be a text of 1 to 200 characters"),
        ({"link": celery.signature("a", args=(object(),))}, "an argument of its callbacks"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused(shop: Shop, options: Any, said: str) -> None:
    pay = shop.task(lambda: None, name="pay", **KEYED)
    with pytest.raises(AgentTasksError, match=said):
        pay.apply_async(**options)
    assert shop.counts()["agent_runs"] == 0


def test_arguments_that_do_not_fit_or_cannot_be_stored_make_no_run(shop: Shop) -> None:
    pay = shop.task(lambda order_id: None, name="pay", **KEYED)
    with pytest.raises(TypeError, match=r"^pay\(\) missing a required argument: 'order_id'$"):
        pay.delay()
    with pytest.raises(
        ArgumentsNotStorable,
        match=r"^argument 'order_id' of task 'pay' cannot be stored, so no run was made: an object has no",
    ):
        pay.delay(object())
    with pytest.raises(
        ArgumentsNotStorable, match=r"^\['a'\]\[1\] in argument 'order_id' of task 'pay' cannot be stored, so"
    ):
        pay.delay(order_id={"a": [1, object()]})
    assert shop.counts()["agent_runs"] == 0


def test_arguments_that_do_not_fit_name_a_bind_that_is_missing_or_too_much(shop: Shop) -> None:
    unbound = shop.task(lambda self, order_id: None, name="unbound", tools=[])
    with pytest.raises(
        TypeError, match=r"^unbound\(\) missing .*'order_id'. Its first parameter is 'self': bind=True is"
    ):
        unbound.delay("o-1")
    forgets_self = shop.task(lambda order_id: None, name="bound", bind=True, **KEYED)
    with pytest.raises(
        TypeError, match=r"too many positional arguments. With bind=True the first .*'order_id', is the task"
    ):
        forgets_self.delay("o-1")


def test_what_a_body_does_to_its_arguments_reaches_nobody(shop: Shop) -> None:
    def pay(self: Any, cart: list[str]) -> int:
        cart.append("more")
        if not self.request.retries:
            raise self.retry(countdown=1)
        return len(cart)

    pay = shop.task(pay, bind=True, **KEYED)
    called = pay.delay(["tea"])
    assert output(shop.finish(pay, called.id)) == 2
    assert shop.operations(called.id)[0].args == {"cart": ["tea"]}


def test_callbacks_have_their_ids_from_the_start(shop: Shop) -> None:
    pay = shop.task(lambda what=None: what, name="pay", **KEYED)
    callback = pay.s()
    called = pay.apply_async(link=[callback, celery.group([pay.s(), pay.s()], app=shop.app)], chain=[pay.s()])
    message = read_message(shop.row(called.id)["message"])
    ids = [message.callbacks[0]["options"]["task_id"], message.chain[0]["options"]["task_id"]]
    ids += [each["options"]["task_id"] for each in message.callbacks[1]["kwargs"]["tasks"]]
    assert len(set(ids)) == 4
    assert "task_id" not in callback.options
    assert message.calls_something
    assert message.is_awaited
    assert json.loads(json.dumps(message.headers)) == message.headers


def test_an_end_that_celery_has_not_heard_of_is_rung_for_less_and_less(shop: Shop) -> None:
    pay = shop.task(lambda: 1, name="pay", **KEYED)
    called = pay.delay()
    bell = shop.runtime.bell
    answer_all(shop.runtime, pay.job)
    assert shop.row(called.id)["keeps_result"] == 1
    waits = []
    for _ in range(4):
        found = shop.row(called.id)
        waits.append((found["due_at"] - found["now"]) / 1e6)
        shop.runtime.clock.advance(waits[-1] + 0.01)
        assert Sweeper(shop.runtime).sweep().rung == 1
        assert (bell.rings[0].run_id, bell.rings[0].task) == (called.id, "pay")
        bell.rings.clear()
    assert waits == sorted(waits)
    assert waits[-1] > 2 * waits[0]
    finished_at = shop.row(called.id)["finished_at"]
    with shop.runtime.engine.connect() as connection, connection.begin():
        shop.runtime.decisions.result_stored(connection, called.id, finished_at=finished_at)
    assert shop.row(called.id)["due_at"] is None
    unheard = pay.apply_async(ignore_result=True)
    answer_all(shop.runtime, pay.job)
    assert shop.row(unheard.id)["due_at"] is None


# -- retries ----------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """The vendor says no."""


GUARDS: dict[str, dict[str, Any]] = {
    "read": {},
    "repeatable": {"why": "sets a value"},
    "transactional": {},
    "keyed": {"key_lifetime": timedelta(hours=24)},
    "probed": {"timeout": timedelta(seconds=10), "settle": timedelta(seconds=20)},
    "manual": {"timeout": timedelta(seconds=10), "settle": timedelta(seconds=20)},
}


def retried(shop: Shop, effect: str, error: Exception, **options: Any) -> tuple[Any, list[int]]:
    """A task of an effect whose body asks for a retry with an error, the first time."""
    seen: list[int] = []

    def pay(self: Any) -> int:
        seen.append(self.request.retries)
        if self.request.retries == 0:
            raise self.retry(exc=error, countdown=5)
        return len(seen)

    task = shop.task(pay, bind=True, effect=effect, refused=(Refused,), **GUARDS[effect], **options)
    if effect == "probed":
        task.probe(lambda operation: NotHappened())
    return task, seen


@pytest.mark.parametrize("effect", GUARDS)
def test_a_retry_after_a_refusal_runs_the_body_again_after_its_pause(shop: Shop, effect: str) -> None:
    pay, seen = retried(shop, effect, Refused("no"))
    called = pay.delay()
    answer_all(shop.runtime, pay.job)
    row = shop.row(called.id)
    assert (row["status"], row["retries"]) == (RunStatus.WAITING, 1)
    assert 4 < (row["due_at"] - row["now"]) / 1e6 <= 5
    assert [operation.status for operation in shop.operations(called.id)] in ([], [OperationStatus.PENDING])
    assert output(shop.finish(pay, called.id)) == 2
    assert seen == [0, 1]


@pytest.mark.parametrize(
    ("effect", "status", "pause"),
    [
        ("keyed", OperationStatus.UNKNOWN, 5),
        ("probed", OperationStatus.UNKNOWN, 30),
        ("manual", OperationStatus.UNKNOWN, 30),
    ],
)
def test_a_retry_after_a_doubt_settles_the_doubt_first(shop: Shop, effect: str, status: Any, pause: int) -> None:
    pay, seen = retried(shop, effect, ConnectionError("reset"))
    called = pay.delay()
    answer_all(shop.runtime, pay.job)
    row = shop.row(called.id)
    assert (row["status"], row["retries"]) == (RunStatus.WAITING, 1)
    assert pause - 2 < (row["due_at"] - row["now"]) / 1e6 <= pause
    assert shop.operations(called.id)[0].status is status
    row = shop.finish(pay, called.id)
    if effect == "manual":
        assert row["status"] == RunStatus.NEEDS_ATTENTION
        assert seen == [0]
    else:
        assert output(row) == 2
        assert seen == [0, 1]


@pytest.mark.parametrize("effect", ["read", "repeatable", "transactional"])
def test_used_up_retries_end_as_celerys_do(shop: Shop, effect: str) -> None:
    def pay(self: Any, kind: str) -> None:
        if kind == "own":
            raise self.retry(exc=LookupError("gone"), countdown=1, max_retries=1)
        self.retry(countdown=1)

    pay = shop.task(pay, bind=True, effect=effect, max_retries=2, **GUARDS[effect])
    with pytest.raises(LookupError, match="gone"):
        pay.apply(("own",)).get()
    with pytest.raises(MaxRetriesExceededError, match=r"Can't retry pay\["):
        pay.apply(("bare",)).get()
    called = pay.delay("bare")
    assert shop.finish(pay, called.id)["retries"] == 2


def test_celerys_wrapper_for_automatic_retries_finds_what_it_needs(shop: Shop) -> None:
    seen: list[int] = []

    def pay(self: Any) -> int:
        seen.append(self.request.retries)
        if len(seen) < 4:
            raise ConnectionError("reset")
        return len(seen)

    options = {"autoretry_for": (ConnectionError,), "retry_backoff": 4, "retry_jitter": False, "max_retries": 3}
    pay = shop.task(pay, bind=True, tools=[], **options)
    called = pay.delay()
    waits = []
    while shop.row(called.id)["status"] not in FINISHED:
        answer_all(shop.runtime, pay.job)
        row = shop.row(called.id)
        if row["status"] == RunStatus.WAITING:
            waits.append(round((row["due_at"] - row["now"]) / 1e6))
            shop.later(pay.job, waits[-1] + 1)
    assert seen == [0, 1, 2, 3]
    assert waits == [4, 8, 16]


def test_a_retry_makes_the_refused_call_of_a_tool_again_and_no_other(shop: Shop) -> None:
    calls: list[str] = []

    @tool(effect="manual", timeout=timedelta(seconds=5), name="charge")
    def charge() -> int:
        calls.append("charge")
        return 1

    @tool(effect="manual", timeout=timedelta(seconds=5), name="mail", refused=(Refused,))
    def mail() -> int:
        calls.append("mail")
        if calls.count("mail") == 1:
            raise Refused("not now")
        return 2

    def buy(self: Any) -> int:
        try:
            return charge() + mail()
        except Refused as refused:
            raise self.retry(exc=refused) from refused

    buy = shop.task(buy, bind=True, tools=[charge, mail], default_retry_delay=7)
    assert output(shop.finish(buy, buy.delay().id)) == 3
    assert calls == ["charge", "mail", "mail"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"args": ("other",)}, "with other arguments, which is another run"),
        ({"throw": False}, "with throw=False"),
        ({"queue": "slow"}, "with queue=: it goes to the same queue"),
        ({"exc": "reset"}, "with an exc= of str: it must be an exception, or a class of one"),
        ({"exc": KeyboardInterrupt()}, "with an exc= of KeyboardInterrupt"),
        ({"countdown": float("nan")}, "cannot be retried at nan: countdown= must be a number of seconds"),
    ],
)
def test_what_a_retry_cannot_do_is_refused(shop: Shop, asked: Any, said: str) -> None:
    def pay(self: Any, order_id: str) -> None:
        self.retry(**asked)

    pay = shop.task(pay, bind=True, effect="read")
    with pytest.raises(AgentTasksError, match=said):
        pay.apply(("o-1",)).get()


def test_a_retry_takes_a_class_of_exceptions_as_raise_does(shop: Shop) -> None:
    def pay(self: Any) -> None:
        self.retry(exc=LookupError, countdown=0, max_retries=1)

    pay = shop.task(pay, bind=True, effect="read")
    called = pay.delay()
    trace_doorbell(pay, called.id)
    assert (called.state, type(called.result)) == ("RETRY", LookupError)
    assert shop.finish(pay, called.id)["status"] == RunStatus.FAILED


def test_a_retry_outside_of_a_worker_raises_what_it_was_given(shop: Shop) -> None:
    pay = shop.task(lambda: None, name="pay", **KEYED)
    with pytest.raises(LookupError):
        pay.retry(exc=LookupError("gone"))
    with pytest.raises(Retry):
        pay.retry()


class Odd(Exception):
    """An exception that neither Python nor the task's declaration names."""


@pytest.mark.parametrize(
    "how", [*(effect for effect in GUARDS if effect not in ("keyed", "probed", "manual")), "tools"]
)
def test_an_eager_call_raises_what_its_body_raised(shop: Shop, how: str) -> None:
    def pay() -> None:
        raise Odd("o-1: 3")

    pay = shop.task(pay, **({"tools": []} if how == "tools" else {"effect": how, **GUARDS[how]}))
    called = pay.apply()
    assert called.state == "FAILURE"
    assert (type(called.result), str(called.result)) == (Odd, "o-1: 3")
    shop.app.conf.update(task_always_eager=True, task_eager_propagates=True)
    with pytest.raises(Odd, match="o-1: 3"):
        pay.delay()


def test_an_eager_call_that_is_refused_raises_the_refusal(shop: Shop) -> None:
    def pay() -> None:
        raise Refused("no")

    for effect in ("keyed", "manual"):
        pay_so = shop.task(pay, name=f"pay_{effect}", effect=effect, refused=(Refused,), **GUARDS[effect])
        assert isinstance(pay_so.apply().result, Refused)


@pytest.mark.parametrize("effect", ["keyed", "probed", "manual"])
def test_an_eager_call_that_needs_a_person_says_so_and_because_of_what(shop: Shop, effect: str) -> None:
    def mail() -> None:
        raise Odd("o-1: 3")

    mail = shop.task(mail, effect=effect, **GUARDS[effect])
    if effect == "probed":
        mail.probe(lambda operation: CannotTell("no list today"))
    with pytest.raises(RunUnfinished, match="a person is asked: unknown about mail") as asked:
        mail.apply().get()
    assert isinstance(asked.value.__cause__, Odd)


def test_an_eager_call_whose_vendor_puts_it_off_for_ever_ends(shop: Shop) -> None:
    class Later(Exception):
        retry_after_seconds = 60

    def look() -> None:
        raise Later("busy")

    look = shop.task(look, effect="read")
    with pytest.raises(RunUnfinished, match="it waits: to call look again in 60 s"):
        look.apply().get()


def test_messages_about_the_body_of_a_task_call_it_a_task(shop: Shop) -> None:
    def pay() -> None:
        raise Odd("o-1: 3")

    pay = shop.task(pay, effect="read")
    called = pay.delay()
    row = shop.finish(pay, called.id)
    assert "task 'pay' failed: " in str(pay.job.failure(row, None))
    assert repr(pay.job.tool) == "<task pay effect=read>"

    def move(self: Any) -> None:
        self.operation.connection.commit()

    move = shop.task(move, bind=True, effect="transactional")
    with pytest.raises(InsideTransaction, match="the body of transactional task 'move' ended the transaction"):
        move.apply().get()


def test_a_call_leads_to_the_handle_of_its_run(shop: Shop) -> None:
    pay = shop.task(lambda: 1, name="shop.pay", **KEYED)
    called = pay.delay()
    run = pay.run_handle(called)
    assert run == pay.run_handle(called.id) == RunHandle(shop.runtime, called.id)
    assert run.status is RunStatus.QUEUED
    assert run.cancel(who="kim", why="not needed any more")
    other = shop.task(lambda: 1, name="shop.other", **KEYED)
    for strange in (called, "nobody"):
        with pytest.raises(RunNotFound, match=r"task 'shop\.other' has no run"):
            other.run_handle(strange)


def test_a_definition_is_known_to_its_app(shop: Shop) -> None:
    pay = shop.task(lambda: None, name="shop.pay", **KEYED)
    assert pay.job is AppState.of(shop.app).agents["shop.pay"]


# -- batches ------------------------------------------------------------------------------------------------------------------


@tool(effect="keyed", key_lifetime=timedelta(hours=24), bind=False)
def shout(word: str) -> str:
    return word.upper()


def test_the_body_of_a_plain_task_makes_calls_together_and_returns_none_that_have_not_happened(shop: Shop) -> None:
    def together(words: str) -> Any:
        return run_calls([shout.call(word) for word in words])

    def later(words: str) -> Any:
        return calls([shout.call(word) for word in words], then=together)

    made = shop.task(together, tools=[shout]).apply_async(args=["ab"], task_id="run-1")
    assert made.id == "run-1"
    assert codec.loads(shop.finish(shop.app.tasks["together"], "run-1")["output"]) == ["A", "B"]

    refused = shop.task(later, tools=[shout])
    refused.apply_async(args=["ab"], task_id="run-2")
    row = shop.finish(refused, "run-2")
    assert "a plain task has no next step" in codec.loads(row["error"])["text"]
    assert shop.operations("run-2") == []
