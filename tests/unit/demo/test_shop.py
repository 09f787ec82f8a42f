"""The shop over real HTTP, and as a process of its own."""

import json
import signal
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest

from agent_tasks.demo.carts import load_carts, receipt
from agent_tasks.demo.mail_log import deliveries
from agent_tasks.demo.vendor import VendorRefused

CART, OTHER = load_carts()[:2]
ORDER = {"cart": "cart-1", "cents": 100, "currency": "EUR"}
CHARGE = {"order": "order-1", "cents": 100, "currency": "EUR", "reference": "ref-1"}
MAIL = {"order": "order-1", "to": "kim@example.com", "subject": "Hello", "text": "Hi"}


def kinds(vendor) -> list[str]:
    return [effect["kind"] for effect in vendor.ledger()]


def ask(vendor, method, path, body=None, headers=None):
    connection = HTTPConnection(vendor._host, vendor._port, timeout=10)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


class TestOrders:
    def test_the_same_key_gives_the_same_order_and_counts_once(self, vendor):
        first = vendor.create_order(CART, key="key-1", seconds=10)
        assert vendor.create_order(CART, key="key-1", seconds=10) == first
        assert first["cart"] == CART["id"]
        assert first["cents"] == 7680
        (effect,) = vendor.ledger()
        assert (effect["kind"], effect["key"], effect["id"]) == ("order", "key-1", first["id"])

    def test_the_same_key_with_another_body_is_refused_and_changes_nothing(self, vendor):
        vendor.create_order(CART, key="key-1", seconds=10)
        with pytest.raises(VendorRefused, match=r"409: Idempotency-Key 'key-1' came before with another body"):
            vendor.create_order(OTHER, key="key-1", seconds=10)
        assert kinds(vendor) == ["order"]

    def test_many_at_once_with_one_key_are_one_order(self, vendor):
        with ThreadPoolExecutor(16) as pool:
            orders = list(pool.map(lambda _: vendor.create_order(CART, key="key-1", seconds=30), range(48)))
        assert len({order["id"] for order in orders}) == 1
        assert kinds(vendor) == ["order"]

    def test_without_a_key_each_request_is_an_order(self, vendor):
        for _ in range(2):
            assert ask(vendor, "POST", "/orders", json.dumps(ORDER))[0] == 201
        assert kinds(vendor) == ["order", "order"]


class TestCharges:
    def test_the_same_reference_charges_again_and_the_look_up_finds_both(self, vendor):
        order = vendor.create_order(CART, key="key-1", seconds=10)
        charges = [vendor.charge(order, reference="ref & 1/é", seconds=10) for _ in range(2)]
        assert charges[0]["id"] != charges[1]["id"]
        assert vendor.charges("ref & 1/é", seconds=10) == charges

    def test_the_look_up_of_an_unknown_reference_finds_nothing(self, vendor):
        assert vendor.charges("never", seconds=10) == []


class TestMails:
    def test_each_request_sends_and_only_the_log_tells(self, vendor):
        order = vendor.create_order(CART, key="key-1", seconds=10)
        for _ in range(2):
            assert vendor.send_mail(CART, order["id"], seconds=10) == {"accepted": True}
        mail = receipt(CART, order["id"])
        assert len(deliveries(vendor.mail_log(), mail["to"], mail["subject"])) == 2
        assert kinds(vendor) == ["order", "mail", "mail"]

    def test_the_log_tells_nothing_of_a_mail_that_was_never_sent(self, vendor):
        vendor.send_mail(CART, "order-1", seconds=10)
        mail = receipt(CART, "order-11")
        assert deliveries(vendor.mail_log(), mail["to"], mail["subject"]) == []

    def test_a_subject_cannot_forge_a_line_of_the_log(self, vendor):
        forged = 'x"\n2026-01-01 delivered to="kim@example.com" subject="Forged\u2028'
        assert ask(vendor, "POST", "/mails", json.dumps({**MAIL, "subject": forged}))[0] == 202
        log = vendor.mail_log()
        assert deliveries(log, "kim@example.com", "Forged\u2028") == []
        assert len(deliveries(log, "kim@example.com", forged)) == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/order", None, 404, "GET /order is not here. There is GET /charges, GET /mail-log"),
        ("GET", "/mails", None, 404, "GET /mails is not here"),
        ("GET", "/charges", None, 400, "needs one reference, got 0"),
        ("GET", "/charges?reference=a&reference=b", None, 400, "needs one reference, got 2"),
        ("POST", "/charges", "{", 400, "the body must be JSON"),
        ("POST", "/charges", "[" * 200_000, 400, "the body must be JSON"),
        ("POST", "/charges", '{"order": NaN}', 400, "NaN is not JSON"),
        ("POST", "/charges", '{"order": "\\ud800"}', 400, "the body must be JSON in UTF-8"),
        ("POST", "/charges", b"\xff\xfe\xff", 400, "the body must be JSON in UTF-8"),
        ("POST", "/charges", "[]", 400, "the body must be a JSON object, got list"),
        ("POST", "/charges", json.dumps({**CHARGE, "cents": 1.5}), 400, "cents must be a whole number of cents"),
        ("POST", "/charges", json.dumps({**CHARGE, "cents": True}), 400, "above 0, got True"),
        ("POST", "/charges", json.dumps({**CHARGE, "cents": 0}), 400, "above 0, got 0"),
        ("POST", "/charges", json.dumps({**CHARGE, "reference": ""}), 400, "reference must be a text"),
        ("POST", "/charges", '{"order": "order-1"}', 400, "cents is missing; it must be a whole number"),
        ("POST", "/orders", '{"cents": 5, "currency": "EUR"}', 400, "cart is missing"),
        ("POST", "/mails", json.dumps({**MAIL, "to": 5}), 400, "to must be a text that is not empty, got 5"),
        ("POST", "/mails", json.dumps({**MAIL, "text": "x" * 10_000_001}), 413, "at most 1000000 bytes"),
        ("POST", "/nowhere", json.dumps({**MAIL, "text": "x" * 10_000_001}), 404, "POST /nowhere is not here"),
    ],
)
def test_a_bad_request_is_refused_with_a_sentence_and_changes_nothing(vendor, method, path, body, status, message):
    answer = ask(vendor, method, path, body)
    assert answer[0] == status
    assert message in json.loads(answer[1])["error"]
    assert vendor.ledger() == []


def test_a_body_without_its_length_is_refused(vendor):
    status, answer = ask(vendor, "POST", "/orders", headers={"Content-Length": "many"})
    assert (status, json.loads(answer)["error"]) == (411, "Content-Length must be a number of bytes, got 'many'.")


def test_what_was_answered_outlives_a_kill_of_the_shop(start_shop):
    process, vendor = start_shop()
    order = vendor.create_order(CART, key="key-1", seconds=10)
    vendor.send_mail(CART, order["id"], seconds=10)
    before, log = vendor.ledger(), vendor.mail_log()
    process.send_signal(signal.SIGKILL)
    process.wait(30)

    _, again = start_shop()
    assert again.ledger() == before
    assert again.mail_log() == log
    assert again.create_order(CART, key="key-1", seconds=10) == order


@pytest.mark.parametrize(
    "sent", [b"", b"POST /charges HTTP/1.1\r\nContent-Length: 9\r\n\r\n{", b"GET /ledger HTTP/1.1\r\n\r\n"]
)
def test_a_client_that_dies_in_the_middle_leaves_no_trace(start_shop, sent):
    process, vendor = start_shop()
    with socket.create_connection((vendor._host, vendor._port)) as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets the connection
        wire.sendall(sent)
    assert vendor.ledger() == []
    process.terminate()
    assert process.stdout.read() == ""


def test_sigterm_ends_the_shop_cleanly(start_shop):
    process, _ = start_shop()
    process.terminate()
    assert process.wait(30) == 0
    assert process.stdout.read() == ""


def test_a_negative_latency_is_a_usage_error(processes, tmp_path):
    process = processes("-m", "agent_tasks.demo.shop", "--ledger", str(tmp_path / "s.db"), "--latency-seconds", "-1")
    assert process.wait(30) == 2
    assert "--latency-seconds must be 0 or more, got -1.0" in process.stdout.read()
