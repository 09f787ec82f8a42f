"""A ledger with two workers beside a real bank, whose clocks the test moves together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from celery import Celery

from agent_tasks import Agent, Happened, NotHappened, Operation, RunHandle, Tool, done, tool
from agent_tasks.integration import AppState
from agent_tasks.states import RunStatus
from tests.duel import RUN, Duel
from tests.vendor_server import Bank, Client, Refused, Way

TIMEOUT, SETTLE = timedelta(seconds=10), timedelta(seconds=5)
HORIZON_SECONDS, KEY_LIFE = 15.0, timedelta(hours=1)


class Market(Duel):
    """What one test works with.

    Attributes:
        bank: the outside world.
        client: what tools call it with.
    """

    def __init__(self, url: str, bank: Bank) -> None:
        super().__init__(url)
        self.bank, self.client = bank, Client(bank.port)

    def later(self, agent: Agent, seconds: float) -> None:
        """Let time pass on both sides, and let the rival work on what is due then."""
        self.bank.advance(seconds)
        super().later(agent, seconds)

    def script(self, *ways: Way) -> None:
        """Say how the bank treats the next charges; it accepts those after them."""
        self.bank.script.extend(ways)

    def charge(self, effect: str, *, probe: Callable[[Operation], Any] | None = None, **options: Any) -> Tool[..., Any]:
        """Return a tool that charges at the bank; `options` go to its declaration."""
        declared: dict[str, Any] = {"timeout": TIMEOUT, "settle": SETTLE, "refused": (Refused,), "bind": True}
        if effect == "read":
            del declared["settle"]
        elif effect == "keyed":
            declared["key_lifetime"] = KEY_LIFE
        elif effect == "repeatable":
            declared["why"] = "the bank is told the same again"

        @tool(effect=effect, name="charge", **{**declared, **options})
        def charge(operation: Operation, cents: int) -> Any:
            key = operation.idempotency_key if effect == "keyed" else None
            return self.client.charge(operation.operation_id, cents, key=key)

        if probe is not None or effect == "probed":
            charge.probe(probe or self.look)
        return charge

    def look(self, operation: Operation) -> Happened | NotHappened:
        """Look the operation up in the bank's list."""
        found = self.client.charges(operation.operation_id)
        return Happened(found[0], external_id=found[0]["id"]) if found else NotHappened()

    def start(self, charge: Tool[..., Any], step: Callable[[Any], Any] | None = None) -> Agent:
        """Start a run that charges, and work until it ends or waits."""
        order = self.agent(charge, pay=step or (lambda _state: done(charge(100))))
        self.run(order)
        self.sound()
        return order

    def deploy(self, *tools: Any, **steps: Callable[[Any], Any]) -> Agent:
        """Return the agent as a new release declares it."""
        self.app = Celery("new-release", broker="memory://", set_as_current=False)
        self.app.conf.agent_database_url = self.url
        AppState.of(self.app).use_runtime(self.runtime)
        return self.agent(*tools, **steps)

    def settle(self, agent: Agent, rounds: int = 40) -> RunStatus:
        """Work until the run ends; a person answers what is asked by what the bank's own staff sees."""
        for _ in range(rounds):
            if self.drive(agent, rounds) is not RunStatus.NEEDS_ATTENTION or not self.person(agent):
                break
        return RunHandle(self.rival, RUN).status

    def person(self, agent: Agent) -> bool:
        """Answer an open `unknown` by the bank's book; False if there is none."""
        if self.questions() != ["unknown"]:
            return False
        found = self.bank.charged(self.operation().operation_id)
        self.reply(agent, "did-not-happen" if found is None else "happened", None if found is None else found.seen())
        return True

    def output(self) -> Any:
        """Return what the run ended with."""
        return RunHandle(self.rival, RUN).get(timeout=0)

    def evidence(self) -> list[tuple[str, str]]:
        """Return what was said about the run's only operation."""
        return [(fact["what"], fact["said"]) for fact in self.operation().evidence]

    def charged_once(self) -> None:
        """Fail unless the bank charged the run's only operation exactly once, and the ledger knows that charge."""
        operation = self.operation()
        assert self.bank.count() == {operation.operation_id: 1}
        assert (str(operation.status), operation.result) == ("succeeded", self.bank.book[0].seen())


@contextmanager
def market(url: str, **bank: Any) -> Iterator[Market]:
    """Open a market, with a bank of these habits."""
    with Bank(**bank) as opened:
        here = Market(url, opened)
        try:
            yield here
        finally:
            here.close()
