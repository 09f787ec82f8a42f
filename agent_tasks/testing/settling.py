"""A person of a test, who answers every open question from the outside world."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from checkpoint import codec

if TYPE_CHECKING:
    from agent_tasks.runtime import Runtime
    from agent_tasks.testing.world import World


def settle_inbox(runtime: Runtime, world: World) -> None:
    """Answer every open question as the world's person does."""
    for item in runtime.boundary.read(runtime.engine, runtime.inbox.items):
        reply, result = world.person(item)

        answer = partial(
            runtime.inbox.resolve,
            item_id=item.item_id,
            reply=reply,
            who="tester",
            why="looked at the outside world",
            result=codec.dumps(result),
        )
        run_id, queued = runtime.boundary.commit("resolve", runtime.engine, answer)
        if queued:
            runtime.ring(run_id)
