"""A database that did not answer, and what mends that."""

from __future__ import annotations

import sys

#: What a Django project whose migrations make the tables has among its INSTALLED_APPS.
_DJANGO_APP = "agent_tasks.integrations.django"

#: What drivers and servers say, in lower case, and what to do about it; the first that fits. A server that speaks another
#: language than English gets the last one.
_CURES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("unable to open database file",),
        "make the folder that agent_database_url names, or give this user the right to write there",
    ),
    (
        ("resolve host", "translate host name", "name or service not known", "nodename nor servname"),
        "mend the host's name in agent_database_url, which is known to no name server here",
    ),
    (
        ("(using password:", "access denied for user ''@"),
        (
            "mend the user and the password in agent_database_url; if both are right, a fresh server's anonymous user goes before "
            "his: DROP USER ''@'localhost', or create him @localhost"
        ),
    ),
    (
        ("access denied for user",),
        "mend the user and the password in agent_database_url, or grant him the database (GRANT ALL ON …)",
    ),
    (
        ("command denied",),
        "grant the user of agent_database_url the database (GRANT ALL ON …)",
    ),
    (
        ("read-only option", "read only transaction", "read only mode", "--super-read-only"),
        "let agent_database_url lead to the server that takes writes",
    ),
    (
        ("readonly database",),
        "give this user the right to write the file that agent_database_url names, and its folder",
    ),
    (
        ("disk is full",),
        "make room on the disk of the file that agent_database_url names",
    ),
    (
        ("disk image is malformed", "file is not a database"),
        "put back a sound copy of the file that agent_database_url names",
    ),
    (
        ("unknown database",),
        "create the database (CREATE DATABASE), and its tables with `celery -A yourapp agent db upgrade`",
    ),
    (
        ("max_allowed_packet",),
        "raise max_allowed_packet on the server, or keep less in the run's state",
    ),
    (
        ("password authentication failed", "no password supplied", "no pg_hba.conf entry"),
        "mend the user and the password in agent_database_url, or the server's pg_hba.conf",
    ),
    (
        ("role ",),
        "mend the user in agent_database_url, or make him with createuser",
    ),
    (
        ("database ",),
        "create the database (createdb NAME, or CREATE DATABASE), and its tables with `celery -A yourapp agent db upgrade`",
    ),
)

#: The words about a role or a database that go before this are about one that is missing.
_MISSING = "does not exist"

#: What to do about an answer of PostgreSQL, whose text is in the server's own language.
_OF_SQLSTATES = {
    "25006": "let agent_database_url lead to the server that takes writes, and its role and database be without "
    "default_transaction_read_only (with several hosts: target_session_attrs=read-write)",
    "42501": "make the role of agent_database_url the owner of the ledger's tables, or GRANT it SELECT, INSERT, UPDATE and DELETE",
    "26000": "add prepare_threshold=None to agent_database_url",
    "42P05": "add prepare_threshold=None to agent_database_url",
    "53100": "make room on the database's disk",
}

_OTHERWISE = "check agent_database_url and the server"


def cure_of(error: BaseException) -> str:
    """Return what to do about a database that did not answer, as a sentence without its beginning and end.

    Example:
        >>> cure_of(Exception('FATAL:  database "agents" does not exist'))
        'create the database (createdb NAME, or CREATE DATABASE), and its tables with `celery -A yourapp agent db upgrade`'
        >>> cure_of(Exception("connection refused"))
        'check agent_database_url and the server'
    """
    known = _OF_SQLSTATES.get(getattr(getattr(error, "orig", None), "sqlstate", None) or "")
    if known is not None:
        return known
    said = str(getattr(error, "orig", None) or error).lower()
    for signs, cure in _CURES:
        for sign in signs:
            if sign in said and (not sign.endswith(" ") or _MISSING in said):
                return cure
    return _OTHERWISE


def migrate_first() -> str:
    """Return what to do about tables that are missing or too old, as a sentence without its end.

    Example:
        >>> migrate_first()
        'Run `celery -A yourapp agent db upgrade` (or `agent-tasks db upgrade --url …`) once'
    """
    command = "`celery -A yourapp agent db upgrade`"
    if _is_installed_in_django():
        return f"Run `python manage.py migrate` (or {command}) once"
    return f"Run {command} (or `agent-tasks db upgrade --url …`) once"


def _is_installed_in_django() -> bool:
    """Whether this process is one of such a project; Django is not imported to ask."""
    apps = getattr(sys.modules.get("django.apps"), "apps", None)
    return apps is not None and apps.apps_ready and bool(apps.is_installed(_DJANGO_APP))
