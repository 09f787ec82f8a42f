"""A process that does not know a type carries its values from checkpoint to checkpoint without a change."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from sqlalchemy import create_engine, select

import checkpoint
from checkpoint import CheckpointState, Opaque, SqlStore
from checkpoint.envelope import unpack
from checkpoint.registry import registry


@dataclass(frozen=True)
class Order:
    lines: tuple[str, ...]


def test_what_a_process_does_not_know_goes_through_its_store_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_class", {})
    monkeypatch.setattr(registry, "_by_tag", {})
    checkpoint.register("shop.Order", Order, version=3)
    engine = create_engine("sqlite://")
    knows = SqlStore(engine)
    knows.create_schema()
    state = CheckpointState("order-7", 0, messages=[Order(("tea",))], agent_state={"open": {Order(("cup",))}})
    knows.save(state)

    registry._by_class.clear()
    registry._by_tag.clear()
    other = SqlStore(engine)
    carried = other.load_latest("order-7")
    assert carried is not None
    assert type(carried.messages[0]) is Opaque
    other.save(replace(carried, seq=1, messages=[*carried.messages, "seen"]))

    checkpoint.register("shop.Order", Order, version=3)
    after = SqlStore(engine).load("order-7", 1)
    assert (after.messages, after.agent_state) == ([*state.messages, "seen"], state.agent_state)
    table = knows.tables.checkpoints
    with engine.connect() as connection:
        heads = connection.execute(select(table.c.head).order_by(table.c.seq)).scalars().all()
    assert unpack(heads[0]) == unpack(heads[1])
    engine.dispose()
