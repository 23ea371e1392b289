"""Reads a conversation's thread as LangGraph has it now.

What the steps of a checkpoint wrote is saved before it is put together: two of them may have set
what only one may, or given a reducer what it cannot take. That ends their run, and every later look
at the thread would raise the same again, so that the conversation could never be used any more. A
new input drops what such steps wrote. So here the thread is then what it was before them: its last
checkpoint, which could be read.
"""

from typing import Any

import structlog
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

from common.errors import LeaseLost, Unavailable

log = structlog.get_logger(__name__)


async def read_thread(graph: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> StateSnapshot:
    """Raises LeaseLost, Unavailable, and whatever a checkpoint raises that cannot be read."""
    try:
        return await graph.aget_state(config, subgraphs=True)
    except (LeaseLost, Unavailable):
        raise
    except Exception as error:  # whatever channels and reducers raise
        log.warning("last_step_not_read", error=type(error).__name__)
        return await _before_last_step(graph, config)


async def _before_last_step(
    graph: Pregel[Any, Any, Any, Any], config: RunnableConfig
) -> StateSnapshot:
    """Named by its id a checkpoint is shown as it was saved; a subgraph's would be shown live."""
    assert isinstance(graph.checkpointer, BaseCheckpointSaver)  # ours
    saved = await graph.checkpointer.aget_tuple(config)
    return await graph.aget_state(config if saved is None else saved.config)
