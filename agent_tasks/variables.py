"""The variables of the environment that ``celeryconfig.py`` reads, and slips of the pen for one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_tasks.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: What their names begin with; other programs have variables that begin so as well.
PREFIX = "AGENT_"

#: Those that are no setting of ours, and Celery's own setting that each of them gives.
_OF_CELERY = {
    "AGENT_DATA_DIR": None,
    "AGENT_BROKER_URL": "broker_url",
    "AGENT_RESULT_BACKEND": "result_backend",
    "AGENT_QUEUE": "task_default_queue",
}

#: These are of tests, whatever they are near to.
_OF_TESTS = "AGENT_TEST_"

#: How much of two names behind the prefix must be the same, of 1: DATABASE_URI is a slip for DATABASE_URL, and DATABASE_USER and
#: TIMEOUT_SECONDS are somebody's own.
_NEAR = 0.9

#: A name of so few letters is near to many words (MODE to MODEL): only letters that changed places are a slip of it.
_SHORT = 5


def variables_of(settings: Iterable[str]) -> dict[str, str | None]:
    """Return the variables, and for each the setting that it gives.

    Args:
        settings: names of ours.

    Example:
        >>> variables_of(["agent_lease_seconds"])["AGENT_LEASE_SECONDS"]
        'agent_lease_seconds'
    """
    return {**{name.upper(): name for name in settings}, **_OF_CELERY}


def check_variables(environ: Mapping[str, str], settings: Iterable[str], value_of: Callable[[str], object]) -> None:
    """Refuse a variable that nobody reads since its name is misspelt.

    Args:
        environ: of this process.
        settings: names of ours.
        value_of: returns what a setting of the app has; a variable with the same value is read by the app itself.

    Raises:
        ConfigurationError: the name is nearly that of a variable which is read.

    Example:
        >>> check_variables({"AGENT_LEASE_SECOND": "5"}, ["agent_lease_seconds"], lambda _name: 15.0)
        Traceback (most recent call last):
        agent_tasks.errors.ConfigurationError: AGENT_LEASE_SECOND in the environment is not read. Did you mean AGENT_LEASE_SECONDS?
    """
    known = variables_of(settings)
    for name, text in sorted(environ.items()):
        if not name.startswith(PREFIX) or name.startswith(_OF_TESTS) or name in known or not text.strip():
            continue
        meant = _meant(name, known)
        setting = None if meant is None else known[meant]
        if meant is None or (setting is not None and str(value_of(setting)) in (text, f"{text}.0")):
            continue
        raise ConfigurationError(
            f"{name} in the environment is not read. Did you mean {meant}?",
            f"rename {name} to {meant} in the environment of every worker and caller, or to a name that is near to none of ours",
        )


def _meant(name: str, known: Iterable[str]) -> str | None:
    word = name.removeprefix(PREFIX)
    words = [other.removeprefix(PREFIX) for other in known]
    candidates = [other for other in words if len(other) > _SHORT or sorted(other) == sorted(word)]
    near = nearest(word, candidates, _NEAR)
    return None if near is None else PREFIX + near
