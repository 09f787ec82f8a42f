"""The client tells apart what did not happen and what nobody can tell."""

import pickle
import socket
import threading

import pytest

from agent_tasks.demo.carts import load_carts
from agent_tasks.demo.vendor import NoAnswer, Vendor, VendorRefused, VendorUnreachable

CART = load_carts()[0]


@pytest.fixture
def stranger():
    """Serve one connection with a function of the test; gives the client for it."""
    threads = []

    def serve(behave) -> Vendor:
        listener = socket.create_server(("127.0.0.1", 0))

        def run() -> None:
            with listener, listener.accept()[0] as wire:
                behave(wire)

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        return Vendor(f"http://127.0.0.1:{listener.getsockname()[1]}")

    yield serve
    for thread in threads:
        thread.join(10)


def test_a_shop_that_is_not_there_is_unreachable_so_nothing_happened():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(VendorUnreachable, match=rf"POST /orders at 127.0.0.1:{port}: no connection .* shop running\?"):
        Vendor(f"http://127.0.0.1:{port}").create_order(CART, key="k", seconds=5)


def test_an_answer_after_the_deadline_is_no_answer_although_the_effect_happened(start_shop, wait_for):
    _, vendor = start_shop("--latency-seconds", "1.0")
    with pytest.raises(NoAnswer, match=r"POST /orders .* no answer within 0\.2 s .* It may have happened"):
        vendor.create_order(CART, key="k", seconds=0.2)
    wait_for(lambda: [effect["key"] for effect in vendor.ledger()] == ["k"], "the order happened")


def test_an_answer_that_trickles_does_not_outlast_the_deadline(stranger):
    stop = threading.Event()

    def trickle(wire) -> None:
        wire.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        try:
            while not stop.wait(0.02):
                wire.sendall(b" ")
        except OSError:
            stop.set()

    vendor = stranger(trickle)
    try:
        with pytest.raises(NoAnswer, match=r"the deadline of the call has passed|timed out"):
            vendor.charges("r", seconds=0.5)
    finally:
        stop.set()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{",
    ],
    ids=["closed", "cut off", "server error", "another protocol", "not JSON"],
)
def test_an_unusable_answer_is_no_answer(stranger, answer):
    def behave(wire) -> None:
        wire.recv(65536)
        wire.sendall(answer)

    with pytest.raises(NoAnswer, match="may have happened"):
        stranger(behave).charges("r", seconds=10)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_deadline_must_be_a_positive_number_of_seconds(vendor, seconds):
    with pytest.raises(ValueError, match="seconds must be above 0 and finite"):
        vendor.charge({"id": "order-1", "cents": 1, "currency": "EUR"}, reference="r", seconds=seconds)
    assert vendor.ledger() == []


@pytest.mark.parametrize("url", ["127.0.0.1:80", "https://127.0.0.1", "http://", ""])
def test_a_url_of_another_kind_is_refused(url):
    with pytest.raises(ValueError, match="the vendor's URL must look like"):
        Vendor(url)


@pytest.mark.parametrize("error", [VendorRefused("no"), VendorUnreachable("gone"), NoAnswer("hm")])
def test_errors_survive_pickling(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args) == (type(error), error.args)
