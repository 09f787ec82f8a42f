"""Libraries that the product never needs and some tests use."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import pytest


def library(name: str) -> Any:
    """Import a library; a missing one skips the test on a developer's machine and fails it in CI."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what one says of this Python, or of another one, is not ours
            return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
