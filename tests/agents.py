"""Agents for tests: one for each effect, whose tools act on an outside world that counts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from celery import Celery
from sqlalchemy import text

from agent_tasks import Agent, Coalesce, Happened, NotHappened, Operation, Tool, calls, done, run_calls, tool
from agent_tasks.database import open_engine
from agent_tasks.testing import VendorWorld

_names = itertools.count(1)


def new_app() -> Celery:
    """Return an app of its own, so that agents of two tests never meet."""
    return Celery(f"test-{next(_names)}", broker="memory://")


class World(VendorWorld):
    """A vendor, and a table in the ledger's own database for the transactional tool."""

    def __init__(self, database_url: str | None = None) -> None:
        super().__init__()
        self.database_url = database_url
        self._engine = None if database_url is None else open_engine(database_url)
        if database_url is not None:
            self._in_database("CREATE TABLE IF NOT EXISTS effects (operation_id VARCHAR(40))")

    def reset(self) -> None:
        super().reset()
        if self.database_url is not None:
            self._in_database("DELETE FROM effects")

    def effects(self) -> Counter[str]:
        counted = super().effects()
        if self.database_url is not None:
            counted.update(row[0] for row in self._in_database("SELECT operation_id FROM effects"))
        return counted

    def _in_database(self, statement: str) -> list[Any]:
        assert self._engine is not None
        with self._engine.connect() as connection, connection.begin():
            found = connection.execute(text(statement))
            return list(found) if found.returns_rows else []

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()


def tool_of(effect: str, world: VendorWorld) -> Tool[..., Any]:
    """Return a tool that acts on the world in the way of an effect."""
    return _TOOLS[effect](world)


def _read(world: VendorWorld) -> Tool[..., Any]:
    @tool(effect="read", name="act")
    def read(what: str) -> str:
        return what.upper()

    return read


def _repeatable(world: VendorWorld) -> Tool[..., Any]:
    @tool(effect="repeatable", why="sets a value", bind=True, name="act")
    def repeatable(operation: Operation, what: str) -> str:
        world.act(operation.operation_id)
        return what.upper()

    return repeatable


def _transactional(world: VendorWorld) -> Tool[..., Any]:
    @tool(effect="transactional", bind=True, name="act")
    def transactional(operation: Operation, what: str) -> str:
        assert operation.connection is not None
        operation.connection.execute(text("INSERT INTO effects VALUES (:id)"), {"id": operation.operation_id})
        return what.upper()

    return transactional


def _keyed(world: VendorWorld) -> Tool[..., Any]:
    @tool(effect="keyed", key_lifetime=timedelta(hours=24), bind=True, name="act")
    def keyed(operation: Operation, what: str) -> int:
        return world.act(operation.operation_id, key=operation.idempotency_key)

    return keyed


def _probed(world: VendorWorld) -> Tool[..., Any]:
    @tool(effect="probed", timeout=timedelta(seconds=10), settle=timedelta(seconds=5), bind=True, name="act")
    def probed(operation: Operation, what: str) -> int:
        return world.act(operation.operation_id)

    @probed.probe
    def look(operation: Operation) -> Happened | NotHappened:
        number = world.look_up(operation.operation_id)
        return NotHappened() if number is None else Happened(number)

    return probed


def _manual(world: VendorWorld) -> Tool[..., Any]:
    @tool(effect="manual", timeout=timedelta(seconds=10), bind=True, name="act")
    def manual(operation: Operation, what: str) -> int:
        return world.act(operation.operation_id)

    return manual


_TOOLS: dict[str, Callable[[VendorWorld], Tool[..., Any]]] = {
    "read": _read,
    "repeatable": _repeatable,
    "transactional": _transactional,
    "keyed": _keyed,
    "probed": _probed,
    "manual": _manual,
}
EFFECTS = tuple(_TOOLS)


def agent_of(effect: str, world: VendorWorld) -> Agent:
    """Return an agent of two steps, each of which calls a tool of this effect; the second calls it twice."""
    act = tool_of(effect, world)
    agent = Agent("buyer", app=new_app(), tools=[act])

    @agent.step(start=True)
    def first(state: Any) -> Any:
        state["first"] = act(state["what"])
        state.messages.append({"role": "assistant", "content": f"got {state['first']}"})
        return second

    @agent.step
    def second(state: Any) -> Any:
        return done([state["first"], act("b"), act("c")])

    return agent


def short_agent_of(effect: str, world: VendorWorld) -> Agent:
    """Return an agent of two steps with one call each, for schedules of which there are many."""
    act = tool_of(effect, world)
    agent = Agent("short", app=new_app(), tools=[act])

    @agent.step(start=True)
    def first(state: Any) -> Any:
        state["first"] = act(state["what"])
        return second

    @agent.step
    def second(state: Any) -> Any:
        return done([state["first"], act("b")])

    return agent


def nested_agent(world: VendorWorld) -> Agent:
    """Return an agent with a tool that is called inside a tool."""
    inner = tool_of("probed", world)

    @tool(effect="keyed", key_lifetime=timedelta(hours=24), bind=True)
    def outer(operation: Operation, what: str) -> list[int]:
        return [inner(what), world.act(operation.operation_id, key=operation.idempotency_key)]

    agent = Agent("nested", app=new_app(), tools=[outer, inner])

    @agent.step
    def only(state: Any) -> Any:
        return done([outer(state["what"]), inner("b")])

    return agent


def _order(world: VendorWorld) -> Tool[..., Any]:
    @tool(effect="keyed", key_lifetime=timedelta(hours=24), bind=True)
    def order(operation: Operation, what: str) -> int:
        return world.act(operation.operation_id, key=operation.idempotency_key)

    return order


def batch_agent(world: VendorWorld) -> Agent:
    """Return an agent that makes calls of several kinds together."""
    act, order = tool_of("probed", world), _order(world)

    @tool(effect="read")
    def look(what: str) -> str:
        return what.upper()

    @tool(effect="transactional", bind=True)
    def book(operation: Operation, what: str) -> str:
        assert operation.connection is not None
        operation.connection.execute(text("INSERT INTO effects VALUES (:id)"), {"id": operation.operation_id})
        return what.upper()

    agent = Agent("batch", app=new_app(), tools=[act, order, look, book])

    @agent.step
    def only(state: Any) -> Any:
        first = run_calls([act.call(state["what"]), look.call("b"), order.call("c"), book.call("d")])
        return done([*first, act("e")])

    return agent


def planned_agent(world: VendorWorld) -> Agent:
    """Return an agent whose first step returns calls, for the second one to get their results."""
    act, order = tool_of("manual", world), _order(world)
    agent = Agent("planned", app=new_app(), tools=[act, order])

    @agent.step(start=True)
    def first(state: Any) -> Any:
        state.messages.append({"role": "assistant", "content": "both of them"})
        return calls([act.call(state["what"]), order.call("b")], then=second)

    @agent.step
    def second(_state: Any, results: Any) -> Any:
        return done([*results, order("c")])

    return agent


def coalesced_agent(effect: str, world: VendorWorld, checkpoints: str) -> Agent:
    """Return an agent whose steps share messages: some call nothing, one has a message of its own, one plans calls."""
    act = tool_of(effect, world)
    agent = Agent("coalesced", app=new_app(), tools=[act], coalesce=Coalesce(seconds=60, checkpoints=checkpoints))

    @agent.step(start=True)
    def begin(state: Any) -> Any:
        state["passed"] = ["begin"]
        return think

    @agent.step
    def think(state: Any) -> Any:
        state["passed"].append("think")
        state.messages.append({"role": "assistant", "content": "a"})
        return buy

    @agent.step
    def buy(state: Any) -> Any:
        state["passed"].append("buy")
        state["bought"] = [act(state["what"])]
        return rest

    @agent.step(rate_limit="1000/s")
    def rest(state: Any) -> Any:
        state["passed"].append("rest")
        return plan

    @agent.step
    def plan(state: Any) -> Any:
        state["passed"].append("plan")
        return calls([act.call("b")], then=end)

    @agent.step
    def end(state: Any, results: Any) -> Any:
        return done([*state["passed"], *state["bought"], *results])

    return agent


#: What is attacked with many schedules: an agent of each effect, one with a call inside a call, some with calls that are made
#: together, and some whose steps share a message.
SHORT_AGENTS: dict[str, Callable[[VendorWorld], Agent]] = {
    **{effect: partial(short_agent_of, effect) for effect in EFFECTS},
    "nested": nested_agent,
    "batch": batch_agent,
    "planned": planned_agent,
    "coalesced": partial(coalesced_agent, "probed", checkpoints="each"),
    "coalesced at boundaries": partial(coalesced_agent, "manual", checkpoints="boundaries"),
}
