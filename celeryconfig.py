"""Settings of a Celery app that runs agents: copy this file beside your app and keep what you need.

    app = Celery("shop")
    app.config_from_object("celeryconfig")

With nothing set it needs no server: the broker is a folder and the ledger a file, both in the data folder. Every
setting can come from the environment instead, under the name that stands beside it. Callers that enqueue need the same
broker, ledger and queue as the workers, so give both this file.
"""

import os
from pathlib import Path


def _setting(variable, default, read=str, meaning="a text"):
    """Read a variable of the environment; an empty one counts as not set."""
    text = os.environ.get(variable, "").strip()
    try:
        return read(text) if text else default
    except (KeyError, ValueError):
        raise ValueError(f"{variable} must be {meaning}, got {text!r}") from None


def _seconds(variable, default):
    return _setting(variable, default, float, "a number of seconds")


def _days(variable, default):
    return _setting(variable, default, float, "a number of days")


def _count(variable, default):
    return _setting(variable, default, int, "a whole number")


def _yes_or_no(variable, default):
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    return _setting(variable, default, lambda text: words[text.lower()], "one of " + ", ".join(words))


# --- Where things are ------------------------------------------------------------------------------------------------

# The folder of the embedded broker and ledger. It stands beside this file, not in the current folder, so that callers
# and workers that start elsewhere still meet in it.
_data = Path(_setting("AGENT_DATA_DIR", Path(__file__).resolve().parent / "agent-data")).absolute()

# The broker carries doorbells only; a message that it loses is rung again from the ledger. In production for example
# redis://host:6379/0 or amqp://user:password@host//
# RabbitMQ takes a message back after its consumer_timeout, 30 minutes by default. No effect is repeated by that, but
# the worker ends when its steps are done, and has to be started again: set it longer than your longest step.
broker_url = _setting("AGENT_BROKER_URL", "filesystem://")

# The ledger: runs, operations and checkpoints, the one thing to back up. A broker that other hosts can reach needs a
# database that they can reach as well: postgresql+psycopg://user:password@host/database
# or, for MariaDB and MySQL, mysql+pymysql://user:password@host/database
# In a Django project: the name in DATABASES of the database that the ledger is in, instead of its URL.
agent_django_database = _setting("AGENT_DJANGO_DATABASE", None)
agent_database_url = _setting("AGENT_DATABASE_URL", "" if agent_django_database else f"sqlite:///{_data / 'agent.db'}")

if agent_database_url.startswith(f"sqlite:///{_data}"):
    _data.mkdir(parents=True, exist_ok=True)

if broker_url.startswith("filesystem:"):
    # kombu's filesystem transport, made safe against a process that dies in the middle of a write.
    broker_transport = "agent_tasks.embedded:Transport"
    _queues, _control = _data / "broker" / "queues", _data / "broker" / "control"
    for _folder in (_queues, _control):
        _folder.mkdir(parents=True, exist_ok=True)
    broker_transport_options = {
        # One folder for both directions: what one process sends, another one receives.
        "data_folder_in": str(_queues),
        "data_folder_out": str(_queues),
        "control_folder": str(_control),
        # Seconds between two looks into the folder; kombu's default of a second would be added to every step.
        "polling_interval": 0.02,
    }
else:
    # Redis: visibility_timeout stays at its default of an hour on purpose. Recovery is the sweeper's work and takes
    # seconds; a short timeout would only bring copies of doorbells for steps that still run. A server that hangs must
    # not hang its callers: seconds to wait for a connection, and for an answer.
    _is_redis = broker_url.startswith(("redis", "valkey", "sentinel"))
    broker_transport_options = {"socket_connect_timeout": 5, "socket_timeout": 30} if _is_redis else {}

# Agents keep their results in the ledger. Only plain tasks need a result backend, for .get(): beside the embedded broker it
# is a file in the data folder, where callers and workers meet; with any other broker give one, such as redis://… or rpc://.
_results = f"db+sqlite:///{_data / 'results.db'}" if broker_url.startswith("filesystem:") else None
result_backend = _setting("AGENT_RESULT_BACKEND", _results)

# --- The worker ------------------------------------------------------------------------------------------------------

# The queue of every task that is not routed elsewhere; two deployments that share a broker need different ones.
task_default_queue = _setting("AGENT_QUEUE", "agents")

# A worker takes one message ahead for each child and no more, so that nothing waits behind a long step while another
# worker is idle.
worker_prefetch_multiplier = 1

# With a broker of files Celery keeps the place of a child that died for so long, in seconds, 10 by default, and takes no
# message for it meanwhile; the doorbell of its run rings after half a second.
worker_lost_wait = 1.0

# A worker that starts before its broker waits for it, and one that loses it goes on with the steps under way: their
# leases live in the ledger, not in the connection.
broker_connection_retry_on_startup = True
worker_cancel_long_running_tasks_on_connection_loss = False

# Doorbells and arguments are JSON, and nothing else is accepted: no message names code to run.
task_serializer = "json"
result_serializer = "json"
accept_content = ["json"]

enable_utc = True
timezone = "UTC"

# Not here: task_acks_late and task_reject_on_worker_lost. Steps set both on themselves, so your other tasks stay as
# they are.

# --- The engine ------------------------------------------------------------------------------------------------------

# What the names of the ledger's tables start with.
agent_table_prefix = _setting("AGENT_TABLE_PREFIX", "agent_")

# How long a run stays with a worker that is not heard of; a dead child is noticed within half a second. After a host is
# lost, another worker takes its runs over within this and agent_sweep_seconds. The only worker, started again, takes
# about half as long again: it looks on for a whole lease first, so that owners which live can say so.
agent_lease_seconds = _seconds("AGENT_LEASE_SECONDS", 15.0)

# Pause between two looks of the sweeper for what is due, lost or stuck.
agent_sweep_seconds = _seconds("AGENT_SWEEP_SECONDS", 1.0)

# How long a queued run waits for a worker before its doorbell is rung again.
agent_ring_again_seconds = _seconds("AGENT_RING_AGAIN_SECONDS", 5.0)

# The sweeper rings nothing while a queue holds this many messages: a backlog waits in the ledger, not in the broker.
agent_queue_depth = _count("AGENT_QUEUE_DEPTH", 100)

# A step that lost its worker this often is parked for a person instead of taking the next worker down.
agent_max_crashes = _count("AGENT_MAX_CRASHES", 3)

# A run that would take more steps waits for a person, unless its agent says another number: loops end there.
agent_max_steps = _count("AGENT_MAX_STEPS", 10_000)

# The largest batch of calls that a step may make or plan; more is work for several steps.
agent_max_batch = _count("AGENT_MAX_BATCH", 1_000)

# No lease is renewed past this age of an attempt; a child that goes on is killed. Longer than your longest step.
agent_step_timeout_seconds = _seconds("AGENT_STEP_TIMEOUT_SECONDS", 1800.0)

# Pauses before a doubtful keyed request is sent again with the same key: the first one, doubled up to the longest.
agent_retry_backoff_seconds = _seconds("AGENT_RETRY_BACKOFF_SECONDS", 1.0)
agent_retry_backoff_max_seconds = _seconds("AGENT_RETRY_BACKOFF_MAX_SECONDS", 600.0)

# How often ringing is tried again while the broker is away, before it is left to the sweeper.
agent_publish_max_retries = _count("AGENT_PUBLISH_MAX_RETRIES", 3)

# Days after its end after which a run is deleted with everything of it; None keeps all runs for good. Longer than anybody
# may send the same dedupe key, or say how much longer.
agent_retention_days = _days("AGENT_RETENTION_DAYS", None)
agent_dedupe_days = _days("AGENT_DEDUPE_DAYS", None)

# What base=AgentTask does for a plain task that does not say it itself: guard it, or with "observe" only count what is done
# twice, while plain Celery runs it.
agent_mode = _setting("AGENT_MODE", "guard")

# Says that all workers and callers stay on this host for good, which allows an SQLite ledger with a network broker.
agent_single_host = _yes_or_no("AGENT_SINGLE_HOST", False)
