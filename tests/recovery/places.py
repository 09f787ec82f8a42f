"""The places that a test of real workers runs on, each a row of the table of services."""

import pytest

PLACES = {
    "on_servers": pytest.mark.serves(ledger="postgresql", broker="redis", pool="prefork"),
    "on_rabbitmq": pytest.mark.serves(ledger="postgresql", broker="rabbitmq", pool="prefork"),
    "on_mysql": pytest.mark.serves(ledger="mysql", broker="redis", pool="prefork"),
    "embedded": pytest.mark.serves(ledger="sqlite", broker="filesystem", pool="prefork"),
    "in_threads": pytest.mark.serves(ledger="postgresql", broker="redis", pool="threads"),
    "in_greenlets": pytest.mark.serves(ledger="postgresql", broker="redis", pool="gevent"),
    "in_solo": pytest.mark.serves(ledger="sqlite", broker="filesystem", pool="solo"),
}


def on(*places: str) -> pytest.MarkDecorator:
    """Run a test on some of the places."""
    return pytest.mark.parametrize("where", [pytest.param(place, marks=PLACES[place]) for place in places])


on_each = on("on_servers", "embedded")
in_each_pool = on("in_threads", "in_greenlets", "in_solo")
on_brokers = on("on_servers", "on_rabbitmq")
