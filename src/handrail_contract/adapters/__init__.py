"""One file per framework. Each is imported only when it is measured: they do not live in one environment."""

import importlib

from handrail_contract.adapter import Adapter

ADAPTERS = {
    "handrail": "handrail_contract.adapters.handrail_:HandrailAdapter",
    "pydantic-ai": "handrail_contract.adapters.pydantic_ai_:PydanticAIAdapter",
    "openai-agents": "handrail_contract.adapters.openai_agents:OpenAIAgentsAdapter",
    "langchain": "handrail_contract.adapters.langchain_:LangChainAdapter",
    "smolagents": "handrail_contract.adapters.smolagents_:SmolagentsAdapter",
    "mcp": "handrail_contract.adapters.mcp_sdk:McpSdkAdapter",
}


def load(name: str) -> Adapter:
    """The adapter called ``name``, or at ``module:Class``; :class:`ImportError` where its framework is missing."""
    module, _, attribute = ADAPTERS.get(name, name).partition(":")
    return getattr(importlib.import_module(module), attribute)()
