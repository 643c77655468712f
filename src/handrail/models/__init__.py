"""Models behind one protocol. No provider's SDK is imported before its file is.

client.py             ModelClient, the messages, the events of an answer, the errors
projection.py         a tool's schema as a provider accepts it, and the way back
retry.py              ask again, only where nothing was received
openai_compatible.py  OpenAI, OpenRouter, vLLM, Ollama, DeepSeek …: chat completions
anthropic.py          Anthropic: messages
catalog.py            `provider:model` → a client, from trusted configuration alone
"""
