"""NumPy arrays, LangChain messages and messages of vendors' APIs come back without being registered."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import checkpoint
from checkpoint import (
    CheckpointError,
    Opaque,
    Secret,
    UnreadableValue,
    UnstorableValue,
    arrays,
    codec,
    dumps,
    loads,
    shipped,
)
from checkpoint.registry import registry
from tests.libraries import library


@pytest.fixture(autouse=True)
def _a_registry_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_class", {})
    monkeypatch.setattr(registry, "_by_tag", {})
    monkeypatch.setattr(shipped, "_by_class", {})
    monkeypatch.setattr(shipped, "_by_tag", {})


def array_of(*data: Any) -> bytes:
    """Bytes that claim to be an array."""
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(14, msgspec.msgpack.encode(["@numpy.ndarray", 1, list(data)])))


# NumPy


@pytest.fixture
def numpy() -> Any:
    return library("numpy")


def same_array(one: Any, other: Any) -> bool:
    return (
        type(one) is type(other)
        and (one.dtype, one.shape) == (other.dtype, other.shape)
        and one.tobytes() == other.tobytes()
    )


def test_every_dtype_with_a_stored_form_comes_back(numpy: Any) -> None:
    makers = ["?", "i1", "u1", "<i2", ">u4", "<i8", ">f2", "<f4", ">f8", "<c8", ">c16", "S3", "<U2", ">U2"]
    values = [numpy.arange(6).reshape(2, 3).astype(dtype) for dtype in makers]
    values += [
        numpy.array(3.5), numpy.zeros((0, 5)), numpy.zeros((2, 0, 3)), numpy.array([], str), numpy.array(["é", "\U0001f600"]),
        numpy.array([float("nan"), -0.0, float("inf")]), numpy.asfortranarray(numpy.ones((2, 3))), numpy.arange(10)[::-3],
        numpy.array(["2024-01-01", "NaT"], "M8[s]"), numpy.array([3], "m8[25us]"), numpy.array(["NaT"], "m8"),
        numpy.zeros([1] * 32),
    ]  # fmt: skip
    for value in values:
        stored = dumps({"embeddings": [value]})
        read = loads(stored)["embeddings"][0]
        assert same_array(read, value), value
        assert dumps({"embeddings": [read]}) == stored
        assert read.flags.writeable
        assert read.flags.owndata


@given(st.data())
def test_any_array_comes_back_equal_and_of_its_own_dtype(data: st.DataObject) -> None:
    library("numpy")
    from hypothesis.extra import numpy as arrays_of

    kinds = st.one_of(
        arrays_of.boolean_dtypes(), arrays_of.integer_dtypes(), arrays_of.unsigned_integer_dtypes(),
        arrays_of.floating_dtypes(sizes=(16, 32, 64)), arrays_of.complex_number_dtypes(sizes=(64, 128)),
        arrays_of.datetime64_dtypes(), arrays_of.timedelta64_dtypes(), arrays_of.byte_string_dtypes(max_len=4),
        arrays_of.unicode_string_dtypes(max_len=4),
    )  # fmt: skip
    shapes = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    value = data.draw(arrays_of.arrays(kinds, shapes))
    stored = dumps(value)
    assert same_array(loads(stored), value)
    assert dumps(loads(stored)) == stored


def test_an_array_that_would_not_come_back_is_refused_by_path(numpy: Any) -> None:
    for value, message in (
        (numpy.array([object()]), "an array of dtype object has no stored form; use numbers"),
        (numpy.zeros(2, [("x", "i4")]), "has no stored form; use numbers"),
        (numpy.zeros(2, "V3"), "has no stored form"),
        (numpy.zeros(2, numpy.dtype("i4", metadata={"a": 1})), "has no stored form"),
        (numpy.ma.array([1]), "a MaskedArray has no stored form"),
        (numpy.zeros(2).view(numpy.recarray), "a recarray has no stored form"),
        (numpy.int8(1), "an int8 has no stored form"),
        (numpy.float64(1), "a float64 would come back as a float"),
    ):
        with pytest.raises(UnstorableValue) as refused:
            dumps({"x": [1, value]})
        assert refused.value.path == "value['x'][1]"
        assert message in refused.value.reason


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (("|O", [1], bytes(8)), "no dtype, shape and bytes"),
        (("O", [1], bytes(8)), "no dtype, shape and bytes"),
        (("<f8,<f8", [1], bytes(16)), "no dtype, shape and bytes"),
        (("<f16", [1], bytes(16)), "no dtype, shape and bytes"),
        (("<M8[parsec]", [1], bytes(8)), "no dtype, shape and bytes"),
        (("<f8\n", [1], bytes(8)), "no dtype, shape and bytes"),
        (("<f8", [1] * 33, bytes(8)), "no dtype, shape and bytes"),
        (("<f8", 1, bytes(8)), "no dtype, shape and bytes"),
        (("<f8", [1], "x"), "no dtype, shape and bytes"),
        (("<f8", [1]), "no dtype, shape and bytes"),
        (("<f8", [-1], bytes(8)), "ints from 0 up"),
        (("<f8", [True], bytes(8)), "ints from 0 up"),
        (("<f8", [2], bytes(8)), "8 bytes are no array of shape"),
        (("<f8", [2**62, 2**62], bytes(8)), "8 bytes are no array of shape"),
        (("<U99999999", [2**60], b""), "0 bytes are no array of shape"),
        (("<f8", [0, 2**62, 2**62], b""), "ValueError"),
        (("|b1", [2], b"\1\2"), "the bytes are none of dtype"),
        (("<U1", [1], b"\xff\xff\xff\xff"), "the bytes are none of dtype"),
        ((">U1", [1], b"\x00\x11\x00\x00"), "the bytes are none of dtype"),
    ],
    ids=str,
)
def test_a_forged_array_is_an_error(numpy: Any, data: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UnreadableValue, match=message):
        codec.decode(array_of(*data))


@given(
    st.sampled_from(["|b1", "<f8", "<U2", "|S3", "<M8[s]", "<M8[999999999Y]", "|O", "<m8"]) | st.text(max_size=6),
    st.lists(st.integers(0, 3) | st.integers(-(2**63), 2**63), max_size=4),
    st.binary(max_size=64),
)
def test_any_forged_array_gives_an_array_or_an_error_of_ours(name: str, shape: list[int], content: bytes) -> None:
    library("numpy")
    try:
        value = codec.decode(array_of(name, shape, content))
    except CheckpointError:
        return
    repr(value)
    assert codec.decode(codec.encode(value)).tobytes() == value.tobytes()


def test_where_numpy_is_missing_an_array_passes_through_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    raw = array_of("<f8", [1], bytes(8))
    value = codec.decode(raw)
    assert value == Opaque("@numpy.ndarray", 1, codec.encode(["<f8", [1], bytes(8)]))
    assert codec.encode(value) == raw


def test_nothing_is_imported_before_a_value_needs_it() -> None:
    code = (
        "import sys, checkpoint; checkpoint.loads(checkpoint.dumps({'a': (1, {2})}))\n"
        "try: checkpoint.dumps(object())\n"
        "except checkpoint.UnstorableValue: pass\n"
        "sys.exit(str({'numpy', 'pydantic', 'attr', 'langchain_core'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr.strip() == "set()"


def test_a_new_process_reads_an_array_that_another_one_wrote(numpy: Any) -> None:
    code = "import checkpoint, sys; print(checkpoint.loads(bytes.fromhex(sys.argv[1])).tolist())"
    command = [sys.executable, "-c", code, dumps(numpy.arange(3)).hex()]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip() == "[0, 1, 2]"


def test_a_tag_of_ours_cannot_be_registered_by_others() -> None:
    with pytest.raises(checkpoint.RegistrationError, match="the tag must be letters, digits"):
        checkpoint.register("@numpy.ndarray", Secret)


def test_an_unknown_tag_of_ours_is_opaque_and_imports_nothing() -> None:
    raw = msgspec.msgpack.encode(msgspec.msgpack.Ext(14, msgspec.msgpack.encode(["@antigravity", 1, None])))
    assert codec.decode(raw) == Opaque("@antigravity", 1, b"\xc0")
    assert "antigravity" not in sys.modules


# LangChain


def messages_of_langchain() -> list[Any]:
    messages = library("langchain_core.messages")
    call = {"name": "search", "args": {"q": "tea", "n": 3}, "id": "call_1"}
    return [
        messages.SystemMessage("Be brief."),
        messages.HumanMessage([{"type": "text", "text": "tea?"}, {"type": "image_url", "image_url": {"url": "x"}}], id="h1"),
        messages.HumanMessage("hi", name="kim", custom=(1, 2)),
        messages.AIMessage("", tool_calls=[call], id="a1", response_metadata={"model_name": "m", "finish": None},
            usage_metadata={"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "input_token_details": {"cache_read": 1}}),
        messages.AIMessage("x", invalid_tool_calls=[{"name": "f", "args": "{", "id": "c", "error": "no JSON"}]),
        messages.AIMessageChunk("par", tool_call_chunks=[{"name": "f", "args": '{"a', "id": "c", "index": 0}]),
        messages.AIMessageChunk("par") + messages.AIMessageChunk("tial", chunk_position="last"),
        messages.ToolMessage("found", tool_call_id="call_1", artifact={"rows": {1, 2}}, status="error"),
        messages.ToolMessageChunk("fo", tool_call_id="call_1"),
        messages.FunctionMessage("found", name="search"),
        messages.ChatMessage("hello", role="critic"),
        messages.RemoveMessage(id="a1"),
    ]  # fmt: skip


def test_messages_of_langchain_come_back_as_they_were() -> None:
    for message in messages_of_langchain():
        stored = dumps({"messages": [message]})
        read = loads(stored)["messages"][0]
        assert type(read) is type(message)
        assert read == message
        assert read.model_dump() == message.model_dump()
        assert read.model_fields_set == message.model_fields_set
        assert dumps({"messages": [read]}) == stored
        assert getattr(read, "tool_calls", None) == getattr(message, "tool_calls", None)


def test_a_message_with_a_part_that_cannot_be_stored_is_refused_by_path() -> None:
    messages = library("langchain_core.messages")
    with pytest.raises(UnstorableValue) as refused:
        dumps([messages.ToolMessage("x", tool_call_id="c", artifact=[range(3)])])
    assert refused.value.path == "value[0].artifact[0]"

    class Mine(messages.HumanMessage):
        pass

    with pytest.raises(UnstorableValue, match="has no stored form; use its model_dump"):
        dumps(Mine("x"))


def test_what_a_user_registered_comes_first_and_hides_nothing_stored_before() -> None:
    message = library("langchain_core.messages").HumanMessage("hi", id="h")
    early = dumps(message)
    checkpoint.register("own.Human", type(message))
    assert b"own.Human" in dumps(message)
    assert loads(dumps(message)) == loads(early) == message


def test_where_langchain_is_missing_a_message_passes_through_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain_core.messages", None)
    raw = msgspec.msgpack.encode(
        msgspec.msgpack.Ext(14, msgspec.msgpack.encode(["@langchain.HumanMessage", 1, {"a": 1}]))
    )
    value = codec.decode(raw)
    assert value == Opaque("@langchain.HumanMessage", 1, codec.encode({"a": 1}))
    assert codec.encode(value) == raw


def test_a_package_that_lacks_a_part_of_itself_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise ImportError(name)

    monkeypatch.setitem(sys.modules, "langchain_core.messages", Broken())  # type: ignore[arg-type]
    with pytest.raises(UnstorableValue, match="an object has no stored form"):
        dumps(object())


# Messages of vendors' APIs are plain data, and stay it to the byte

OPENAI: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "tea?"}, {"type": "image_url", "image_url": {"url": "data:…"}}]},
    {"role": "assistant", "content": None, "refusal": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"q": "tea"}'}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "found"},
    {"type": "function_call", "id": "fc_1", "call_id": "call_2", "name": "search", "arguments": "{}", "status": "completed"},
    {"type": "function_call_output", "call_id": "call_2", "output": "[]"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"},
]  # fmt: skip
ANTHROPIC: list[dict[str, Any]] = [
    {"role": "user", "content": "tea?"},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "…", "signature": "sig"}, {"type": "text", "text": "Looking.", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": "tea", "n": 3, "exact": False}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "is_error": False, "content": [
        {"type": "text", "text": "found", "cache_control": {"type": "ephemeral"}}]}]},
]  # fmt: skip


@pytest.mark.parametrize("messages", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
def test_messages_of_a_vendor_are_stored_as_plain_data(messages: list[dict[str, Any]]) -> None:
    assert codec.encode(messages) == msgspec.msgpack.encode(messages)
    read = loads(dumps(messages))
    assert read == messages
    assert [list(message) for message in read] == [list(message) for message in messages]


def test_the_dtypes_that_are_stored_are_a_fixed_list() -> None:
    for name in ("<f8", "|b1", "|S1", "<U99999999", ">M8[ns]", "<m8", "|i1"):
        assert arrays._DTYPE.fullmatch(name)
    for name in (
        "f8",
        "=f8",
        "|O",
        "|V8",
        "<U0",
        "|S0",
        "<f16",
        "<c32",
        "<M8[x]",
        "<i16",
        "|i2",
        "float64",
        "<U999999999",
    ):
        assert not arrays._DTYPE.fullmatch(name)
