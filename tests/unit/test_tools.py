"""Tools: what a declaration must say, and what a call is known by.

The declarations that are refused for a missing or misspelled word are rows of `test_bad_input`.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_tasks import (
    NotHappened,
    Operation,
    OutsideRun,
    RunFailed,
    RunHandle,
    Tool,
    UnguardedTool,
    done,
    tool,
)
from agent_tasks.declarations import TRANSACTIONAL_TIMEOUT
from agent_tasks.errors import ConfigurationError, UnorderedCalls
from agent_tasks.recovery import Promise
from agent_tasks.states import Effect
from agent_tasks.tools import check_guarded
from tests.one_process import OneProcess

SECONDS = timedelta(seconds=10)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[OneProcess]:
    here = OneProcess(f"sqlite:///{tmp_path / 'agent.db'}")
    yield here
    here.close()


# -- declarations -------------------------------------------------------------------------------------------------------


async def asynchronous() -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def stream() -> Any:
    yield 1


def nothing() -> None: ...


def mailing(to: str, words: str) -> None: ...


async def asynchronous_key(to: str, words: str) -> str:
    return to


class Lazy:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("declaration", "body", "message"),
    [
        ({"effect": "transactional"}, asynchronous, r"tool 'asynchronous' must be a plain function, got async: "),
        ({"effect": "read"}, generator, r"tool 'generator' must be a plain function, got a generator"),
        ({"effect": "read"}, stream, r"tool 'stream' must be a plain function, got an async generator"),
        ({"effect": "read", "bind": True}, nothing, r"bind=True and must have a first parameter .*, got none"),
        ({"effect": "read", "refused": ValueError}, nothing, r"a tuple of exception classes, got <class 'ValueError'>"),
        ({"effect": "read", "refused": [ValueError]}, nothing, r"a tuple of exception classes, got \["),
        ({"effect": "read", "refused": (KeyboardInterrupt,)}, nothing, r"must hold exception classes, got <class 'Key"),
        ({"effect": "read", "settle": timedelta(seconds=-1)}, nothing, r"settle= .* must be a timedelta of 0 or more"),
        ({"effect": "read", "visible_after": 5}, nothing, r"visible_after= of tool 'nothing' must be .*, got 5\."),
        ({"effect": "keyed", "key_lifetime": timedelta(0)}, nothing, r"'keyed' and has no key_lifetime="),
        ({"effect": "keyed", "key_lifetime": 3600}, nothing, r"key_lifetime= .* must be a timedelta .*, got 3600\."),
        ({"effect": "repeatable", "why": ""}, nothing, r"'repeatable' and has no why="),
        ({"effect": "Keyed"}, nothing, r"got 'Keyed'\. Did you mean 'keyed'\?"),
        ({"effect": "transaction"}, nothing, r"got 'transaction'\. Did you mean 'transactional'\?"),
        ({"effect": "prob"}, nothing, r"got 'prob'\. Did you mean 'probed'\?"),
        ({"effect": "transactional", "name": "look"}, asynchronous, r"tool 'look' must be a plain function"),
        ({"effect": "transactional"}, Lazy(), r"must be a plain function, got async"),
        ({"effect": "read", "name": 3}, nothing, r"name= of a tool must be a text of 1 to 200 characters .*, got 3\."),
        ({"effect": "read", "name": ""}, nothing, r"name= of a tool must be a text .*, got ''"),
        ({"effect": "read"}, 3, r"tool '3' must be a function, got 3"),
        ({"effect": "read", "record": 1}, nothing, r"record= of tool 'nothing' must be True or False, got 1"),
        ({"effect": "read", "bind": "yes"}, nothing, r"bind= of tool 'nothing' must be True or False, got 'yes'"),
        (
            {"effect": "keyed", "key_lifetime": SECONDS},
            mailing,
            (
                r"tool 'mailing' is 'keyed' and does not get its operation, so it cannot send operation\.idempotency_key: "
                r"add bind=True and take the operation first, or bind=False if an argument of its own is the vendor's key\."
            ),
        ),
        (
            {"effect": "probed", "timeout": SECONDS},
            mailing,
            (
                r"tool 'mailing' is 'probed' .* send operation\.operation_id, by which the probe finds .*, or bind=False if "
                r"an argument of its own is what the probe asks by\."
            ),
        ),
        ({"effect": "read", "bind": True}, lambda *, op: op, r"a first parameter .*, got 'op', which is given by name"),
        (
            {"effect": "read"},
            lambda operation, to: to,
            r"the first parameter .* is 'operation', and bind=True is missing",
        ),
        ({"effect": "read"}, lambda _operation: None, r"is '_operation', and bind=True is missing"),
        (
            {"effect": "read"},
            lambda self, to: to,
            r"is 'self', and bind=True is missing: .* Write bind=False if they do",
        ),
        (
            {"effect": "read", "identity": "to"},
            mailing,
            r"must be a tuple of names .*, got 'to'\. Write identity=\('to',\)",
        ),
        (
            {"effect": "read", "identity": 3},
            mailing,
            r"identity= of tool 'mailing' must be a tuple of names .*, got 3\.",
        ),
        (
            {"effect": "read", "key": "to"},
            mailing,
            r"key= .* must be a function of what .* by name \(to, words\), got 'to'",
        ),
        ({"effect": "read", "key": lambda zz: zz}, mailing, r"key= of tool 'mailing' .*got one of \(zz\): .*'(zz|to)'"),
        ({"effect": "read", "key": lambda to: to}, mailing, r"by name \(to, words\), got one of \(to\): .*'words'"),
        (
            {"effect": "read", "key": asynchronous_key},
            mailing,
            r"key= of tool 'mailing' must be a plain function, got async",
        ),
        (
            {"effect": "manual", "timeout": SECONDS, "why": "no"},
            nothing,
            r"why= of .* belongs to effect='repeatable', got 'm",
        ),
        ({"effect": "repeatable", "why": 3}, nothing, r"why= of tool 'nothing' must be a sentence, got 3"),
        ({"effect": "read", "settle": SECONDS}, nothing, r"settle= of tool 'nothing' belongs to .*, got 'read'"),
        ({"effect": "transactional", "settle": SECONDS}, nothing, r"settle= of .* belongs to .*, got 'transactional'"),
        (
            {"effect": "repeatable", "why": "sets", "settle": SECONDS},
            nothing,
            r"settle= .* a deadline, .* give timeout=",
        ),
        (
            {"effect": "read", "visible_after": SECONDS},
            nothing,
            r"visible_after= .* belongs to a probe, .*effect='read'",
        ),
    ],
)
def test_a_declaration_that_guards_nothing_is_refused(
    declaration: dict[str, Any], body: Callable[..., Any], message: str
) -> None:
    with pytest.raises(UnguardedTool, match=message):
        tool(**declaration)(body)


@pytest.mark.parametrize(
    ("declaration", "promise"),
    [
        ({"effect": "read"}, Promise(Effect.READ)),
        ({"effect": "repeatable", "why": "sets a value"}, Promise(Effect.REPEATABLE)),
        ({"effect": "repeatable", "why": "sets a value", "timeout": SECONDS}, Promise(Effect.REPEATABLE, waits=True)),
        ({"effect": "transactional"}, Promise(Effect.TRANSACTIONAL, waits=True)),
        ({"effect": "keyed", "key_lifetime": SECONDS}, Promise(Effect.KEYED)),
        ({"effect": "probed", "timeout": SECONDS}, Promise(Effect.PROBED, waits=True)),
        ({"effect": Effect.MANUAL, "timeout": SECONDS}, Promise(Effect.MANUAL, waits=True)),
    ],
    ids=str,
)
def test_a_declaration_becomes_a_promise(declaration: dict[str, Any], promise: Promise) -> None:
    assert tool(**declaration, bind=False)(nothing).promise == promise


def test_a_transactional_tool_has_a_timeout_and_keeps_what_else_it_was_declared_with() -> None:
    guard = tool(effect="transactional", refused=(ValueError,))(nothing).guard
    assert (guard.timeout, guard.refused) == (TRANSACTIONAL_TIMEOUT, (ValueError,))
    assert tool(effect="transactional", timeout=SECONDS)(nothing).guard.timeout == SECONDS


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("retires", r"tool\(…\) has no option retires=\. Retries are declared at the step\. It has: effect, timeout,"),
        ("identitty", r"has no option identitty=\. Did you mean 'identity'\?"),
    ],
)
def test_an_option_that_no_tool_has_is_answered_with_those_that_it_has(option: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        tool(effect="read", **{option: 3})(nothing)  # type: ignore[call-overload, arg-type, unused-ignore]


def test_a_first_parameter_may_be_called_operation_where_it_is_said_that_callers_pass_it() -> None:
    calculate = tool(effect="read", bind=False)(lambda operation, number: f"{operation} {number}")
    assert calculate("add", 3) == "add 3"


@pytest.mark.parametrize(
    ("option", "effect", "guard"),
    [
        ("settle", "keyed", {"key_lifetime": SECONDS}),
        ("visible_after", "keyed", {"key_lifetime": SECONDS}),
        ("visible_after", "manual", {"timeout": SECONDS}),
    ],
)
def test_what_only_a_probe_reads_is_refused_without_one(option: str, effect: str, guard: dict[str, Any]) -> None:
    charge = tool(effect=effect, name="charge", **guard, **{option: SECONDS}, bind=False)(nothing)
    with pytest.raises(UnguardedTool, match=rf"^{option}= of agent 'order': tool 'charge' .*eclare .* @charge\.probe"):
        check_guarded(charge, "agent 'order'")
    charge.probe(timeout=SECONDS)(lambda _operation: NotHappened())
    assert check_guarded(charge, "agent 'order'") is charge


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ("look", r"the probe of tool 'nothing' must be a function of an operation, got 'look'"),
        (lambda: None, r"must be a function of an operation, got one of \(\): too many positional arguments"),
        (stream, r"the probe of tool 'nothing' must be a plain function, got an async generator"),
    ],
)
def test_a_probe_that_cannot_be_asked_is_refused_at_once(probe: Any, said: str) -> None:
    charge = tool(effect="probed", timeout=SECONDS, bind=False)(nothing)
    with pytest.raises(UnguardedTool, match=said):
        charge.probe(probe)
    with pytest.raises(UnguardedTool, match=r"timeout= of the probe .* must be a timedelta of more than 0, got 5"):
        charge.probe(timeout=5)(lambda _operation: NotHappened())  # type: ignore[call-overload]


def test_a_tool_looks_like_its_function() -> None:
    @tool(effect="read", name="price-of")
    def price(item: str) -> int:
        """Look up a price."""
        return len(item)

    assert (price.__doc__, price.__name__, price.name) == ("Look up a price.", "price", "price-of")
    assert repr(price) == "<tool price-of effect=read>"


def test_a_callable_without_a_name_gives_its_tool_one() -> None:
    class Price:
        def __call__(self, item: str) -> int:
            return len(item)

        def __repr__(self) -> str:
            return "the price"

    assert tool(effect="read")(Price()).name == "the price"


def test_an_agent_accepts_guarded_tools_only() -> None:
    look = tool(effect="probed", timeout=SECONDS, bind=False)(nothing)
    with pytest.raises(UnguardedTool, match=r"agent 'order': tool 'nothing' is 'probed' and has no probe"):
        check_guarded(look, "agent 'order'")
    look.probe(lambda _operation: NotHappened())
    assert check_guarded(look, "agent 'order'") is look
    with pytest.raises(UnguardedTool, match=r"agent 'order': 'nothing' is in tools= and not declared as a tool"):
        check_guarded(nothing, "agent 'order'")
    with pytest.raises(UnguardedTool, match=r"agent 'order': '7' is in tools="):
        check_guarded(7, "agent 'order'")


# -- outside a run ------------------------------------------------------------------------------------------------------


def test_a_read_works_outside_a_run() -> None:
    assert tool(effect="read")(len)("four") == 4


def test_a_tool_with_an_effect_does_not_work_outside_a_run_unless_it_is_said() -> None:
    sent: list[str] = []
    mail = tool(effect="manual", timeout=SECONDS, name="mail")(sent.append)
    with pytest.raises(OutsideRun, match=r"tool 'mail' has the effect 'manual' .*write mail\.unguarded"):
        mail("kim")
    assert sent == []
    mail.unguarded("kim")
    assert sent == ["kim"]


def test_a_bound_tool_does_not_work_outside_a_run_at_all() -> None:
    @tool(effect="read", bind=True)
    def price(operation: Operation, item: str) -> str:
        return operation.run_id + item

    with pytest.raises(OutsideRun, match="tool 'price'"):
        price("tea")
    with pytest.raises(OutsideRun, match=r"tool 'price' is declared with bind=True"):
        price.unguarded("tea")


# -- arguments and identity ---------------------------------------------------------------------------------------------


def test_arguments_are_recorded_by_name_with_defaults() -> None:
    @tool(effect="read")
    def charge(card: str, /, cents: int, *notes: str, currency: str = "EUR", **more: int) -> None: ...

    recorded = charge.bind_arguments(("card-1", 100, "a", "b"), {"tip": 5})
    assert recorded == {
        "card": "card-1",
        "cents": 100,
        "notes": ("a", "b"),
        "currency": "EUR",
        "more": {"tip": 5},
    }


def test_a_body_gets_its_recorded_arguments_as_they_were_passed() -> None:
    def body(card: str, /, cents: int, *notes: str, currency: str = "EUR", **more: int) -> tuple[object, ...]:
        return card, cents, notes, currency, more

    charge = tool(effect="read")(body)
    recorded = charge.bind_arguments(("card-1", 100, "a"), {"tip": 5})
    assert charge.run(None, recorded) == ("card-1", 100, ("a",), "EUR", {"tip": 5})  # type: ignore[arg-type]


def test_a_field_may_have_any_name(here: OneProcess) -> None:
    @tool(effect="read", bind=False)
    def look(**fields: int) -> dict[str, int]:
        return fields

    fields = {"self": 1, "args": 2, "kwargs": 3, "operation": 4, "attempt": 5}
    assert look(**fields) == look.unguarded(**fields) == look.call(**fields).arguments["fields"] == fields
    assert here.run(here.agent(look, send=lambda _state: done(look(**fields)))).get(timeout=0) == fields


def test_arguments_that_do_not_fit_are_a_type_error_before_anything_is_recorded(here: OneProcess) -> None:
    @tool(effect="manual", timeout=SECONDS)
    def mail(to: str) -> None:
        here.requests.append(to)

    run = here.run(here.agent(mail, send=lambda _state: done(mail())))
    said = r"TypeError: tool 'mail' is called as mail\(to\): missing a required argument: 'to'\. Nothing was sent\.$"
    with pytest.raises(RunFailed, match=said):
        run.get(timeout=0)
    assert (here.requests, run.operations()) == ([], [])


def test_whoever_passes_the_operation_hears_that_it_is_passed_by_itself(here: OneProcess) -> None:
    @tool(effect="manual", timeout=SECONDS, bind=True)
    def mail(operation: Operation, to: str) -> None:
        here.requests.append(to)

    run = here.run(here.agent(mail, send=lambda _state: done(mail(None, "kim"))))
    with pytest.raises(RunFailed, match=r"called as mail\(to\): too many .* Its operation is passed by itself"):
        run.get(timeout=0)


@pytest.mark.parametrize("returned", [1, None, "", b"k", "x" * 201])
def test_a_key_that_is_no_text_is_named_before_anything_is_sent(here: OneProcess, returned: Any) -> None:
    mail = tool(effect="manual", timeout=SECONDS, name="mail", key=lambda to: returned)(
        lambda to: here.requests.append([to])
    )
    run = here.run(here.agent(mail, send=lambda _state: done(mail("kim"))))
    with pytest.raises(
        RunFailed, match=r"key= of tool 'mail' must return a text of 1 to 200 characters without NUL, got"
    ):
        run.get(timeout=0)
    assert (here.requests, run.operations()) == ([], [])


def test_a_bound_body_gets_its_operation_first(here: OneProcess) -> None:
    @tool(effect="manual", timeout=SECONDS, bind=True)
    def mail(operation: Operation, to: str) -> str:
        here.requests.append((operation.run_id, operation.seq, operation.tool, operation.args))
        assert 0 < operation.remaining() <= SECONDS.total_seconds()
        return operation.idempotency_key

    run = here.run(here.agent(mail, send=lambda _state: done(mail("kim"))))
    (operation,) = run.operations()
    assert run.get(timeout=0) == operation.operation_id == operation.idempotency_key
    assert here.requests == [("run-1", 1, "mail", {"to": "kim"})]


def crash_once(here: OneProcess, mail: Tool[..., Any], *calls: tuple[Any, ...]) -> RunHandle:
    """Run a step that loses its worker after the first call, and makes the second call in its next attempt."""
    remaining = list(calls)

    def send(_state: Any) -> Any:
        result = mail(*remaining.pop(0))
        if remaining:
            raise MemoryError
        return done(result)

    agent = here.agent(mail, send=send)
    return here.run(agent)


def test_arguments_that_are_not_part_of_the_identity_may_differ(here: OneProcess) -> None:
    @tool(effect="manual", timeout=SECONDS, identity=("to",))
    def mail(to: str, text: str) -> str:
        here.requests.append((to, text))
        return text

    run = crash_once(here, mail, ("kim", "at 10:00"), ("kim", "at 10:01"))
    assert run.get(timeout=0) == "at 10:00"
    assert here.requests == [("kim", "at 10:00")]


def test_arguments_that_are_part_of_the_identity_may_not(here: OneProcess) -> None:
    @tool(effect="manual", timeout=SECONDS, identity=("to",))
    def mail(to: str, text: str) -> None:
        here.requests.append((to, text))

    run = crash_once(here, mail, ("kim", "hello"), ("lee", "hello"))
    assert [str(item.question) for item in run.inbox()] == ["conflict"]
    assert here.requests == [("kim", "hello")]


def test_a_key_is_the_identity_of_a_call_in_its_whole_run(here: OneProcess) -> None:
    @tool(effect="manual", timeout=SECONDS, key=lambda order: f"order-{order}")
    def ship(order: int) -> int:
        here.requests.append(order)
        return len(here.requests)

    def first(state: Any) -> Any:
        state["shipped"] = [ship(7), ship(8), ship(7)]
        return agent.steps["second"]

    agent = here.agent(ship, first=first, second=lambda state: done([*state["shipped"], ship(8)]))
    run = here.run(agent)
    assert run.get(timeout=0) == [1, 2, 1, 2]
    assert here.requests == [7, 8]
    assert {operation.row["call_key"] for operation in run.operations()} == {"order-7", "order-8"}


def test_the_nth_call_of_a_tool_keeps_its_place_beside_other_tools(here: OneProcess) -> None:
    first = tool(effect="manual", timeout=SECONDS, name="first")(here.requests.append)
    other = tool(effect="manual", timeout=SECONDS, name="other")(here.requests.append)

    def send(_state: Any) -> Any:
        first(1)
        other(2)
        first(3)
        return done()

    run = here.run(here.agent(first, other, send=send))
    assert [(o.tool, o.row["ordinal"]) for o in run.operations()] == [("first", 0), ("other", 0), ("first", 1)]


def test_a_call_from_another_thread_is_outside_the_run_or_has_no_order(here: OneProcess) -> None:
    mail = tool(effect="manual", timeout=SECONDS, name="mail")(here.requests.append)
    said: list[str] = []

    def call() -> None:
        with pytest.raises((OutsideRun, UnorderedCalls)) as error:
            mail("kim")
        said.append(error.typename)

    def send(_state: Any) -> Any:
        context = contextvars.copy_context()
        for target in (call, lambda: context.run(call)):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        return done()

    run = here.run(here.agent(mail, send=send))
    assert said == ["OutsideRun", "UnorderedCalls"]
    assert (here.requests, run.operations()) == ([], [])
