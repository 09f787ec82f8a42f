"""Settings with which a worker and its callers may miss each other, though each works by itself: said once, and not refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from agent_tasks.database import parse_url

if TYPE_CHECKING:
    from agent_tasks.config import Settings

logger = logging.getLogger(__name__)

#: What this process, or the one that it was forked from, has said.
_said: set[str] = set()

#: kombu's transport whose messages are files in a folder; that of memory is for one process, which cannot miss itself.
_FOLDER = "filesystem"


def warn_if_missed(settings: Settings, broker_url: str | list[str] | None) -> None:
    """Say what another process may read otherwise: a path from another folder, a broker that is in a folder here.

    Args:
        settings: of the app.
        broker_url: as Celery takes it.

    Example:
        >>> from agent_tasks.config import Settings
        >>> warn_if_missed(Settings("sqlite:////var/lib/shop/agent.db"), "filesystem://")
    """
    for said in (_relative_path(settings), _folder_for_a_fleet(settings, broker_url)):
        if said is not None and said not in _said:
            _said.add(said)
            logger.warning("%s", said, extra={"action": "may_be_missed"})


def _relative_path(settings: Settings) -> str | None:
    url = parse_url(settings.database_url)
    if url.get_backend_name() != "sqlite":
        return None
    path = Path(str(url.database).removeprefix("file:"))
    if path.is_absolute():
        return None
    if settings.django_database is None:
        where, write = f"agent_database_url={settings.database_url!r}", f"'sqlite:///{path.absolute()}'"
    else:
        where, write = f"NAME of DATABASES[{settings.django_database!r}]", f"{str(path.absolute())!r}"
    return (
        f"{where} is relative to the current folder, so it means {path.absolute()} here and another ledger in a worker or caller that "
        f"starts elsewhere. Write {write}"
    )


def _folder_for_a_fleet(settings: Settings, broker_url: str | list[str] | None) -> str | None:
    url = parse_url(settings.database_url)
    urls = (broker_url or "").split(";") if not isinstance(broker_url, (list, tuple)) else broker_url
    if url.get_backend_name() == "sqlite" or settings.single_host:
        return None
    if not any(str(one).partition("://")[0] == _FOLDER for one in urls):
        return None
    return (
        f"the ledger is a {url.get_backend_name()} server, and the broker a folder of this host. A worker that has another broker hears no "
        "doorbell from here: each run waits for its sweeper to ring. Give workers and callers the same broker (with celeryconfig.py: "
        "AGENT_BROKER_URL), or set agent_single_host=True if the folder is the broker of all of them"
    )
