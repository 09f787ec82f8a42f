"""Every effect, crashed at every boundary of its run, on each database (I2-I7, I13-I15)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import agent_tasks
from agent_tasks import Agent, Operation, calling, current_run, done, recovery, tool
from agent_tasks.folded import Folded
from agent_tasks.recovery import Decision, Promise, Recorded, decide
from agent_tasks.states import IN_DOUBT, Effect
from agent_tasks.testing import VendorWorld, explore_crashes
from tests.agents import EFFECTS, World, agent_of, new_app, tool_of

#: Faults that can meet a crossing; together they are every schedule.
WAYS = {
    "the message is redelivered": {"brokers": ("redelivers",), "lost_answers": False},
    "the broker is emptied": {"brokers": ("emptied",), "lost_answers": False},
    "the answer of a commit is lost": {"brokers": (), "lost_answers": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("effect", EFFECTS)
def test_a_crash_at_any_boundary_repeats_no_effect(effect: str, way: str, database_url: str) -> None:
    with closing(World(database_url)) as world:
        agent = agent_of(effect, world)
        found = explore_crashes(agent, {"what": "a"}, world, database_url=database_url, **WAYS[way])

    print(found.report())
    assert not found.failures, found.report()
    assert len(found.schedules) >= 5


@pytest.mark.parametrize(
    "effect", [effect for effect in EFFECTS if effect not in ("read", "repeatable", "transactional")]
)
def test_the_explorer_sees_an_effect_that_is_executed_again_without_asking(
    effect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The explorer itself is tested by taking the protection away; a keyed effect is still guarded by its vendor."""

    def careless(operation: Recorded | None, promise: Promise) -> Decision:
        if operation is not None and operation.status in IN_DOUBT:
            return Decision.EXECUTE
        return decide(operation, promise)

    monkeypatch.setattr(calling, "decide", careless)
    world = VendorWorld()

    found = explore_crashes(agent_of(effect, world), {"what": "a"}, world, lost_answers=False)

    doubled = [problem for schedule in found.failures for problem in schedule.problems if "happened 2 times" in problem]
    assert bool(doubled) == (effect != Effect.KEYED)


def test_the_engines_log_is_shown_for_the_schedules_that_went_wrong_and_no_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A careless engine sends a call in doubt again; only crashes around the call leave a doubt."""
    world = VendorWorld()
    agent, options = agent_of("manual", world), {"brokers": ("emptied",), "lost_answers": False}
    assert explore_crashes(agent, {"what": "a"}, world, **options).failures == []
    assert caplog.records == []

    monkeypatch.setattr(calling, "decide", lambda operation, promise: Decision.EXECUTE)
    found = explore_crashes(agent, {"what": "a"}, world, **options)
    wrong = [schedule for schedule in found.schedules if schedule.failed]
    assert 0 < len(wrong) < len(found.schedules)
    taken_over = [record for record in caplog.records if "taken over" in record.getMessage()]
    assert len(taken_over) == sum(any(schedule.met) for schedule in wrong)


def test_a_crash_at_any_boundary_of_the_longer_way_repeats_no_effect(
    postgres_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, too: what is usual there goes in one statement, and SQLite has no locks on rows."""
    monkeypatch.setattr(Folded, "of", lambda *_: None)
    world = VendorWorld()
    found = explore_crashes(
        agent_of("keyed", world), {"what": "a"}, world, database_url=postgres_database(), brokers=("emptied",)
    )
    assert not found.failures, found.report()


class LosesAnAnswer(VendorWorld):
    """A vendor whose first answer in each schedule is lost after the effect."""

    def reset(self) -> None:
        super().reset()
        self.answers_lost = 0

    def act(self, reference: str, *, key: str | None = None) -> int:
        number = super().act(reference, key=key)
        if not self.answers_lost:
            self.answers_lost += 1
            raise ConnectionError("reset by peer")
        return number


@pytest.mark.parametrize("effect", ["keyed", "probed", "manual"])
def test_a_crash_at_any_boundary_of_settling_a_doubt_repeats_no_effect(effect: str, database_url: str) -> None:
    """The run without a crash already parks, wakes, is asked about and answered, so a crash meets each of these."""
    world = LosesAnAnswer()

    found = explore_crashes(
        agent_of(effect, world), {"what": "a"}, world, database_url=database_url, brokers=("emptied",)
    )

    assert not found.failures, found.report()
    crossed = {point.name for point in found.points if point.kind == "commit"}
    settling = {"keyed": set(), "probed": {"answer"}, "manual": {"resolve"}}[effect]
    assert crossed >= {"suspend", "wake"} | settling


@pytest.mark.parametrize("effect", ["read", "keyed", "manual", "transactional", "probed, with a doubt"])
def test_a_crash_at_any_boundary_on_mariadb_repeats_no_effect(effect: str, mysql_database: Callable[[], str]) -> None:
    """The longer way again, with the statements that only MariaDB and MySQL get."""
    kind, url = effect.split(",", maxsplit=1)[0], mysql_database()
    with closing(World(url)) as plain:
        world = plain if kind == effect else LosesAnAnswer()
        found = explore_crashes(agent_of(kind, world), {"what": "a"}, world, database_url=url, brokers=("emptied",))
    assert not found.failures, found.report()
    assert len(found.schedules) >= 5


class Declines(VendorWorld):
    """A vendor that refuses the first charge of each schedule."""

    def reset(self) -> None:
        super().reset()
        self.refused = 0

    def charge(self, reference: str) -> int:
        if not self.refused:
            self.refused += 1
            raise PermissionError("insufficient funds")
        return self.act(reference)


def retried_agent(world: Declines) -> Agent:
    """An agent whose first step ends on a refusal, and whose second raises by itself."""

    @tool(effect="manual", timeout=timedelta(seconds=10), refused=(PermissionError,), bind=True)
    def charge(operation: Operation) -> int:
        return world.charge(operation.operation_id)

    agent = Agent("retried", app=new_app(), tools=[charge])

    @agent.step(start=True, max_retries=9, default_retry_delay=60)
    def pay(state: Any) -> Any:
        charge()
        return ship

    @agent.step(autoretry_for=(ConnectionError,), retry_backoff=True)
    def ship(state: Any) -> Any:
        if not current_run.retries:
            raise ConnectionError("the warehouse is away")
        return done("shipped")

    return agent


@pytest.mark.parametrize("way", WAYS)
def test_a_crash_at_any_boundary_of_a_retried_step_repeats_no_effect(way: str, database_url: str) -> None:
    world = Declines()

    found = explore_crashes(retried_agent(world), {}, world, database_url=database_url, **WAYS[way])

    assert not found.failures, found.report()
    assert [str(point) for point in found.points].count("after commit retry") == 2


@pytest.mark.parametrize("effect", ["keyed", "probed", "transactional"])
def test_a_cancel_at_any_boundary_ends_the_run_and_repeats_no_effect(effect: str, database_url: str) -> None:
    with closing(World(database_url)) as world:
        found = explore_crashes(
            agent_of(effect, world),
            {"what": "a"},
            world,
            database_url=database_url,
            brokers=(),
            lost_answers=False,
            cancels=True,
        )

    assert not found.failures, found.report()
    assert {fault.kind for schedule in found.schedules for fault in schedule.faults} == {"cancel", "cancel and crash"}


class Cancels(VendorWorld):
    """A vendor in whose hands each call is cancelled, so that every crash after that meets the request."""

    agent: Agent

    def act(self, reference: str, *, key: str | None = None) -> int:
        number = super().act(reference, key=key)
        self.cancel()
        return number

    def cancel(self) -> None:
        self.agent.run("explored").cancel(who="kim", why="changed her mind")


@pytest.mark.parametrize("effect", ["probed", "manual"])
def test_a_crash_at_any_boundary_of_a_cancelled_run_repeats_no_effect(effect: str, database_url: str) -> None:
    world = Cancels()
    act = tool_of(effect, world)
    agent = world.agent = Agent("cancelled", app=new_app(), tools=[act])

    @agent.step(start=True)
    def first(_state: Any) -> Any:
        act("a")
        return second

    @agent.step
    def second(_state: Any) -> Any:
        world.cancel()  # for the schedules in which the first one was not heard
        return done(act("b"))

    found = explore_crashes(agent, {}, world, database_url=database_url, brokers=("emptied",))

    assert not found.failures, found.report()
    assert "after commit cancel" in {str(point) for point in found.points}
    assert sum(world.effects().values()) == 1


def test_a_schedule_that_never_meets_its_crossing_is_a_failure() -> None:
    world = VendorWorld()
    found = explore_crashes(agent_of("keyed", world), {"what": "a"}, world, brokers=("redelivers",), lost_answers=False)

    assert {schedule.point for schedule in found.schedules if schedule.crashed} == set(found.points)
    assert {point.kind for point in found.points} == {"commit", "publish", "ack", "effect"}
    for point in set(found.points):
        assert f"× {point}" in found.report()


ENGINE = Path(agent_tasks.__file__).parent
#: Not the engine: they use it, or they are how a test looks at it; migrations have a transaction of their own.
OUTSIDE = {"boundary.py", "cli", "demo", "testing", "migrate.py", "migrations", "database.py"}


def engine_modules() -> Iterator[Path]:
    for path in ENGINE.rglob("*.py"):
        if path.relative_to(ENGINE).parts[0] not in OUTSIDE:
            yield path


#: Methods that begin a transaction, publish, ack or run user code.
FORBIDDEN = {
    "begin",
    "connect",
    "begin_nested",
    "apply_async",
    "delay",
    "publish",
    "send_task",
    "acknowledge",
    "reject",
    "probe_body",
    "body",
}


def test_no_module_but_the_boundary_commits_publishes_acks_or_runs_a_body() -> None:
    found = {
        (path.name, node.func.attr, ast.unparse(node.func.value))
        for path in engine_modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FORBIDDEN
    }
    allowed = {
        ("calling.py", "begin", "recorder"),  # the recorder's own, through boundary.commit
        ("recorder.py", "begin", "runtime.ledger"),
        ("doorbell.py", "publish", "self.boundary"),
        ("doorbell.py", "send_task", "self.app"),  # inside boundary.publish, asserted below
        ("tools.py", "body", "self"),  # Tool.run, which boundary.effect is given, and the spelled-out unguarded
        ("probing.py", "probe_body", "tool"),  # inside boundary.effect
        ("task.py", "acknowledge", "self"),  # AgentRequest's own, through boundary.ack
        ("plain_task.py", "apply_async", "super()"),  # eager: Celery calls the task here, and sends nothing
        ("joining.py", "begin_nested", "self.connection"),  # a savepoint in the caller's own transaction
        ("transactions.py", "connect", "_engine_around(connection.vendor)"),  # around the connection that Django opened
        ("task.py", "apply_async", "self"),  # Django's: AgentTask's own
        ("hosting.py", "connect", "signals.worker_init"),  # no database
        ("plain_task.py", "connect", "signals.celeryd_after_setup"),  # nor this
        ("hosting.py", "connect", "signals.worker_shutdown"),
        ("worker.py", "connect", "signals.worker_shutting_down"),
        ("runs.py", "begin_nested", "connection"),  # a savepoint in a transaction of the boundary
    }
    assert found == allowed


#: What runs user code or sends a message, and the boundary's method that must be given it.
HANDED_OVER = {"tool.run": "effect", "request.tool.run": "effect", "run_probe": "effect", "self._publish": "publish"}


def test_bodies_probes_and_messages_are_handed_to_the_boundary() -> None:
    seen = set()
    for path in engine_modules():
        tree = ast.parse(path.read_text())
        calls_in = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for method in ("effect", "publish"):
            inside = {
                id(inner)
                for outer in calls_in
                if ast.unparse(outer.func).endswith(f"boundary.{method}")
                for argument in outer.args
                for inner in ast.walk(argument)
            }
            for node in calls_in:
                name = ast.unparse(node.func)
                if HANDED_OVER.get(name) == method:
                    assert id(node) in inside, f"{path.name}:{node.lineno} calls {name} outside boundary.{method}"
                    seen.add(name)
    assert seen == set(HANDED_OVER)


def test_the_recovery_table_is_pure() -> None:
    tree = ast.parse(Path(recovery.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported <= {"annotations", "dataclass", "Enum", "auto", "IN_DOUBT", "Effect", "OperationStatus"}
