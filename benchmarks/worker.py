"""What `celery -A` loads in a worker of a benchmark: an app with the variants that the environment names."""

import os
from pathlib import Path

from celery.signals import worker_process_init

from benchmarks.notes import Notes
from benchmarks.places import NOTES_VARIABLE, VARIANTS_VARIABLE, make_app
from benchmarks.variants import ALL
from benchmarks.wire import STEPS

app = make_app(dict(os.environ))
for key in os.environ[VARIANTS_VARIABLE].split():
    ALL[key].make(key, app, Notes(Path(os.environ[NOTES_VARIABLE])))


@worker_process_init.connect  # type: ignore[untyped-decorator]
def say_who_connects(**_: object) -> None:
    """PostgreSQL's driver reads it: the processes that run steps are told from their parent, which beats and sweeps."""
    os.environ["PGAPPNAME"] = STEPS
