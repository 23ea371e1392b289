"""The agent itself: LangChain's `create_agent`, unchanged, as anybody would write it.

The environment is read here and for the guard, nowhere else:
* `DATABASE_URL`: where the fleet lives;
* `STEADYRUN_OPSPILOT_MODEL`: a real model as `init_chat_model` names it (`openai:gpt-…`); without
  it the scripted model speaks, which needs no key;
* `STEADYRUN_OPSPILOT_DELAY_MS`: its pause before each word (default 25);
* `STEADYRUN_OPSPILOT_RELAPSE_S`: how long a restarted instance stays healthy in the
  eyes of other conversations (default 10);
* `STEADYRUN_OPSPILOT_CONTEXT_TOKENS`: what the model may be told at once (default 6000).
"""

import os
from collections.abc import Mapping
from typing import Any

from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langgraph.graph.state import CompiledStateGraph

from runner.graphs.opspilot.context import ThreeLayers
from runner.graphs.opspilot.fleet import Fleet, fleet_of
from runner.graphs.opspilot.model import ScriptedModel
from runner.graphs.opspilot.tools import OpsTools

Agent = CompiledStateGraph[Any, Any, Any, Any]

PROMPT = """\
You are OpsPilot, an operations assistant over a small fleet of services.
Answer briefly, in the language of the user. Before a tool call say in a sentence what you do.
Before you propose a restart, list the instances of the service and read the recent errors of the
abnormal one. Restart an instance only with restart_instance, which asks a person by itself: do not
ask for confirmation in words. "It" and "the one just now" are the service or instance in the known
facts, which the conversation last dealt with; if that is not clear, ask. State only what tools have
said.
"""
CONTEXT_TOKENS = 6000


def build(fleet: Fleet, model: BaseChatModel, context_tokens: int = CONTEXT_TOKENS) -> Agent:
    """The agent over this fleet; without a checkpointer, which is the runner's. The scripted model
    does not sum up: its summaries are extracts."""
    summarize = None if isinstance(model, ScriptedModel) else model
    return create_agent(
        model,
        OpsTools(fleet).all(),
        system_prompt=PROMPT,
        middleware=[ThreeLayers(context_tokens, summarize)],
        name="opspilot",
    )


def model_of(environ: Mapping[str, str]) -> BaseChatModel:
    named = environ.get("STEADYRUN_OPSPILOT_MODEL")
    if named:
        return init_chat_model(named)
    return ScriptedModel(delay_s=float(environ.get("STEADYRUN_OPSPILOT_DELAY_MS", "25")) / 1000)


def tokens_of(environ: Mapping[str, str]) -> int:
    return int(environ.get("STEADYRUN_OPSPILOT_CONTEXT_TOKENS", CONTEXT_TOKENS))


graph = build(fleet_of(os.environ), model_of(os.environ), tokens_of(os.environ))
