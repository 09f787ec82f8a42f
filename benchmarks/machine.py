"""The machine that figures are from, and what else it did meanwhile."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Return what a reader has to know to judge absolute figures."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("celery", "kombu", "sqlalchemy", "psycopg", "redis")},
    }


def load() -> float:
    """Return how many processes wanted a core, on average over the last minute."""
    return round(os.getloadavg()[0], 2)


def file_system(folder: Path) -> str:
    """Name the kind of file system that a folder is on."""
    path = folder.resolve()
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:  # only Linux tells it in this way
        return "unknown"
    around = [(where, kind) for _, where, kind, *_ in mounts if path.is_relative_to(where)]
    return max(around, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
