"""The graphs of a graph file, loaded and ready to run under our checkpointer.

Loading happens once, when the runner starts, so that a graph that cannot be loaded stops it with
its name, file and cause (contract §8). Every take-up of a run gets a copy of its graph with the
checkpointer of that (run, epoch); all other attributes of a compiled graph stay as they are.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from common import graphfile
from common.errors import Misconfigured
from common.graphfile import GraphFile, GraphSpec, Reference, load_object
from common.loading import cause

log = logging.getLogger(__name__)

Graph = Pregel[Any, Any, Any, Any]


class Registry:
    """Make it with `load`, then await `prepare` before the first run."""

    def __init__(self, file: GraphFile, sources: Mapping[str, _Source]) -> None:
        self.file = file
        self._sources = sources
        self._ready: dict[str, Graph] = {}

    @classmethod
    def load(cls, path: str | Path) -> Registry:
        """Import every graph and hook of the file. Raises `Misconfigured`."""
        file = graphfile.parse(path)
        file.apply_env()
        sources = {name: _load(spec) for name, spec in file.graphs.items()}
        return cls(file, sources)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.file.graphs)

    def spec(self, name: str) -> GraphSpec:
        return self.file.graphs[name]

    def is_built(self, name: str) -> bool:
        """Whether `graph` calls no factory of the user's any more."""
        return name in self._ready

    async def prepare(self) -> None:
        """Build what factories without a config make. Raises `Misconfigured`."""
        for name, source in self._sources.items():
            if not source.takes_config:
                self._ready[name] = await source.build({})

    async def graph(
        self,
        name: str,
        saver: BaseCheckpointSaver[Any],
        config: RunnableConfig | None = None,
    ) -> Graph:
        """A copy of the graph with our checkpointer; `config` is for factories that take one."""
        source = self._sources[name]
        if source.takes_config:
            return _with_saver(await source.build(config or {"configurable": {}}), saver)
        if name not in self._ready:
            self._ready[name] = await source.build({})
        return _with_saver(self._ready[name], saver)

    async def context(self, name: str, run: Mapping[str, Any], principal: Mapping[str, Any]) -> Any:
        """What the graph's `context` hook makes of the run and its principal; never stored.

        The hook is called as `context(run, principal)`, sync or async, at every take-up. Its
        errors are the graph's and go to the caller.
        """
        hook = self.spec(name).context
        if hook is None:
            return None
        made = load_object(hook)(run, principal)
        return await made if inspect.isawaitable(made) else made


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a graph comes from: itself, or a function that makes it."""

    spec: GraphSpec
    made: Graph | StateGraph[Any, Any, Any, Any] | Callable[..., Any]
    takes_config: bool = False

    async def build(self, config: RunnableConfig) -> Graph:
        made: Any = self.made
        if not isinstance(made, Pregel | StateGraph):
            made = await self._call(config)
        return _compiled(self.spec, made)

    async def _call(self, config: RunnableConfig) -> Any:
        factory: Any = self.made
        try:
            made = factory(config) if self.takes_config else factory()
            return await made if inspect.isawaitable(made) else made
        except Exception as error:  # whatever a user's factory does
            raise _broken(self.spec, f"its factory failed: {cause(error)}") from error


def _load(spec: GraphSpec) -> _Source:
    for reference in (spec.input, spec.context, spec.guard, spec.resume_validator):
        _load_hook(spec, reference)
    try:
        made = load_object(spec.graph)
    except Misconfigured as error:
        raise Misconfigured(f"graph {spec.name!r}: {error}") from error
    if isinstance(made, Pregel | StateGraph):
        return _Source(spec, _compiled(spec, made))
    if not callable(made):
        raise _broken(spec, f"{type(made).__name__} is no graph, StateGraph or factory")
    return _Source(spec, made, _takes_config(spec, made))


def _load_hook(spec: GraphSpec, reference: Reference | None) -> None:
    if reference is None:
        return
    try:
        load_object(reference)
    except Misconfigured as error:
        raise Misconfigured(f"graph {spec.name!r}: {error}") from error


def _takes_config(spec: GraphSpec, factory: Callable[..., Any]) -> bool:
    """A factory takes nothing, or LangGraph's config as its one parameter."""
    parameters = inspect.signature(factory).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind not in _VARIADIC]
    if len(needed) > 1:
        raise _broken(spec, "its factory must take no parameter or one, the config")
    return bool(needed) or any(p.name == "config" for p in parameters)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _compiled(spec: GraphSpec, made: Any) -> Graph:
    if isinstance(made, Pregel):
        _warn_of_checkpointer(spec, made)
        return made
    if not isinstance(made, StateGraph):
        raise _broken(spec, f"its factory made a {type(made).__name__}, which is no graph")
    try:
        return made.compile()
    except Exception as error:  # a builder that LangGraph refuses, in LangGraph's words
        raise _broken(spec, f"it cannot be compiled: {cause(error)}") from error


def _warn_of_checkpointer(spec: GraphSpec, graph: Graph) -> None:
    if isinstance(graph.checkpointer, BaseCheckpointSaver):
        log.warning("graph %r was compiled with a checkpointer; ours is used instead", spec.name)


def _with_saver(graph: Graph, saver: BaseCheckpointSaver[Any]) -> Graph:
    ours = copy.copy(graph)
    ours.checkpointer = saver
    ours.cache = None  # a step served from it is neither executed nor told, after a takeover either
    return ours


def _broken(spec: GraphSpec, what: str) -> Misconfigured:
    return Misconfigured(f"graph {spec.name!r} in {spec.file}: {what}")
