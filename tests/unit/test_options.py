"""Options of steps and plain tasks: none is taken that nobody reads."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from celery.worker.consumer import Consumer

from agent_tasks import Agent, AgentTask, done
from agent_tasks.errors import ConfigurationError
from tests.agents import new_app

#: Celery says of some of its own options that they will go.
pytestmark = pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")


def given(option: str, value: object = 3) -> dict[str, Any]:
    return {option: value}


@pytest.fixture
def agent() -> Agent:
    return Agent("order", app=new_app())


@pytest.fixture
def app() -> Celery:
    return Celery("declared", broker="memory://", set_as_current=False)


def pay(order: str) -> str:
    return order


def paying(app: Celery, base: type[Any] = AgentTask, **options: Any) -> Any:
    return app.task(base=base, name="pay", effect="read", lazy=False, shared=False, **options)(pay)


# -- of a step ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("time_limt", r"Did you mean 'time_limit'\?$"),
        ("queu", r"Did you mean 'queue'\?$"),
        ("rate_limits", r"Did you mean 'rate_limit'\?$"),
        ("on_failur", r"Did you mean 'on_failure'\?$"),
        ("colaesce", r"Did you mean 'coalesce'\? It belongs to the agent: Agent\(…, coalesce=…\)\.$"),
        ("timout", r"Did you mean 'timeout'\? It belongs to the tool .*@tool\(timeout=…\)\. A step has time_limit="),
        ("coalesce", r"It belongs to the agent: Agent\(…, coalesce=…\)\.$"),
        ("tools", r"It belongs to the agent: Agent\(…, tools=…\)\.$"),
        ("effect", r"It belongs to the tool that the step calls: @tool\(effect=…\)\.$"),
        ("key_lifetime", r"It belongs to the tool that the step calls: @tool\(key_lifetime=…\)\.$"),
        ("dedupe_key", r"It belongs to the call: enqueue\(…, dedupe_key=…\)\.$"),
        ("dedupe_on", r".*; a run of an agent has enqueue\(…, dedupe_key=…\)\.$"),
        ("bind", r"It belongs to app\.task\(…\): a step is a plain function of the state\.$"),
        ("before_start", r"It would be called for each doorbell, .*: begin its body with it\.$"),
        ("foo", r"It has those about retries, such as max_retries=, and those of Celery's tasks, such as queue="),
        ("run", r"It has those about retries"),
        ("agent", r"It has those about retries"),
    ],
)
def test_a_step_refuses_an_option_that_nobody_reads(agent: Agent, option: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^step 'pay' of agent 'order' has no option {option}=\. ?{said}"):
        agent.step(name="pay", **given(option))(lambda _state: done())
    assert agent.steps == {}
    assert "order.pay" not in agent.app.tasks


@pytest.mark.parametrize(
    "option",
    [
        *({"time_limit": 9}, {"soft_time_limit": 8}, {"rate_limit": "1/s"}, {"queue": "x"}, {"routing_key": "x"}),
        *({"serializer": "json"}, {"compression": "gzip"}, {"priority": 3}, {"ignore_result": True}, {"typing": False}),
        *({"acks_late": True}, {"acks_on_timeout": True}, {"on_failure": print}, {"track_started": True}),
        *({"store_eager_result": False}, {"max_retries": 2}, {"throws": (KeyError,)}, {"start": True}),
    ],
    ids=str,
)
def test_a_step_takes_what_celery_and_this_package_know(agent: Agent, option: dict[str, Any]) -> None:
    agent.step(name="pay", **option)(lambda _state: done())
    assert "order.pay" in agent.app.tasks


# -- of a plain task ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("time_limt", r"Did you mean 'time_limit'\?$"),
        ("queu", r"Did you mean 'queue'\?$"),
        ("agent_mod", r"Did you mean 'agent_mode'\?$"),
        ("on_failur", r"Did you mean 'on_failure'\?$"),
        ("pydantics", r"Did you mean 'pydantic'\?$"),
        ("colaesce", r"Did you mean 'coalesce'\? It belongs to an agent, .*: Agent\(…, coalesce=…\)\.$"),
        ("coalesce", r"It belongs to an agent, which has several steps: Agent\(…, coalesce=…\)\.$"),
        ("identity", r"It belongs to a tool; a plain task has dedupe_on=\.$"),
    ],
)
def test_a_plain_task_refuses_a_slip_and_what_agents_have(app: Celery, option: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^task 'pay' has no option {option}=\. {said}"):
        paying(app, **given(option))


@pytest.mark.parametrize("option", ["job", "operation", "unguarded"])
def test_a_plain_task_refuses_a_word_that_its_base_has_for_itself(app: Celery, option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^task 'pay' cannot have {option}=, a word of AgentTask itself"):
        paying(app, **given(option, "billing"))


def test_an_option_that_is_like_no_other_is_an_attribute_as_in_celery(app: Celery) -> None:
    assert paying(app, foo=1).foo == 1


def test_an_option_of_the_users_own_base_class_is_no_slip(app: Celery) -> None:
    class Mixin:
        identity = "nobody"

    class Payment(AgentTask, Mixin):
        abstract = True
        queues = ("slow",)

    made = paying(app, Payment, queues=("fast",), identity="kim")
    assert (made.queues, made.identity) == (("fast",), "kim")


def test_a_misspelt_limit_of_a_base_class_is_refused(app: Celery) -> None:
    class Payment(AgentTask):
        abstract = True
        time_limt = 3

    with pytest.raises(ConfigurationError, match=r"task 'pay' has no option time_limt=\. Did you mean 'time_limit'\?"):
        paying(app, Payment)


@pytest.mark.parametrize(
    "option",
    [
        *({"time_limit": 9}, {"rate_limit": "1/s"}, {"priority": 3}, {"serializer": "json"}),
        *({"autoretry_for": (KeyError,)}, {"retry_kwargs": {}}, {"retry_jitter": False}, {"dedupe_on": ("order",)}),
        *({"acks_late": True}, {"acks_on_timeout": True}, {"on_failure": print}, {"agent_mode": "guard"}),
    ],
    ids=str,
)
def test_a_plain_task_takes_what_celery_and_this_package_know(app: Celery, option: dict[str, Any]) -> None:
    assert paying(app, **option).job is not None


# -- rate limits --------------------------------------------------------------------------------------------------------

RATES = [None, "", 0, 5, 0.5, "5", "0.5/s", "10/m", "2/h"]
NO_RATES = ["ten", "10/min", "/m", "10 per minute", "-1/s", "nan", -1, float("inf"), True, timedelta(seconds=9)]


@pytest.mark.parametrize("rate", NO_RATES, ids=repr)
def test_a_rate_with_which_no_worker_starts_is_refused(agent: Agent, app: Celery, rate: object) -> None:
    said = "must be a number of messages a second, or a text with its unit, such as '10/s', '10/m' or '10/h', got "
    with pytest.raises(ConfigurationError, match=f"^rate_limit= of step 'pay' of agent 'order' {said}"):
        agent.step(name="pay", **given("rate_limit", rate))(lambda _state: done())
    assert agent.steps == {}
    with pytest.raises(ConfigurationError, match=f"^rate_limit= of task 'pay' {said}"):
        paying(app, **given("rate_limit", rate))
    other = new_app()
    other.conf.task_default_rate_limit = rate
    with pytest.raises(ConfigurationError, match=f"^task_default_rate_limit {said}"):
        paying(other)


@pytest.mark.parametrize("rate", RATES, ids=repr)
def test_a_rate_that_is_taken_is_one_that_a_worker_counts_by(agent: Agent, app: Celery, rate: Any) -> None:
    agent.step(name="pay", rate_limit=rate)(lambda _state: done())
    for task in (agent.app.tasks["order.pay"], paying(app, rate_limit=rate)):
        bucket = Consumer.bucket_for_task(None, task)
        assert bucket is None or bucket.can_consume()
