"""Agents: the definition of a job, its steps and its tools."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, overload

from celery import Celery

from agent_tasks.coalesce import Coalesce, coalesce_of
from agent_tasks.declarations import check_function, refuse_lazy
from agent_tasks.enqueue import enqueue, recovery_mode
from agent_tasks.errors import (
    AgentNameTaken,
    AgentTasksError,
    ConfigurationError,
    OutsideRun,
    RunNotFound,
    UnknownStep,
)
from agent_tasks.handle import RunHandle
from agent_tasks.hosting import in_worker
from agent_tasks.inline import run_inline
from agent_tasks.integration import AppState
from agent_tasks.limits import check_limits, check_rate
from agent_tasks.options import check_step_options
from agent_tasks.resources import Resource
from agent_tasks.retries import OPTIONS, retry_policy
from agent_tasks.steps import CELERYS_VERBS, Step, takes
from agent_tasks.task import register_step
from agent_tasks.tools import Tool, tools_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent_tasks.runtime import Runtime


logger = logging.getLogger(__name__)


class Agent:
    """A job that survives its workers.

    Args:
        name: of the agent: letters, digits, ``_`` and ``-``; each step is the Celery task ``name.step``.
        app: the Celery app that its workers run.
        tools: everything its steps call that touches the world; each declared with :func:`agent_tasks.tool`.
        max_steps: a run that would take more steps than this waits for a person, who lets it go on for as many again or
            ends it; the setting ``agent_max_steps`` (10,000) if not given.
        recovery: ``auto``: a run that lost its worker goes on by itself; ``manual``: a person is asked first.
        health_check: gets the state of a checkpoint before a step goes on from it; see :meth:`health_check`.
        check_messages: let a run that is resumed fall back where its messages passed over a tool call. Turn it off if
            messages of your agent may go on without the result of a call.
        coalesce: True, or a :class:`Coalesce`: steps that follow each other run in one message, for a short time.

    Raises:
        UnguardedTool: a tool's declaration does not say how its effect is guarded.
        AgentNameTaken: the app has an agent of this name.
        ConfigurationError: ``max_steps`` is no whole number above 0, ``app`` no Celery app, the check no function of a
            state, or ``coalesce`` neither True or False nor a Coalesce.
        AgentTasksError: anything else cannot be used.

    Example:
        >>> from celery import Celery
        >>> greeter = Agent("greeter", app=Celery("demo", broker="memory://"))
        >>> @greeter.step(start=True)
        ... def greet(state):
        ...     return done(f"hello {state['name']}")
        >>> from agent_tasks import done
        >>> greet({"name": "Kim"})
        Done(output='hello Kim')
    """

    #: Exception classes, beside Python's own, that a caller sees again as they were raised.
    known_errors: tuple[type[BaseException], ...] = ()

    def __init__(
        self,
        name: str,
        *,
        app: Celery,
        tools: Iterable[object] = (),
        max_steps: int | None = None,
        recovery: str = "auto",
        health_check: Callable[[Any], object] | None = None,
        check_messages: bool = True,
        coalesce: bool | Coalesce = False,
    ) -> None:
        self._check_name(name)
        if not isinstance(app, Celery):
            raise ConfigurationError(
                f"app= of agent {name!r} must be the Celery app that its workers run, got {app!r}."
            )
        if max_steps is not None and (type(max_steps) is not int or max_steps < 1):
            raise ConfigurationError(f"max_steps= of agent {name!r} must be a whole number above 0, got {max_steps!r}.")
        self.name, self.app, self.max_steps = name, app, max_steps
        self.recovery, self.check_messages = recovery_mode(recovery), check_messages
        self.coalesce = coalesce_of(coalesce, self.subject)
        self.own_check: Callable[[Any], object] | None = None
        if health_check is not None:
            self.health_check(health_check)
        self.steps: dict[str, Step] = {}
        self.start: Step | None = None
        self.resources: dict[str, Resource] = {}
        self.tools: dict[str, Tool[..., Any]] = tools_of(tools, self.subject)
        agents = AppState.of(app).agents
        if name in agents:
            raise AgentNameTaken(
                f"this Celery app has an agent {name!r} already; every agent of an app needs its own name. Plain tasks "
                "count, and so do those of the process's other apps, unless they are declared with shared=False."
            )
        agents[name] = self

    def __repr__(self) -> str:
        return f"<agent {self.name} steps={list(self.steps)}>"

    @property
    def subject(self) -> str:
        """What messages call it."""
        return f"agent {self.name!r}"

    @property
    def runtime(self) -> Runtime:
        """What this process works with; made when it is first needed."""
        return AppState.of(self.app).runtime

    @overload
    def step(self, function: Callable[..., Any], /) -> Step: ...

    @overload
    def step(
        self, /, *, start: bool = False, name: str | None = None, **task_options: Any
    ) -> Callable[[Callable[..., Any]], Step]: ...

    def step(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        start: bool = False,
        name: str | None = None,
        **task_options: Any,
    ) -> Any:
        """Declare a step.

        Args:
            function: gets the state and returns an outcome; with a second parameter it can follow ``calls(…)``, whose results
                it gets.
            start: runs begin with this step; the only step of an agent needs not say so.
            name: of the step; the function's own if not given.
            **task_options: for the step's Celery task: ``queue``, ``rate_limit``, ``time_limit`` … Those about retries
                have Celery's names and mean what they mean there: ``max_retries``, ``autoretry_for``,
                ``dont_autoretry_for``, ``retry_backoff``, ``retry_backoff_max``, ``retry_jitter``,
                ``default_retry_delay``. Either of the first two is enough: ``max_retries`` retries any exception,
                ``autoretry_for`` these three times. The pause is a row of the ledger.

        Returns:
            The step, or the decorator that makes it.

        Raises:
            ConfigurationError: neither Celery nor this package would read an option, or it cannot be used; or the step is no
                plain function of the state, or has no name of letters, digits, ``_``, ``-`` and dots.
        """
        if function is None:
            return lambda f: self._add_step(f, name, start, task_options)
        return self._add_step(function, name, start, task_options)

    @overload
    def resource(self, function: Callable[[], Any], /) -> Resource: ...

    @overload
    def resource(self, /, *, name: str) -> Callable[[Callable[[], Any]], Resource]: ...

    def resource(self, function: Callable[[], Any] | None = None, /, *, name: str | None = None) -> Any:
        """Declare what an attempt opens when it is first asked for, and closes when the attempt ends: a connection, a client.

        Steps and the bodies of tools call it: ``db()``; one that is async, ``await db()``. Each attempt has its own. It is never
        part of the state, and never used by a process that the step forks.

        Args:
            function: a generator function without arguments, plain or async: it yields what it has opened, and closes it after
                that. It sees the exception that ended the step, as a context manager does.
            name: of the resource; the function's own if not given.

        Returns:
            The :class:`~agent_tasks.Resource`, or the decorator that makes it.

        Raises:
            ConfigurationError: it is no such function, or the agent has a resource of this name.

        Example:
            >>> from celery import Celery
            >>> from agent_tasks import Agent, done
            >>> agent = Agent("opening", app=Celery("demo", broker="memory://"))
            >>> @agent.resource
            ... def ear():
            ...     print("open")
            ...     yield str.upper
            ...     print("closed")
            >>> @agent.step
            ... def hear(state):
            ...     return done([ear()("tea"), ear()("milk")])
            >>> agent.run_inline()
            open
            closed
            ['TEA', 'MILK']
        """
        if function is None:
            return lambda f: self._add_resource(f, name)
        return self._add_resource(function, name)

    def _add_resource(self, function: Callable[[], Any], said: str | None) -> Resource:
        name: object = getattr(function, "__name__", None) if said is None else said
        if not isinstance(name, str) or not re.fullmatch(r"[\w-]{1,100}", name):
            raise ConfigurationError(
                f"a resource of {self.subject} must have a name of 1 to 100 letters, digits, '_' and '-', got {name!r}: give it name=."
            )
        if name in self.resources:
            raise ConfigurationError(f"{self.subject} has two resources named {name!r}: give one of them name=.")
        self.resources[name] = made = Resource(self.name, name, function)
        return made

    def health_check(self, function: Callable[[Any], object]) -> Callable[[Any], object]:
        """Declare the check that a checkpoint must pass before a step goes on from it.

        A checkpoint that fails it is left for the newest that passes, on a new line. The check is asked at every step,
        so it should be quick; it calls no tools, and it does not change the state.

        Args:
            function: gets the state; returns None or True if it may be used, and False or the reason as a text if not.
                What it raises is a reason, too.

        Raises:
            AgentTasksError: it is no plain function of the state, or the agent has one.

        Example:
            >>> from celery import Celery
            >>> agent = Agent("checked", app=Celery("demo", broker="memory://"))
            >>> @agent.health_check
            ... def cart_is_whole(state):
            ...     return "the cart is gone" if "cart" not in state else True
            >>> cart_is_whole({})
            'the cart is gone'
        """
        check_function(f"health_check of {self.subject}", function, "the state", error=ConfigurationError)
        if self.own_check is not None:
            raise AgentTasksError(f"agent {self.name!r} has a health check already; let one function call the other.")
        self.own_check = function
        return function

    def enqueue(
        self,
        input: dict[str, Any] | None = None,  # noqa: A002 - the word of the public API
        *,
        run_id: str | None = None,
        dedupe_key: str | None = None,
        priority: int = 0,
        recovery: str | None = None,
        connection: object = None,
    ) -> RunHandle:
        """Start a run.

        Args:
            input: the state that the first step gets.
            run_id: the caller's own name for the run, of at most 200 characters; a retry with it is the same run.
            dedupe_key: makes this return the run of the agent that has the key, finished or not, for as long as the
                ledger keeps that run.
            priority: higher ones are rung first.
            recovery: ``auto`` or ``manual``, if not that of the agent.
            connection: whose transaction the run is written in, for its owner to commit or roll back: a SQLAlchemy
                ``Connection`` or ORM ``Session``, or one of Django's ``connections``, on the ledger's own database. The
                doorbell rings after the commit.

        Raises:
            DedupeConflict: the dedupe key or run id belongs to a run with another input.
            TransactionUnusable: ``connection`` has no transaction, a failed one, or one on another database.
            sqlalchemy.exc.DBAPIError: with ``connection``, whatever the database refused, such as a serialization failure;
                whether the transaction is run again is its owner's to say. Nothing of the run was written.
            LedgerUnavailable: the database did not answer; enqueue again with the same run_id or dedupe_key.
            SchemaMissing: the ledger was never migrated.

        Example:
            >>> from celery import Celery
            >>> from agent_tasks import Agent, done
            >>> from sqlalchemy import create_engine
            >>> app = Celery("shop", broker="memory://")
            >>> app.conf.agent_database_url = f"sqlite:///{directory}/orders.db"
            >>> order = Agent("order", app=app)
            >>> @order.step(start=True)
            ... def pay(state):
            ...     return done("paid")
            >>> with create_engine(app.conf.agent_database_url).begin() as connection:
            ...     # connection.execute(insert(orders)…)
            ...     run = order.enqueue({"cart": 42}, dedupe_key="cart-42", connection=connection)
            >>> str(run.status)
            'queued'
        """
        return enqueue(
            self,
            {} if input is None else input,
            run_id=run_id,
            dedupe_key=dedupe_key,
            priority=priority,
            recovery=self.recovery if recovery is None else recovery,
            connection=connection,
        )

    def run(self, run_id: str) -> RunHandle:
        """Return the handle of a run of this agent.

        Raises:
            RunNotFound: there is none.
        """
        runtime = self.runtime
        row = runtime.boundary.read(runtime.engine, lambda connection: runtime.runs.find(connection, run_id))
        if row is None or row["agent"] != self.name:
            raise RunNotFound(f"{self.subject} has no run {run_id!r} in this ledger.")
        return RunHandle(runtime, run_id)

    def run_inline(self, input: dict[str, Any] | None = None) -> Any:  # noqa: A002
        """Run a whole run in this process, without broker or worker, on a ledger of its own; return its output.

        Waits pass at once: pauses between retries, back-off, horizons.

        Raises:
            OutsideRun: this is a worker, and not in eager mode.
            RunFailed: the run ended as failed.
            RunUnfinished: it waits for a person, or has waited 200 times; its cause is what a body raised last.
        """
        if in_worker() and not self.app.conf.task_always_eager:
            raise OutsideRun(
                f"{self.subject} was run inline in a worker, on a ledger of its own: when the process dies, that ledger is "
                f"lost, and what was done is done again. Nothing was done; call {self.name}.enqueue(…)."
            )
        return run_inline(self, {} if input is None else input)

    if not TYPE_CHECKING:  # which would take it for a word on every name

        def __getattr__(self, name: str) -> Any:
            """Say what to write in place of Celery's own verbs."""
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in CELERYS_VERBS:
                own = self.__dict__.get("name", "agent")
                said = (
                    f"agent {own!r} has no {name!r}, since it is no Celery task: start a run with {own}.enqueue({{…}})."
                )
            raise AttributeError(said)

    def first_step(self) -> Step:
        """Return the step that runs begin with.

        Raises:
            UnknownStep: the agent does not say.
        """
        if self.start is not None:
            return self.start
        if len(self.steps) == 1:
            (only,) = self.steps.values()
            if only.needs_results:
                raise _starts_with_results(f"step {only.name!r} of {self.subject}")
            return only
        raise UnknownStep(
            f"agent {self.name!r} has {len(self.steps)} steps and none with start=True: "
            "put @agent.step(start=True) above the one that runs begin with."
        )

    def shares_messages(self, step: str) -> bool:
        """Tell whether a step may run in the message of the one before it, and let others follow it in its own.

        Celery counts time limits of messages, and lets messages through at a rate: a step that declares one has its own.
        """
        task = self.app.tasks.get(f"{self.name}.{step}")
        limits = ("time_limit", "soft_time_limit", "rate_limit")
        return task is not None and all(getattr(task, limit, None) is None for limit in limits)

    def check_ready(self) -> None:
        """Refuse what can only be seen once the whole module is loaded; agents are checked when they are made."""

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[\w-]{1,100}", name):
            raise ConfigurationError(
                "an agent's name must be a word without dots, of 1 to 100 letters, digits, '_' and '-', since it is the first "
                f"part of the names of its Celery tasks and of what routes match, got {name!r}."
            )

    def _add_step(
        self, function: Callable[..., Any], said: str | None, start: bool, task_options: dict[str, Any]
    ) -> Step:
        name: object = getattr(function, "__name__", None) if said is None else said
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,100}", name):
            raise ConfigurationError(
                f"a step of {self.subject} must have a name of 1 to 100 letters, digits, '_', '-' and dots, got {name!r}: "
                "give it name=."
            )
        subject = f"step {name!r} of {self.subject}"
        gets_results = takes(function, 2)
        needs_results = gets_results and not takes(function, 1)
        outcome = "taken for its outcome"
        if needs_results:
            refuse_lazy(subject, function, ConfigurationError, outcome, may_be_async=True)
        else:
            check_function(subject, function, "the state", error=ConfigurationError, then=outcome, may_be_async=True)
        if start and needs_results:
            raise _starts_with_results(subject)
        if name in self.steps:
            raise UnknownStep(f"agent {self.name!r} has two steps named {name!r}: give one of them name=.")
        if start and self.start is not None:
            raise UnknownStep(
                f"agent {self.name!r} starts with {self.start.name!r} and with {name!r}: keep one start=True."
            )
        _warn_if_it_hides_a_tool(subject, function, self.tools.values())
        policy = retry_policy(subject, task_options)
        check_step_options(subject, task_options)
        check_limits(subject, task_options)
        check_rate(f"rate_limit= of {subject}", task_options.get("rate_limit"))
        task_options = {option: value for option, value in task_options.items() if option not in OPTIONS}
        step = Step(name, self.name, function, policy, gets_results, needs_results)
        self.steps[name] = step
        if start:
            self.start = step
        register_step(self, step, task_options)
        return step


def _warn_if_it_hides_a_tool(subject: str, function: Callable[..., Any], tools: Iterable[Tool[..., Any]]) -> None:
    """Say it where the function of a step takes the name, in the same scope, that its steps call a tool by."""
    place = (getattr(function, "__module__", None), getattr(function, "__qualname__", "<lambda>"))
    for tool in tools:
        if place[1].endswith("<lambda>") or place != (tool.body.__module__, tool.body.__qualname__):
            continue
        if function is not tool.body:
            logger.warning(
                "%s has a function of the same name as %s, which it hides: whoever calls %s calls the step. Give one of the two "
                "functions another name",
                subject,
                tool.subject,
                function.__name__,
                extra={"action": "tool_hidden"},
            )


def _starts_with_results(subject: str) -> ConfigurationError:
    return ConfigurationError(
        f"{subject} is the one that runs begin with, and takes a second argument, the results of calls: there are none yet."
    )
