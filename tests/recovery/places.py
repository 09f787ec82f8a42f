"""The places that a test of real workers runs on, each a row of the table of services."""

import pytest

on_each = pytest.mark.parametrize(
    "where",
    [
        pytest.param("on_servers", marks=pytest.mark.serves(ledger="postgresql", broker="redis", pool="prefork")),
        pytest.param("embedded", marks=pytest.mark.serves(ledger="sqlite", broker="filesystem", pool="prefork")),
    ],
)
