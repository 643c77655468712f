"""``provider:model``, or a name from the user's own file, to a client. Trusted configuration alone.

``models.toml`` lies in the user's configuration directory, and is never looked for in the workspace::

    default = "work"

    [models.work]
    provider = "openai"                  # whose API: openai or anthropic, or a known provider's name
    model = "gpt-5"
    base_url = "https://llm.example.org/v1"
    key_env = "WORK_LLM_KEY"             # the NAME of the environment variable that holds the key
    stream = true
    extra = { temperature = 0 }          # added to every request

Keys are never written in the file, and never taken from the workspace: no ``.env`` is read.
"""

import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import urlsplit

import platformdirs

from handrail import stricttoml
from handrail.bounds import require_seconds
from handrail.errors import ConfigurationError
from handrail.models.client import ModelClient


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is asked, and in whose API. ``key_env`` may be empty for servers that need no key."""

    api: str
    base_url: str
    key_env: str = ""
    key_needed: bool = True
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


ENDPOINTS: dict[str, Endpoint] = {
    "openai": Endpoint("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": Endpoint("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "openrouter": Endpoint("openai", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "deepseek": Endpoint(
        "openai", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", options={"max_tokens_field": "max_tokens"}
    ),
    "ollama": Endpoint("openai", "http://127.0.0.1:11434/v1", key_needed=False),
    "vllm": Endpoint("openai", "http://127.0.0.1:8000/v1", "VLLM_API_KEY", key_needed=False),
}

_CLIENTS = {
    "openai": ("handrail.models.openai_compatible", "OpenAICompatible"),
    "anthropic": ("handrail.models.anthropic", "Anthropic"),
}
_KINDS: dict[str, tuple[type, str]] = {
    "provider": (str, "a string"),
    "model": (str, "a string"),
    "base_url": (str, "a string"),
    "key_env": (str, "a string"),
    "stream": (bool, "true or false"),
    "timeout": (object, ""),  # its number is checked where all numbers of a host are
    "extra": (dict, "a table like { temperature = 0 }"),
    "max_tokens_field": (str, "a string"),
}
"""What a table of the file may say, and the kind of each."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def default_models_path() -> str:
    """The user's own file of models."""
    return os.path.join(platformdirs.user_config_dir("handrail"), "models.toml")


def open_model(
    wanted: str | None, *, path: str | None = None, environment: Mapping[str, str] = os.environ
) -> ModelClient:
    """The client for ``wanted`` (``provider:model`` or a name from the file), or for the file's default.

    Raises :class:`~handrail.errors.ConfigurationError` saying what is missing and how to mend it.
    """
    where = path if path is not None else default_models_path()
    named = load_models(where)
    name = wanted if wanted is not None else named.default
    if name is None:
        raise ConfigurationError(f"no model: give --model PROVIDER:MODEL, or set a default in {where}")
    if name in named.models:
        provider, model, endpoint = named.models[name]
    else:
        provider, model, endpoint = _from_words(name, where)
    key = environment.get(endpoint.key_env, "") if endpoint.key_env else ""
    if not key and endpoint.key_needed:
        raise ConfigurationError(f"model {name!r} needs a key: set the environment variable {endpoint.key_env}")
    module, client = _CLIENTS[endpoint.api]
    made = getattr(importlib.import_module(module), client)
    return cast("ModelClient", made(model, base_url=endpoint.base_url, key=key, provider=provider, **endpoint.options))


@dataclass(frozen=True, slots=True)
class NamedModels:
    """The file: each name's provider, model and endpoint, and which one counts when none is named."""

    default: str | None
    models: Mapping[str, tuple[str, str, Endpoint]]


def load_models(path: str) -> NamedModels:
    """Read the user's file; a missing one names nothing. Raises :class:`~handrail.errors.ConfigurationError`."""
    try:
        with open(path, "rb") as file:
            data = stricttoml.read(file.read().decode())
    except FileNotFoundError:
        return NamedModels(None, {})
    except (OSError, stricttoml.NotToml, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from None
    if unknown := set(data) - {"default", "models"}:
        raise ConfigurationError(f"{path}: unknown key {min(unknown)!r}; there are: default, models")
    tables: Any = data.get("models", {})
    if not isinstance(tables, dict):
        raise ConfigurationError(f"{path}: 'models' must be tables like [models.work]")
    models = {name: _from_table(name, table, path) for name, table in cast("dict[str, Any]", tables).items()}
    default: Any = data.get("default")
    if default is not None and not isinstance(default, str):
        raise ConfigurationError(f"{path}: 'default' must be a string")
    return NamedModels(default, models)


def _from_words(name: str, where: str) -> tuple[str, str, Endpoint]:
    provider, colon, model = name.partition(":")
    if not colon or not model or provider not in ENDPOINTS:
        known = ", ".join(f"{item}:MODEL" for item in ENDPOINTS)
        raise ConfigurationError(f"--model {name!r} is neither a name in {where} nor one of: {known}")
    return provider, model, ENDPOINTS[provider]


def _from_table(name: str, table: Any, path: str) -> tuple[str, str, Endpoint]:
    where = f"{path}: models.{name}"
    if not isinstance(table, dict):
        raise ConfigurationError(f"{where} must be a table")
    given = cast("dict[str, Any]", table)
    _check_table(where, given)
    provider, model = given.get("provider"), given.get("model")
    if provider not in ENDPOINTS or not model:
        raise ConfigurationError(f"{where} needs a model, and a provider out of: {', '.join(ENDPOINTS)}")
    known = ENDPOINTS[cast("str", provider)]
    options = {key: given[key] for key in ("stream", "timeout", "extra", "max_tokens_field") if key in given}
    endpoint = replace(
        known,
        base_url=given.get("base_url", known.base_url),
        key_env=given.get("key_env", "" if "base_url" in given else known.key_env),
        key_needed=bool(given.get("key_env")) or (known.key_needed and "base_url" not in given),
        options={**known.options, **options},
    )
    return cast("str", provider), cast("str", model), endpoint


def _check_table(where: str, given: Mapping[str, Any]) -> None:
    """Raises :class:`~handrail.errors.ConfigurationError` for what no model could be asked with."""
    if unknown := set(given) - set(_KINDS):
        raise ConfigurationError(f"{where}: unknown key {min(unknown)!r}; there are: {', '.join(sorted(_KINDS))}")
    for key, value in given.items():
        kind, words = _KINDS[key]
        if not isinstance(value, kind):
            raise ConfigurationError(f"{where}: {key} must be {words}")
    if "timeout" in given:
        require_seconds(f"{where}: timeout", given["timeout"])
    if "base_url" in given and not _is_address(given["base_url"]):
        raise ConfigurationError(f"{where}: base_url must be an address like https://llm.example.org/v1")
    if given.get("key_env") and not _VARIABLE.fullmatch(given["key_env"]):  # perhaps a key: then it is not repeated
        raise ConfigurationError(
            f"{where}: key_env must be the name of an environment variable that holds the key, like WORK_LLM_KEY"
        )


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
