"""Observe mode: what a task in it is, and what is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, Task
from celery.bin.base import CLIContext
from click.testing import CliRunner
from sqlalchemy import select

from agent_tasks import AgentTask, AgentTasksError, OutsideRun, UnguardedTool
from agent_tasks.cli import agent, exit_codes
from agent_tasks.config import Settings
from agent_tasks.errors import ConfigurationError
from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.observing import Observer
from agent_tasks.schema import tables
from tests.apps import close
from tests.pages import worker_of

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


@pytest.fixture
def app(database_url: str) -> Iterator[Celery]:
    upgrade(database_url)
    app = Celery("observed", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(agent_database_url=database_url, agent_mode="observe")
    yield app
    if (observer := vars(app).get("_agent_tasks_observer")) is not None and observer._engine is not None:
        observer._engine.dispose()
    close(app)


def deliver(task: Any, *args: Any, task_id: str = "id-1", **kwargs: Any) -> Any:
    """Run a task as a worker does that has received its message."""
    task.push_request(id=task_id, args=args, kwargs=kwargs, called_directly=False, is_eager=False)
    try:
        return task(*args, **kwargs)
    finally:
        task.pop_request()


def counted(app: Celery) -> list[dict[str, Any]]:
    observer = Observer.of(app)
    assert observer._engine is not None
    table = tables().observed
    found = observer._boundary.read(
        observer._engine, lambda own: own.execute(select(table).order_by(table.c.call)).mappings().all()
    )
    names = ("call", "state", "starts", "after_success", "after_loss", "after_failure")
    return [{name: row[name] for name in names} for row in found]


def pay_of(app: Celery, body: Callable[..., Any] = lambda order: order, **options: Any) -> Any:
    return task_of(app, body, name="shop.pay", **options)


def task_of(app: Celery, body: Callable[..., Any], **options: Any) -> Any:
    body.__name__ = "body"  # Celery makes code of it, and a lambda has none that is a name
    return app.task(base=AgentTask, shared=False, **options)(body)


def test_an_observed_task_is_no_run_and_needs_no_effect(app: Celery) -> None:
    pay = pay_of(app)
    assert deliver(pay, "o-1") == "o-1"
    assert pay.job is None
    assert "_agent_tasks" not in vars(app)  # so no worker of it keeps leases or sweeps


def test_a_task_says_its_own_mode(app: Celery) -> None:
    with pytest.raises(UnguardedTool):
        _ = pay_of(app, agent_mode="guard").job
    app.conf.agent_mode = "guard"
    observed = task_of(app, lambda order: order, name="shop.seen", agent_mode="observe")
    assert observed.is_observed


def test_an_unknown_mode_is_refused(app: Celery) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^agent_mode of task 'shop\.pay' must be one of guard, observe, got 'observed'"
    ):
        _ = pay_of(app, agent_mode="observed").job


def test_an_unknown_mode_of_all_tasks_is_the_fault_of_the_setting(app: Celery) -> None:
    app.conf.agent_mode = "watch"
    with pytest.raises(
        ConfigurationError, match=r"^the setting agent_mode must be one of guard, observe, got 'watch'\.$"
    ):
        _ = pay_of(app).job
    with pytest.raises(
        ConfigurationError, match=r"^the setting agent_mode must be"
    ):  # also where there are only agents
        Settings.of(app)
    app.conf.agent_mode = None  # is as if it was not set
    with pytest.raises(UnguardedTool, match="neither effect= nor tools="):
        _ = task_of(app, lambda order: order, name="shop.other").job


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dedupe_on": ("nope",)}, r"dedupe_on= of task 'shop\.pay' must name its parameters \(order\), got 'nope'"),
        ({"dedupe_on": "order"}, "must be a tuple of names of its parameters, got 'order'"),
        ({"dedupe": ("order",)}, r"has no option dedupe=\. Did you mean 'dedupe_on'\?"),
        ({"time_limt": 3}, r"has no option time_limt=\. Did you mean 'time_limit'\?"),
        ({"rate_limit": "ten"}, "rate_limit= of task 'shop.pay' must be a number of messages a second"),
        ({"max_retries": None}, "Tries without an end would be a run that is stuck in silence"),
        ({"effect": "keyd"}, "Did you mean 'keyed'"),
        ({"effect": "keyed"}, "is 'keyed' and has no key_lifetime="),
        ({"effect": "read", "tools": []}, "both effect= and tools="),
        ({"tools": [len]}, "'len' is in tools= and not declared as a tool"),
        ({"tools": [], "timeout": timedelta(seconds=1)}, "and timeout=, which belongs to effect="),
        ({"name": "p" * 201}, "the name of a task with base=AgentTask must be a text of 1 to 200"),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["observe", "guard"])
def test_what_could_not_be_guarded_is_refused_where_it_is_observed(
    app: Celery, mode: str, options: dict[str, Any], said: str
) -> None:
    effect = {} if {"effect", "tools"} & options.keys() or mode == "observe" else {"effect": "read"}
    with pytest.raises(AgentTasksError, match=said):
        _ = task_of(app, lambda order: order, **{"name": "shop.pay", **effect, **options, "agent_mode": mode}).job


def test_a_lazy_body_is_refused_where_it_is_observed(app: Celery) -> None:
    async def body(order: str) -> str:
        return order

    with pytest.raises(UnguardedTool, match=r"task 'shop\.pay' must be a plain function, got async"):
        _ = pay_of(app, body).job


@pytest.mark.parametrize("late", [True, False])
def test_acks_are_as_celerys_settings_say(app: Celery, late: bool) -> None:
    app.conf.update(task_acks_late=late, task_reject_on_worker_lost=late)
    pay = pay_of(app)
    assert (bool(pay.acks_late), bool(pay.reject_on_worker_lost)) == (late, late)
    assert pay.Request == Task.Request
    assert not pay.hears_of_revokes
    own = task_of(app, lambda order: order, name="shop.own", acks_late=not late)
    assert own.acks_late is (not late)


def test_a_call_that_succeeded_and_is_begun_again_is_doubled(app: Celery) -> None:
    pay = pay_of(app, dedupe_on=("order",))
    for task_id in ("id-1", "id-2", "id-2"):
        deliver(pay, "o-1", task_id=task_id)
    deliver(pay, order="o-2")
    assert [(call["call"], call["starts"], call["after_success"]) for call in counted(app)] == [
        ("order='o-1'", 3, 2),
        ("order='o-2'", 1, 0),
    ]


@pytest.mark.parametrize("calls_super", [True, False])
def test_a_task_whose_base_class_has_a_call_of_its_own_is_counted(app: Celery, calls_super: bool) -> None:
    class InContext(AgentTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return ["in context", super().__call__(*args, **kwargs) if calls_super else self.run(*args, **kwargs)]

    pay = app.task(base=InContext, shared=False, name="shop.pay", dedupe_on=("order",))(body_that_returns)
    assert deliver(pay, "o-1") == ["in context", "o-1"]
    assert pay("o-1") == ["in context", "o-1"]
    assert [(call["call"], call["starts"]) for call in counted(app)] == [("order='o-1'", 1)]


def body_that_returns(order: str) -> str:
    return order


def test_without_dedupe_on_the_message_is_the_call(app: Celery) -> None:
    pay = pay_of(app)
    deliver(pay, "o-1", task_id="id-1")
    deliver(pay, "o-1", task_id="id-2")
    assert [(call["call"], call["after_success"]) for call in counted(app)] == [("id id-1", 0), ("id id-2", 0)]


def test_a_call_whose_process_died_and_one_that_failed_are_told_apart(app: Celery) -> None:
    raised: list[type[BaseException]] = []

    def body(order: str) -> str:
        if raised:
            raise raised.pop()
        return order

    pay = pay_of(app, body)
    for error in (KeyboardInterrupt, ValueError):
        raised.append(error)
        with pytest.raises(error):
            deliver(pay, "o-1")
    assert deliver(pay, "o-1") == "o-1"
    (call,) = counted(app)
    assert (call["state"], call["starts"], call["after_loss"], call["after_failure"]) == ("succeeded", 3, 1, 1)


def test_a_ledger_without_tables_disturbs_no_task_and_is_left_alone_for_a_while(
    postgres_database: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    app = Celery("observed", broker="memory://", set_as_current=False)
    app.conf.update(agent_database_url=postgres_database(), agent_mode="observe")
    pay = pay_of(app)
    assert [deliver(pay, "o-1"), deliver(pay, "o-2")] == ["o-1", "o-2"]
    assert caplog.text.count("task shop.pay is not observed for 30 s, and runs all the same (SchemaMissing") == 1
    observer = Observer.of(app)
    assert observer._engine is not None
    observer._engine.dispose()


def test_settings_that_cannot_be_used_disturb_no_task(caplog: pytest.LogCaptureFixture) -> None:
    app = Celery("observed", broker="memory://", set_as_current=False)
    app.conf.agent_mode = "observe"
    assert deliver(pay_of(app), "o-1") == "o-1"
    assert "agent_database_url is not set" in caplog.text


def test_what_a_call_was_made_with_may_be_anything(app: Celery) -> None:
    pay = pay_of(app, lambda order: None, dedupe_on=("order",))
    deliver(pay, "x\0\ud800" * 500)
    deliver(pay, "x\0\ud800" * 500)
    (call,) = counted(app)
    assert (call["after_success"], len(call["call"])) == (1, 400)


def test_a_call_as_a_function_and_an_eager_one_are_not_counted(app: Celery) -> None:
    pay = pay_of(app)
    assert pay("o-1") == "o-1"
    assert pay.apply(("o-1",)).get() == "o-1"
    assert "_agent_tasks_observer" not in vars(app)


def test_a_probe_may_be_declared_and_there_is_no_operation_yet(app: Celery) -> None:
    def body(self: Any, order: str) -> str:
        return str(self.operation.idempotency_key)

    pay = pay_of(app, body, bind=True)
    assert pay.probe(len) is len
    assert pay.probe(timeout=None)(len) is len
    with pytest.raises(OutsideRun, match="is only observed, and its body is no operation: agent_mode='guard'"):
        deliver(pay, "o-1")


def test_a_worker_of_an_app_that_only_observes_gives_celerys_own_results(app: Celery) -> None:
    pay = pay_of(app, lambda order: {"order": order})
    with worker_of(app):
        assert pay.delay("o-1").get(timeout=30) == {"order": "o-1"}
    assert [call["starts"] for call in counted(app)] == [1]


def test_the_report_is_lines_for_scripts_and_can_be_forgotten(app: Celery) -> None:
    pay = pay_of(app, dedupe_on=("order",))
    deliver(pay, "o-1")
    deliver(pay, "o-1")

    def run(*arguments: str) -> Any:
        context = CLIContext(app=app, no_color=True, workdir=None)
        return CliRunner().invoke(agent, ["observed", *arguments], obj=context, prog_name="agent-tasks")

    shown = run()
    assert shown.exit_code == exit_codes.OK
    assert shown.stdout.startswith("shop.pay\torder='o-1'\t2\t1\t0\t0\t20")
    assert shown.stdout.endswith("Z\t0\n")
    assert shown.stderr == (
        "shop.pay: calls: 1; begun again after success: 1, after a loss: 0, after a failure: 0; begun and not ended: 0\n"
    )
    assert run("--forget").stdout == "calls that were forgotten: 1\n"
    assert run().stderr == "Nothing was observed: no task with agent_mode='observe' has run.\n"
    AppState.of(app).runtime.engine.dispose()


def test_a_call_that_began_and_was_lost_for_good_is_shown(app: Celery) -> None:
    def body(order: str) -> str:
        if order == "o-1":
            raise KeyboardInterrupt
        return order

    pay = pay_of(app, body, dedupe_on=("order",))
    with pytest.raises(KeyboardInterrupt):
        deliver(pay, "o-1")
    deliver(pay, "o-2")
    context = CLIContext(app=app, no_color=True, workdir=None)
    shown = CliRunner().invoke(agent, ["observed"], obj=context, prog_name="agent-tasks")
    (line,) = shown.stdout.splitlines()
    assert line.split("\t")[:6] == ["shop.pay", "order='o-1'", "1", "0", "0", "0"]
    assert line.endswith("Z\t1")
    assert shown.stderr.startswith("shop.pay: calls: 2; ")
    assert shown.stderr.endswith("; begun and not ended: 1\n")
    AppState.of(app).runtime.engine.dispose()
