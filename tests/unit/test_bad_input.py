"""Bad input, a row a case: what is said, and that nothing was written and nothing was sent but what the row names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from agent_tasks import (
    Agent,
    AgentTask,
    AgentTasksError,
    DedupeConflict,
    Happened,
    OutsideRun,
    RunFailed,
    RunUnfinished,
    UnguardedTool,
    done,
    fail,
    tool,
)
from agent_tasks.config import Settings
from agent_tasks.errors import (
    AgentNameTaken,
    ArgumentsNotStorable,
    ConfigurationError,
    LedgerUnavailable,
    SchemaMissing,
    SingleHostOnly,
    UnknownStep,
)
from tests.agents import new_app
from tests.one_process import OneProcess

SECONDS = timedelta(seconds=10)

#: What a run leaves behind that never got beyond its input.
RUN_ONLY = {"agent_runs": 1, "agent_checkpoint_heads": 1, "agent_checkpoint_checkpoints": 1}


@dataclass
class Case:
    """One row.

    Args:
        name: what is wrong.
        act: does it.
        error: what is raised.
        message: a regular expression that the text of the error fits.
        written: rows that are there afterwards, by table; the other tables are empty.
        requests: what the outside world was asked to do.
        run_status: of run-1 afterwards, where there is one.
        operations: the statuses of its operations.
        questions: what a person is asked.
        migrated: False for a database without tables.
    """

    name: str
    act: Callable[[OneProcess], object]
    error: type[Exception]
    message: str
    written: dict[str, int] = field(default_factory=dict)
    requests: list[Any] = field(default_factory=list)
    run_status: str | None = None
    operations: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    migrated: bool = True


# -- declarations -------------------------------------------------------------------------------------------------------


def declared(**declaration: Any) -> Callable[[OneProcess], object]:
    """Declare a tool `charge`."""

    def act(here: OneProcess) -> object:
        @tool(**declaration)
        def charge(cents: int) -> None:
            here.requests.append(cents)

        return here.agent(charge)

    return act


def probe_without_timeout(_here: OneProcess) -> object:
    @tool(effect="keyed", key_lifetime=SECONDS, bind=False)
    def charge(cents: int) -> None: ...

    return charge.probe(lambda _operation: None)


def two_agents(here: OneProcess) -> object:
    here.agent(name="order")
    return here.agent(name="order")


def named_as_a_shared_task(here: OneProcess) -> object:
    @new_app().task(base=AgentTask, tools=[], name="order")
    def order() -> None: ...

    here.app.finalize()
    return here.agent(name="order")


def two_tools(here: OneProcess) -> object:
    first, second = (tool(effect="read", name="price")(lambda: 1) for _ in range(2))
    return here.agent(first, second)


def two_starts(here: OneProcess) -> object:
    agent = here.agent(create=lambda _state: done())
    return agent.step(lambda _state: done(), name="again", start=True)


def two_steps(here: OneProcess) -> object:
    agent = here.agent(create=lambda _state: done())
    return agent.step(lambda _state: done(), name="create")


async def asynchronous(_state: Any) -> Any: ...


async def asynchronous_generator(_state: Any) -> Any:
    yield


def plain_function(here: OneProcess) -> object:
    def charge() -> None: ...

    return here.agent(charge)


def bare_tool(here: OneProcess) -> object:
    @tool
    def charge(cents: int) -> None:
        here.requests.append(cents)

    return charge


# -- settings -----------------------------------------------------------------------------------------------------------


def with_settings(broker: str = "memory://", **settings: Any) -> Callable[[OneProcess], object]:
    """Enqueue on an app with these settings."""

    def act(here: OneProcess) -> object:
        app = Celery("other", broker=broker, set_as_current=False)
        app.conf.update({"agent_database_url": here.url, **settings})
        agent = Agent("order", app=app)
        agent.step(lambda _state: done(), name="create")
        return agent.enqueue({})

    return act


def network_broker_with_sqlite(here: OneProcess) -> object:
    return with_settings("redis://localhost:1/0", agent_database_url="sqlite:///never-made.db")(here)


# -- enqueue ------------------------------------------------------------------------------------------------------------


def enqueued(state: Any = None, **options: Any) -> Callable[[OneProcess], object]:
    return lambda here: here.agent(create=lambda _state: done()).enqueue({} if state is None else state, **options)


def no_start(here: OneProcess) -> object:
    agent = here.agent()
    agent.step(lambda _state: done(), name="create")
    agent.step(lambda _state: done(), name="pay")
    return agent.enqueue({})


def same_dedupe_key(here: OneProcess) -> object:
    agent = here.agent(create=lambda _state: done())
    agent.enqueue({"cart": 1}, run_id="run-1", dedupe_key="cart")
    return agent.enqueue({"cart": 2}, dedupe_key="cart")


def same_run_id(here: OneProcess) -> object:
    agent = here.agent(create=lambda _state: done())
    agent.enqueue({"cart": 1}, run_id="run-1")
    return agent.enqueue({"cart": 2}, run_id="run-1")


def down(url: str) -> Callable[[OneProcess], object]:
    def act(here: OneProcess) -> object:
        app = Celery("other", broker="memory://", set_as_current=False)
        app.conf.agent_database_url = url
        agent = Agent("order", app=app)
        agent.step(lambda _state: done(), name="create")
        return agent.enqueue({})

    return act


def down_on_disk(here: OneProcess) -> object:
    return down("sqlite:////no-such-folder/agent.db")(here)


# -- in a run -----------------------------------------------------------------------------------------------------------


def stepping(step: Callable[[OneProcess], Any]) -> Callable[[OneProcess], object]:
    """Run an agent whose only step does this, and ask for its output."""

    def act(here: OneProcess) -> object:
        agent = here.agent(charging(here), create=lambda _state: step(here))
        return here.run(agent).get(timeout=0)

    return act


def charging(here: OneProcess, returns: Any = "charged") -> Any:
    @tool(effect="manual", timeout=SECONDS)
    def charge(cents: Any) -> Any:
        here.requests.append(cents)
        return returns

    here.charge = charge  # type: ignore[attr-defined]
    return charge


def charge_in_step(cents: Any) -> Callable[[OneProcess], Any]:
    return lambda here: done(here.charge(cents))  # type: ignore[attr-defined]


def stepping_on(change: Callable[[Any], object]) -> Callable[[OneProcess], object]:
    """Run an agent whose first step changes the state so, and goes on."""

    def act(here: OneProcess) -> object:
        def create(state: Any) -> Any:
            change(state)
            return agent.steps["pay"]

        agent = here.agent(create=create, pay=lambda _state: done())
        return here.run(agent).get(timeout=0)

    return act


def state_left(value: Any) -> Callable[[OneProcess], object]:
    return stepping_on(lambda state: state.update(cart=value))


def unknown_step(here: OneProcess) -> object:
    def pya(_state: Any) -> Any: ...

    agent = here.agent(create=lambda _state: pya, pay=lambda _state: done())
    return here.run(agent).get(timeout=0)


def returning(returned: Any) -> Callable[[OneProcess], object]:
    """Run an agent whose first step returns this; its other steps are pay and look-up, a function of another name."""

    def act(here: OneProcess) -> object:
        def look_up(_state: Any) -> Any: ...

        def pay(_state: Any) -> Any: ...

        agent = here.agent(create=lambda _state: returned, pay=pay, **{"look-up": look_up})
        return here.run(agent).get(timeout=0)

    return act


def calls_unlisted(here: OneProcess) -> object:
    return here.run(here.agent(create=lambda _state: done(charging(here)(100)))).get(timeout=0)


def calls_unlisted_read(here: OneProcess) -> object:
    price = tool(effect="read", record=False, name="price")(lambda: here.requests.append("price"))
    return here.run(here.agent(create=lambda _state: done(price()))).get(timeout=0)


def calls_another_of_the_name(here: OneProcess) -> object:
    listed = charging(here)
    return here.run(here.agent(listed, create=lambda _state: done(charging(here)(100)))).get(timeout=0)


def calls_unlisted_in_a_body(here: OneProcess) -> object:
    inner = charging(here)
    outer = tool(effect="read", name="outer")(lambda: inner(100))
    run = here.run(here.agent(outer, create=lambda _state: done(outer())))
    assert [str(operation.status) for operation in run.operations()] == ["failed"]
    return run.get(timeout=0)


def state_deep_in_the_output(here: OneProcess) -> object:
    return here.run(here.agent(create=lambda state: done({"all": [state]}))).get(timeout=0)


def state_as_argument(here: OneProcess) -> object:
    charge = charging(here)
    return here.run(here.agent(charge, create=lambda state: done(charge(state)))).get(timeout=0)


def task_of_a_step(call: Callable[[Any], object]) -> Callable[[OneProcess], object]:
    def act(here: OneProcess) -> object:
        here.agent(create=lambda _state: done())
        return call(here.app.tasks["order.create"])

    return act


def step_of_another_agent(here: OneProcess) -> object:
    other = here.agent(name="invoice", send=lambda _state: done())
    agent = here.agent(create=lambda _state: other.steps["send"])
    return here.run(agent).get(timeout=0)


def result_not_storable(here: OneProcess) -> object:
    charge = charging(here, returns=object())
    return here.run(here.agent(charge, create=lambda _state: done(charge(100)))).get(timeout=0)


def probe_that_raises(here: OneProcess) -> object:
    return probed(here, ConnectionError("the bank is closed"))


def probe_that_says_nothing(here: OneProcess) -> object:
    return probed(here, None)


def probed(here: OneProcess, answer: Any) -> object:
    @tool(effect="probed", timeout=SECONDS, bind=False)
    def charge(cents: int) -> None:
        here.requests.append(cents)
        raise TimeoutError("no answer")

    @charge.probe
    def _outcome(_operation: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    agent = here.agent(charge, create=lambda _state: done(charge(100)))
    run = here.run(agent)
    here.later(agent, SECONDS.total_seconds() + 1)
    return run.get(timeout=0)


def outside_a_run(here: OneProcess) -> object:
    return charging(here)(100)


def bound_and_unguarded(here: OneProcess) -> object:
    @tool(effect="manual", timeout=SECONDS, bind=True)
    def charge(_operation: Any, cents: int) -> None:
        here.requests.append(cents)

    return charge.unguarded(100)


FAILED = {"written": RUN_ONLY, "run_status": "failed"}
PARKED = {
    "written": {**RUN_ONLY, "agent_operations": 1, "agent_inbox": 1},
    "requests": [100],
    "run_status": "needs_attention",
}

CASES = [
    # tools
    Case(
        "a tool without effect", declared(), UnguardedTool, r"tool 'charge' has no effect=: .* one of read, repeatable"
    ),
    Case(
        "a tool without parentheses", bare_tool, UnguardedTool, r"tool 'charge' has no effect=: .* one of read, repeat"
    ),
    Case(
        "a tool declared with its function",
        lambda _here: tool(print, effect="read"),
        TypeError,
        r"returns a decorator: write tool\(effect=…\)\(function\)",
    ),
    Case(
        "an effect with a typing error", declared(effect="keyd"), UnguardedTool, r"got 'keyd'\. Did you mean 'keyed'\?"
    ),
    Case("no effect at all", declared(effect="safe"), UnguardedTool, r"must be one of read, .*, manual, got 'safe'\.$"),
    Case("a probed tool without timeout", declared(effect="probed"), UnguardedTool, r"is 'probed' and has no timeout="),
    Case("a manual tool without timeout", declared(effect="manual"), UnguardedTool, r"is 'manual' and has no timeout="),
    Case(
        "a probe without timeout", probe_without_timeout, UnguardedTool, r"probe of tool 'charge' must have a timeout"
    ),
    Case(
        "a probed tool without probe",
        declared(effect="probed", timeout=SECONDS, bind=False),
        UnguardedTool,
        r"and has no probe",
    ),
    Case("a key without lifetime", declared(effect="keyed"), UnguardedTool, r"is 'keyed' and has no key_lifetime="),
    Case(
        "a lifetime without key",
        declared(effect="read", key_lifetime=SECONDS),
        UnguardedTool,
        r"key_lifetime= of tool 'charge' belongs to effect='keyed', got 'read'",
    ),
    Case("a repetition without reason", declared(effect="repeatable"), UnguardedTool, r"'repeatable' and has no why="),
    Case(
        "an effect that is not recorded",
        declared(effect="manual", timeout=SECONDS, record=False),
        UnguardedTool,
        r"record=False of tool 'charge' is for effect='read' only",
    ),
    Case(
        "a timeout that is a number",
        declared(effect="manual", timeout=10),
        UnguardedTool,
        r"timeout= of tool 'charge' must be a timedelta of 0 or more, got 10\. Write timedelta\(seconds=10\)\.$",
    ),
    Case(
        "a timeout of nothing",
        declared(effect="manual", timeout=timedelta(0)),
        UnguardedTool,
        r"timeout= of tool 'charge' must be more than 0",
    ),
    Case(
        "a refusal that is no exception",
        declared(effect="read", refused=(int,)),
        UnguardedTool,
        r"refused= of tool 'charge' must hold exception classes, got <class 'int'>",
    ),
    Case(
        "a refusal that a lost answer raises, too",
        declared(effect="manual", timeout=timedelta(seconds=1), refused=(OSError,)),
        UnguardedTool,
        r"refused= of tool 'charge' holds OSError, which a lost answer raises too",
    ),
    Case(
        "an identity with a typing error",
        declared(effect="read", identity=("cent",)),
        UnguardedTool,
        r"must name its parameters \(cents\), got 'cent'\. Did you mean 'cents'\?",
    ),
    Case(
        "a plain function as tool", plain_function, UnguardedTool, r"'charge' is in tools= and not declared as a tool"
    ),
    # agents and steps
    Case("two agents with one name", two_agents, AgentNameTaken, r"has an agent 'order' already"),
    Case("a name of another app's task", named_as_a_shared_task, AgentNameTaken, r"declared with shared=False\."),
    Case("two tools with one name", two_tools, UnguardedTool, r"agent 'order' has two tools named 'price'"),
    Case("two first steps", two_starts, UnknownStep, r"starts with 'create' and with 'again': keep one start=True"),
    Case("two steps with one name", two_steps, UnknownStep, r"has two steps named 'create'"),
    Case(
        "a name with a dot", lambda here: here.agent(name="a.b"), AgentTasksError, r"a word without dots, .* got 'a\.b'"
    ),
    Case("a name of two words", lambda here: here.agent(name="bad name!"), ConfigurationError, r"got 'bad name!'\."),
    Case(
        "a name that is a number",
        lambda here: here.agent(name=3),
        ConfigurationError,
        r"a word without dots, .*got 3\.",
    ),  # type: ignore[arg-type]
    Case(
        "an app that is a text",
        lambda _here: Agent("order", app="shop"),  # type: ignore[arg-type]
        ConfigurationError,
        r"app= of agent 'order' must be the Celery app that its workers run, got 'shop'\.",
    ),
    Case(
        "a tool in place of a list of tools",
        lambda here: Agent("order", app=here.app, tools=charging(here)),
        UnguardedTool,
        r"tools= of agent 'order' must be a list of tools, got <tool charge .*>\. Write tools=\[charge\]\.",
    ),
    Case(
        "no tools at all",
        lambda here: Agent("order", app=here.app, tools=None),  # type: ignore[arg-type]
        UnguardedTool,
        r"must be a list of tools, got None\. It may be empty: tools=\[\]\.",
    ),
    Case(
        "a step that is an async generator",
        lambda here: here.agent(create=asynchronous_generator),
        ConfigurationError,
        r"step 'create' of agent 'order' must be a plain function, got an async generator: calling it does nothing yet, and "
        r"would be taken for its outcome",
    ),
    Case(
        "a step that takes no state",
        lambda here: here.agent(create=lambda: fail("no")),  # type: ignore[arg-type, misc]
        ConfigurationError,
        r"step 'create' of agent 'order' must be a function of the state, got one of \(\): too many positional arguments",
    ),
    Case(
        "a step without a name",
        lambda here: here.agent().step(lambda _state: done()),
        ConfigurationError,
        r"a step of agent 'order' must have a name .*, got '<lambda>': give it name=",
    ),
    Case(
        "an async health check",
        lambda here: here.agent().health_check(asynchronous),
        ConfigurationError,
        r"health_check of agent 'order' must be a plain function, got async",
    ),
    Case(
        "a health check that takes no state",
        lambda here: here.agent().health_check(lambda: True),  # type: ignore[arg-type, misc]
        ConfigurationError,
        r"health_check of agent 'order' must be a function of the state, got one of \(\)",
    ),
    Case(
        "a time-out of get that is a text",
        lambda here: here.run(here.agent(create=lambda _state: done())).get(timeout="x"),  # type: ignore[arg-type]
        AgentTasksError,
        r"timeout= of get\(\) of run 'run-1' must be a number of seconds, .* got 'x'\.",
        written=RUN_ONLY | {"agent_checkpoint_checkpoints": 2},
        run_status="succeeded",
    ),
    Case("no first step", no_start, UnknownStep, r"has 2 steps and none with start=True"),
    # settings
    Case(
        "a setting with a typing error",
        with_settings(agent_lease_second=10),
        ConfigurationError,
        r"agent_lease_second is not a setting\. Did you mean 'agent_lease_seconds'\?",
    ),
    Case(
        "a setting that is a text",
        with_settings(agent_lease_seconds="15"),
        ConfigurationError,
        r"agent_lease_seconds must be a number above 0, got '15'\.",
    ),
    Case(
        "a setting of nothing",
        with_settings(agent_max_crashes=0),
        ConfigurationError,
        r"agent_max_crashes must be a number above 0, got 0\.",
    ),
    Case(
        "a count that is no whole number",
        with_settings(agent_queue_depth=1.5),
        ConfigurationError,
        r"agent_queue_depth must be a whole number, got 1\.5\.",
    ),
    Case(
        "a yes or no that is a text",
        with_settings(agent_single_host="no"),
        ConfigurationError,
        r"agent_single_host must be True or False, got 'no'\.",
    ),
    Case(
        "a prefix that no table has",
        with_settings(agent_table_prefix="agent-"),
        ConfigurationError,
        r"agent_table_prefix must be 1 to 30 of the characters a-z, 0-9 and _, .* got 'agent-'\.",
    ),
    Case(
        "no database",
        with_settings(agent_database_url=None),
        ConfigurationError,
        r"agent_database_url is not set: .*agent_database_url='sqlite:////var/lib/shop/agent\.db'.*copy this project's celeryconfig\.py beside the app"
        r".*AGENT_DATABASE_URL in the environment",
    ),
    Case(
        "a database that is no URL",
        with_settings(agent_database_url="agent.db"),
        ConfigurationError,
        r"agent_database_url must be a SQLAlchemy URL such as sqlite:////var/lib/shop/agent\.db, got 'agent\.db'",
    ),
    Case(
        "a database with a typing error",
        with_settings(agent_database_url="postgres://host/agents"),
        ConfigurationError,
        r"must name one of mariadb, mysql, postgresql, sqlite, got 'postgres'\. Write postgresql\+psycopg://host/agents$",
    ),
    Case(
        "a database by its short name",
        with_settings(agent_database_url="postgres://kim:secret@host/agents"),
        ConfigurationError,
        r"got 'postgres'\. Write postgresql\+psycopg://kim:\*\*\*@host/agents$",
    ),
    Case(
        "a database with another driver",
        with_settings(agent_database_url="postgresql+psycopg2://host/agents"),
        ConfigurationError,
        r"must begin with postgresql\+psycopg:, got 'postgresql\+psycopg2': .* Write postgresql\+psycopg://host/agents$",
    ),
    Case(
        "a database in memory",
        with_settings(agent_database_url="sqlite://"),
        ConfigurationError,
        r"agent_database_url must name a file, got an SQLite database in memory",
    ),
    Case(
        "a folder of checkpoints for a ledger",
        with_settings(agent_database_url="file:///srv/checkpoints"),
        ConfigurationError,
        r"got 'file': a checkpoint commits with the rest of its step in one transaction.*Write sqlite:///agent\.db",
    ),
    Case(
        "a network broker with an SQLite ledger",
        network_broker_with_sqlite,
        SingleHostOnly,
        r"the broker \(redis\) can be reached by other hosts and the ledger \(SQLite\) cannot",
    ),
    # enqueue
    Case(
        "a database that is down",
        down("postgresql+psycopg://127.0.0.1:1/agents"),
        LedgerUnavailable,
        r"database did not answer: .*No run was made: check agent_database_url and the server, then call again\.$",
    ),
    Case(
        "a database file in no folder",
        down_on_disk,
        LedgerUnavailable,
        r"database did not answer at 'opening the ledger': .*unable to open database file.*: make the folder that agent_database_url names",
    ),
    Case(
        "a schema never migrated",
        enqueued(),
        SchemaMissing,
        r"tables are missing.*Run `celery -A yourapp agent db upgrade` \(or `agent-tasks db upgrade --url",
        migrated=False,
    ),
    Case(
        "an agent that is called as a task",
        lambda here: here.agent(create=lambda _state: done()).delay({}),
        AttributeError,
        r"agent 'order' has no 'delay', since it is no Celery task: start a run with order\.enqueue\(\{…\}\)\.$",
    ),
    Case(
        "a step that is called as a task",
        lambda here: here.agent(create=lambda _state: done()).steps["create"].apply_async(),
        AttributeError,
        r"step 'create' has no 'apply_async', since it works for a run: start one with order\.enqueue\(\{…\}\)\.$",
    ),
    Case("an input that is no dict", enqueued([1]), AgentTasksError, r"input of a run must be a dict, .* got list"),
    Case(
        "an input that cannot be stored",
        enqueued({"cart": object()}),
        ArgumentsNotStorable,
        r"^\['cart'\] in the input of agent 'order' cannot be stored, so no run was made: an object has no stored form",
    ),
    Case(
        "a run id with NUL",
        enqueued(run_id="a\0b"),
        AgentTasksError,
        r"run_id must be a text of 1 to 200 characters without NUL",
    ),
    Case(
        "a run id that is too long", enqueued(run_id="x" * 201), AgentTasksError, r"run_id must be a text of 1 to 200"
    ),
    Case("an empty run id", enqueued(run_id=""), AgentTasksError, r"run_id must be a text of 1 to 200 .*got ''"),
    Case("an empty dedupe key", enqueued(dedupe_key=""), AgentTasksError, r"dedupe_key must be a text of 1 to 200"),
    Case(
        "a priority that is a text",
        enqueued(priority="high"),
        AgentTasksError,
        r"must be a whole number from 0 to 255, got 'high'",
    ),
    Case(
        "the same dedupe key with other input",
        same_dedupe_key,
        DedupeConflict,
        r"dedupe key 'cart' belongs to run 'run-1' of agent 'order', which was started with another input",
        written=RUN_ONLY,
        run_status="queued",
    ),
    Case(
        "the same run id with other input",
        same_run_id,
        DedupeConflict,
        r"run id 'run-1' belongs to run 'run-1' of agent 'order', which was started with another input",
        written=RUN_ONLY,
        run_status="queued",
    ),
    # in a run
    Case("an unknown step", unknown_step, RunFailed, r"returned 'pya', .* no step .*Did you mean 'pay'\?", **FAILED),
    Case(
        "a step of another agent",
        step_of_another_agent,
        RunFailed,
        r"'send', which is no step of agent 'order'\. It is a step of agent 'invoice'; the steps are create\.$",
        **FAILED,
    ),
    Case(
        "a function that is no step",
        stepping(lambda _here: asynchronous),
        RunFailed,
        r"'asynchronous', which is no step of agent 'order'\. Put @order\.step above it; the steps are create\.$",
        **FAILED,
    ),
    Case(
        "a name that is nearly that of a step's task",
        returning("order.Pay"),
        RunFailed,
        r"returned 'order\.Pay', which is no step\. Did you mean 'pay'\? Return the function itself: return pay\.$",
        **FAILED,
    ),
    Case(
        "an outcome that is none",
        stepping(lambda _here: "pay"),
        RunFailed,
        r"step 'create' must return done\(…\), fail\(…\) or a step, got 'pay'\. The steps are create: return the function",
        **FAILED,
    ),
    Case(
        "a step by its name",
        returning("pay"),
        RunFailed,
        r"step 'create' returned the name 'pay'; return the function itself: return pay\.$",
        **FAILED,
    ),
    Case(
        "a step by its name, whose function has another",
        returning("look-up"),
        RunFailed,
        r"returned the name 'look-up'; return the function itself: return look_up\.$",
        **FAILED,
    ),
    Case(
        "a step by its name with a typing error",
        returning("pya"),
        RunFailed,
        r"returned 'pya', which is no step\. Did you mean 'pay'\? Return the function itself: return pay\.$",
        **FAILED,
    ),
    Case(
        "no outcome at all",
        returning(None),
        RunFailed,
        r"BadOutcome: run 'run-1': step 'create' returned nothing; end it with return done\(…\), return fail\(…\) or the next",
        **FAILED,
    ),
    Case(
        "a tool that its agent does not list",
        calls_unlisted,
        RunFailed,
        r"UnguardedTool: run 'run-1': tool 'charge' was called in step 'create' and is not in tools= of agent 'order'\. "
        r"Nothing was sent; add it there",
        **FAILED,
    ),
    Case(
        "a read that its agent does not list",
        calls_unlisted_read,
        RunFailed,
        r"tool 'price' was called in step 'create' and is not in tools= of agent",
        **FAILED,
    ),
    Case(
        "another tool of a listed name",
        calls_another_of_the_name,
        RunFailed,
        r"tool 'charge' was called in step 'create' and is another tool than the one of this name in tools= of agent",
        **FAILED,
    ),
    Case(
        "an unlisted tool in the body of a listed one",
        calls_unlisted_in_a_body,
        RunFailed,
        r"tool 'charge' .* is not in tools= of agent",
        written={**RUN_ONLY, "agent_operations": 1},
        run_status="failed",
        operations=["failed"],
    ),
    Case(
        "a state deep in the output",
        state_deep_in_the_output,
        RunFailed,
        r"\['all'\]\[0\] in the output of step 'create' cannot be stored: a StepState has no stored form; use dict\(…\) of it",
        **FAILED,
    ),
    Case(
        "a state as an argument",
        state_as_argument,
        RunFailed,
        r"argument 'cents' of tool 'charge' cannot be stored, so nothing was sent: a StepState has no stored form; use dict\(…\) of it",
        **FAILED,
    ),
    Case(
        "a step's task called with delay",
        task_of_a_step(lambda task: task.delay({"cart": 1})),
        AgentTasksError,
        r"step task 'order\.create' cannot be called by delay\(\) .* start a run with order\.enqueue\(…\)",
    ),
    Case(
        "a step's task called with apply_async",
        task_of_a_step(lambda task: task.apply_async(("run-1", 1), countdown=5)),
        AgentTasksError,
        r"Nothing was sent; start a run with order\.enqueue\(…\)",
    ),
    Case(
        "a step's task called by its signature",
        task_of_a_step(lambda task: task.s("run-1", 1).apply_async()),
        AgentTasksError,
        r"Nothing was sent; start a run with order\.enqueue\(…\)",
    ),
    Case(
        "an output that cannot be stored",
        stepping(lambda _here: done(object())),
        RunFailed,
        r"UnstorableValue: the output of step 'create' cannot be stored: an object has no stored form",
        **FAILED,
    ),
    Case(
        "a state that cannot be stored",
        state_left({"a": [1, object()]}),
        RunFailed,
        r"UnstorableValue: \['cart'\]\['a'\]\[1\] in the state after step 'create' cannot be stored: an object has no",
        **FAILED,
    ),
    Case(
        "a message that cannot be stored",
        stepping_on(lambda state: state.messages.append({"text": object()})),
        RunFailed,
        r"\[0\]\['text'\] in the messages after step 'create' cannot be stored: an object has no",
        **FAILED,
    ),
    Case(
        "a reason that is no text",
        stepping(lambda _here: fail(ValueError("no"))),  # type: ignore[arg-type]
        RunFailed,
        r"BadOutcome: fail\(…\) takes the reason as a text, got ValueError\('no'\): write fail\(str\(…\)\)",
        **FAILED,
    ),
    Case(
        "arguments that cannot be stored",
        stepping(charge_in_step(object())),
        RunFailed,
        r"run 'run-1': argument 'cents' of tool 'charge' cannot be stored, so nothing was sent: an object has no stored",
        **FAILED,
    ),
    Case(
        "arguments that do not fit",
        stepping(lambda here: here.charge(100, 200)),  # type: ignore[attr-defined]
        RunFailed,
        r"tool 'charge' is called as charge\(cents\): too many positional arguments",
        **FAILED,
    ),
    Case(
        "a result that cannot be stored",
        result_not_storable,
        RunUnfinished,
        r"is needs_attention, it waits: the result of charge could not be stored: result cannot be stored: an object has",
        operations=["succeeded"],
        questions=["result"],
        **PARKED,
    ),
    Case(
        "a probe that raises",
        probe_that_raises,
        RunUnfinished,
        r"Its probe says: cannot tell: the probe raised ConnectionError: the bank is closed",
        operations=["unknown"],
        questions=["unknown"],
        **PARKED,
    ),
    Case(
        "a probe whose result cannot be stored",
        lambda here: probed(here, Happened({"a": object()})),
        RunUnfinished,
        r"what was the result of charge\? It could not be stored: result\['a'\] cannot be stored: an object has no",
        operations=["succeeded"],
        questions=["result"],
        **PARKED,
    ),
    Case(
        "a probe that says nothing",
        probe_that_says_nothing,
        RunUnfinished,
        r"Its probe says: cannot tell: the probe returned None, which is no answer",
        operations=["unknown"],
        questions=["unknown"],
        **PARKED,
    ),
    Case(
        "a tool with an effect outside a run",
        outside_a_run,
        OutsideRun,
        r"tool 'charge' has the effect 'manual' and was called outside a run.* write charge\.unguarded",
    ),
    Case("a bound tool unguarded", bound_and_unguarded, OutsideRun, r"'charge' is declared with bind=True"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_named_and_nothing_comes_of_it(
    case: Case, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = OneProcess(database_url, migrated=case.migrated)
    with pytest.raises(case.error, match=f"(?s){case.message}"):
        case.act(here)
    assert {table: rows for table, rows in here.counts().items() if rows} == case.written
    assert here.requests == case.requests
    assert {path.name for path in tmp_path.iterdir()} <= {"agent.db", "agent.db-wal", "agent.db-shm"}
    runtime = here.runtime
    if case.run_status is not None:
        with runtime.engine.connect() as connection:
            row = runtime.runs.find(connection, "run-1")
            assert row is not None
            assert row["status"] == case.run_status
            assert [str(o.status) for o in runtime.ledger.of_run(connection, "run-1")] == case.operations
            assert [str(item.question) for item in runtime.inbox.items(connection)] == case.questions
    here.close()


def test_the_settings_that_are_right_are_read() -> None:
    app = Celery("other", broker="memory://", set_as_current=False)
    app.conf.update(agent_database_url="sqlite:///agent.db", agent_lease_seconds=30)
    assert Settings.of(app) == Settings("sqlite:///agent.db", lease_seconds=30)
