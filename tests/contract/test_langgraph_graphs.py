"""Compiled graphs on the saver: the same as on LangGraph's own saver in memory, and no tool a second time."""

from __future__ import annotations

import asyncio
import operator
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Annotated, Any

import pytest
from typing_extensions import TypedDict

from tests.savers import DATABASES, database_url, rows, savers

pytest.importorskip("langgraph.graph")

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt

from checkpoint.langgraph import CheckpointSaver, ThreadConflict

Make = Callable[..., CheckpointSaver]
CONFIG: Any = {"configurable": {"thread_id": "order-7"}}


@pytest.fixture(params=DATABASES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    with savers(database_url(request.param, request, tmp_path)) as made:
        yield made


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Make]:
    with savers(f"sqlite:///{tmp_path / 'threads.db'}") as made:
        yield made


class Talk(MessagesState):
    count: Annotated[int, operator.add]
    notes: dict[str, str]


def talk(saver: Any) -> Any:
    """Compile a graph whose agent answers twice; everything in it depends on nothing but its state."""

    def agent(state: Talk) -> Any:
        number = len(state["messages"]) + state["count"] * 100
        return {
            "messages": [AIMessage(f"answer {number} " + "x" * 80, id=f"a{number}")],
            "count": 1,
            "notes": {str(number): "n"},
        }

    def again(state: Talk) -> str:
        return "agent" if state["count"] % 2 else END

    graph = StateGraph(Talk).add_node("agent", agent).add_edge(START, "agent").add_conditional_edges("agent", again)
    return graph.compile(checkpointer=saver)


def seen(graph: Any) -> list[Any]:
    """Return what is the same on every saver of all checkpoints."""
    return [
        (
            state.values,
            state.next,
            state.metadata["source"],
            state.metadata["step"],
            [task.name for task in state.tasks],
        )
        for state in graph.get_state_history(CONFIG)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_any_course_is_that_of_the_saver_in_memory(on_sqlite: Make, seed: int) -> None:
    ours, theirs = talk(on_sqlite()), talk(InMemorySaver())
    choices = random.Random(seed)
    for turn in range(10):
        history = list(ours.get_state_history(CONFIG))
        at = choices.randrange(len(history)) if history else 0
        messages = history[at].values.get("messages") or [] if history else []
        victim = choices.choice(messages).id if messages else None
        deed = choices.choice(["say", "say", "say", "remove", "edit", "fork", "replay", "fresh"]) if victim else "say"
        durability = choices.choice(["sync", "async", "exit"])
        for graph in (ours, theirs):
            there = list(graph.get_state_history(CONFIG))
            old = there[at].config if there else CONFIG
            match deed:
                case "say":
                    said = {"messages": [HumanMessage(f"question {turn}", id=f"q{turn}")]}
                    graph.invoke(said, CONFIG, durability=durability)
                case "remove":
                    graph.update_state(old, {"messages": [RemoveMessage(id=victim)]}, as_node="agent")
                case "edit":
                    graph.update_state(old, {"messages": [HumanMessage("edited", id=victim)]}, as_node="agent")
                case "fork":
                    graph.invoke(
                        {"messages": [HumanMessage(f"fork {turn}", id=f"f{turn}")]}, old, durability=durability
                    )
                case "replay":
                    graph.invoke(None, old, durability=durability)
                case "fresh":  # another process goes on
                    ours = talk(on_sqlite())
        assert seen(ours) == seen(theirs), (turn, deed)
    assert seen(talk(on_sqlite())) == seen(theirs)


class Tools(TypedDict):
    done: Annotated[list[str], operator.add]


def tools(saver: Any, calls: list[str]) -> Any:
    """Compile a graph that calls three tools at once, of which one waits for a person."""

    def tool(state: Any) -> Any:
        calls.append(state["name"])
        answer = interrupt("may I?") if state["name"] == "pay" else "ok"
        return {"done": [f"{state['name']}: {answer} " + "x" * 80]}

    graph = (
        StateGraph(Tools).add_node("plan", lambda state: {"done": []}).add_node("tool", tool).add_edge(START, "plan")
    )
    sends = [Send("tool", {"name": name}) for name in ("look", "pay", "write")]
    return graph.add_conditional_edges("plan", lambda state: sends, ["tool"]).compile(checkpointer=saver)


def test_after_a_pruning_no_finished_tool_runs_again(make: Make) -> None:
    calls: list[str] = []
    state = tools(make(), calls).invoke({"done": []}, CONFIG)
    assert state["__interrupt__"][0].value == "may I?"
    saver = make()
    saver.prune(["order-7"])
    assert rows(saver)["checkpoints"] == 1
    done = tools(make(), calls).invoke(Command(resume="yes"), CONFIG)["done"]
    assert [each.split(" x")[0] for each in done] == ["look: ok", "pay: yes", "write: ok"]
    assert sorted(calls) == ["look", "pay", "pay", "write"]


def test_a_subgraph_that_waits_goes_on_after_a_pruning(make: Make) -> None:
    calls: list[str] = []

    def outer(saver: Any) -> Any:
        inner = tools(None, calls)
        return StateGraph(Tools).add_node("inner", inner).add_edge(START, "inner").compile(checkpointer=saver)

    outer(make()).invoke({"done": []}, CONFIG)
    make().prune(["order-7"])
    done = outer(make()).invoke(Command(resume="yes"), CONFIG)["done"]
    assert [each.split(" x")[0] for each in done] == ["look: ok", "pay: yes", "write: ok"]
    assert sorted(calls) == ["look", "pay", "pay", "write"]
    saver = make()
    saver.delete_thread("order-7")
    assert set(rows(saver).values()) == {0}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("is_new", [True, False])
def test_of_two_workers_that_go_on_with_a_thread_one_gets_a_conflict(make: Make, durability: Any, is_new: bool) -> None:
    if not is_new:
        talk(make()).invoke({"messages": [HumanMessage("first", id="q0")]}, CONFIG)
    both = Barrier(2)

    class Meets(CheckpointSaver):
        def get_tuple(self, config: Any) -> Any:
            found = super().get_tuple(config)
            both.wait()
            return found

    def answer(number: int) -> Any:
        saver = make()
        saver.__class__ = Meets
        try:
            return talk(saver).invoke(
                {"messages": [HumanMessage(f"{number}", id=f"w{number}")]}, CONFIG, durability=durability
            )
        except ThreadConflict as conflict:
            return conflict

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(answer, range(2)))
    (won,) = [outcome for outcome in outcomes if not isinstance(outcome, ThreadConflict)]
    assert talk(make()).get_state(CONFIG).values == won


def test_event_loops_run_graphs_too(make: Make) -> None:
    async def course() -> Any:
        graph = talk(make())
        for number in range(3):
            await graph.ainvoke({"messages": [HumanMessage(f"{number}", id=f"q{number}")]}, CONFIG)
        return [state.values async for state in graph.aget_state_history(CONFIG)]

    there = talk(InMemorySaver())
    for number in range(3):
        there.invoke({"messages": [HumanMessage(f"{number}", id=f"q{number}")]}, CONFIG)
    assert asyncio.run(course()) == [state.values for state in there.get_state_history(CONFIG)]


def together(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(part for write in writes for part in write)]


class Deltas(TypedDict):
    log: Annotated[list[str], DeltaChannel(together, snapshot_frequency=4)]
    turn: int


def deltas(saver: Any) -> Any:
    def left(state: Any) -> Any:
        return {"log": [f"left {len(state['log'])} " + "x" * 80], "turn": state["turn"] + 1}

    def right(state: Any) -> Any:
        return {"log": [f"right {len(state['log'])} " + "x" * 80]}

    graph = (
        StateGraph(Deltas)
        .add_node("left", left)
        .add_node("right", right)
        .add_edge(START, "left")
        .add_edge(START, "right")
    )
    graph = graph.add_conditional_edges("left", lambda state: END if state["turn"] % 3 == 0 else "left")
    return graph.compile(checkpointer=saver)


@pytest.mark.filterwarnings("ignore:.*beta.*")
def test_delta_channels_are_those_of_the_saver_in_memory_on_every_branch(make: Make) -> None:
    saver = make()
    ours, theirs = deltas(saver), deltas(InMemorySaver())
    for graph in (ours, theirs):
        for number in range(4):
            graph.invoke({"log": [f"input {number}"], "turn": 0}, CONFIG)
        old = list(graph.get_state_history(CONFIG))[6].config
        graph.invoke({"log": ["fork"], "turn": 0}, old)
        graph.invoke({"log": ["then"], "turn": 0}, CONFIG, durability="exit")
    assert seen(ours) == seen(theirs)
    assert seen(deltas(make())) == seen(theirs)
    for state in ours.get_state_history(CONFIG):
        plainly = BaseCheckpointSaver.get_delta_channel_history(saver, config=state.config, channels=["log", "none"])
        assert saver.get_delta_channel_history(config=state.config, channels=["log", "none"]) == plainly
        loop = saver.aget_delta_channel_history(config=state.config, channels=["log"])
        assert asyncio.run(loop)["log"] == plainly["log"]  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*beta.*")
def test_a_pruned_thread_keeps_what_its_delta_channels_are_put_together_from(make: Make) -> None:
    graph = deltas(make())
    for number in range(7):
        graph.invoke({"log": [f"input {number}"], "turn": 0}, CONFIG)
        before = graph.get_state(CONFIG).values
        saver = make()
        saver.prune(["order-7"])
        assert deltas(make()).get_state(CONFIG).values == before
        assert rows(saver)["checkpoints"] <= 8
    graph = deltas(make())
    assert graph.invoke({"log": ["more"], "turn": 0}, CONFIG)["log"][: len(before["log"])] == before["log"]
