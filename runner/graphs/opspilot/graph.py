"""The agent itself: LangChain's `create_agent`, unchanged, as anybody would write it.

The environment is read here and for the guard, nowhere else:
* `DATABASE_URL`: where the fleet lives;
* `STEADYRUN_OPSPILOT_MODEL`: a real model as `init_chat_model` names it (`openai:gpt-…`); without
  it the scripted model speaks, which needs no key;
* `STEADYRUN_OPSPILOT_DELAY_MS`: its pause before each word (default 25);
* `STEADYRUN_OPSPILOT_RELAPSE_S`: how long a restarted instance stays healthy in the
  eyes of other conversations (default 10).
"""

import os
from collections.abc import Mapping
from typing import Any

from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langgraph.graph.state import CompiledStateGraph

from runner.graphs.opspilot.fleet import Fleet, fleet_of
from runner.graphs.opspilot.model import ScriptedModel
from runner.graphs.opspilot.tools import OpsTools

Agent = CompiledStateGraph[Any, Any, Any, Any]

PROMPT = """\
You are OpsPilot, an operations assistant over a small fleet of services.
Answer briefly, in the language of the user. Before a tool call say in a sentence what you do.
Before you propose a restart, list the instances of the service and read the recent errors of the
abnormal one. Restart an instance only with restart_instance, which asks a person by itself: do not
ask for confirmation in words. "It" is the service or instance that the conversation last dealt
with according to the tools' results; if that is not clear, ask. State only what tools have said.
"""


def build(fleet: Fleet, model: BaseChatModel) -> Agent:
    """The agent over this fleet; without a checkpointer, which is the runner's."""
    return create_agent(model, OpsTools(fleet).all(), system_prompt=PROMPT, name="opspilot")


def model_of(environ: Mapping[str, str]) -> BaseChatModel:
    named = environ.get("STEADYRUN_OPSPILOT_MODEL")
    if named:
        return init_chat_model(named)
    return ScriptedModel(delay_s=float(environ.get("STEADYRUN_OPSPILOT_DELAY_MS", "25")) / 1000)


graph = build(fleet_of(os.environ), model_of(os.environ))
