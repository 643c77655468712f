"""``@tool``: a tool from a typed function and its docstring. The schema it shows is the schema it enforces.

The parameters' types become a JSON Schema (by pydantic), which the corridor checks strictly like any other; only then
are the checked values made into the annotated types. Nothing is coerced on the way: what the schema refuses is never
offered to pydantic, and what a validator of pydantic's own refuses afterwards never enters the function.
"""

import inspect
import re
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

from handrail.errors import ToolDefinitionError, ToolError
from handrail.host import refuse_generator
from handrail.tool import Capability, Job, Replay, RiskLevel, Signal, Tool, ToolDef, is_customary_path
from handrail.workspace import Workspace

_PATH_FORMATS = ("path", "file-path", "directory-path")
_Take = Callable[[Job], Any]
_GIVEN: Mapping[Any, _Take] = {
    Signal: lambda job: job.signal,
    Workspace: lambda job: job.workspace,
    Job: lambda job: job,
}


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    risk_level: RiskLevel | Literal["safe", "read_only", "mutation", "destructive", "dangerous"] = RiskLevel.MUTATION,
    path_args: tuple[str, ...] | None = None,
    replay: Replay | Literal["safe", "never"] = Replay.NEVER,
    replay_key: str | None = None,
    capability: Capability = ...,
    timeout: float | None = None,
    staged: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a :class:`Tool` of a function, sync or async: ``@tool`` or ``@tool(risk_level="read_only")``.

    Every parameter needs a type. ``Signal``, ``Workspace`` and ``Job`` parameters are given by the corridor and not
    shown to the model. The docstring's first part is the description; its ``Args:`` section (or ``:param x:`` lines)
    describes the parameters. A parameter of type :class:`pathlib.Path` is a path in the workspace.

    Raises :class:`~handrail.errors.ToolDefinitionError`, naming the parameter that cannot be used.
    """
    if function is not None:
        return _made(function, options)
    return lambda decorated: _made(decorated, options)


def _made(function: Callable[..., Any], options: dict[str, Any]) -> Tool:
    options = dict(options)
    name = options.pop("name", None) or getattr(function, "__name__", None)
    if not name:
        raise ToolDefinitionError(f"{function!r} has no name; say name=")
    staged = options.pop("staged", False)
    where = f"tool {name!r}"
    refuse_generator(function, where)
    shown, given = _parameters(function, where)
    described, about = parsed_docstring(inspect.getdoc(function) or "")
    model = _model(name, shown, about, where)
    schema = _without_titles(_schema_of(model, where))
    if options.get("path_args") is None:
        options["path_args"] = _path_args(shown, schema, where)
    description = options.pop("description", None)
    definition = ToolDef(name, described if description is None else description, schema, **options)
    return Tool(definition, _handler(function, model, given), staged=staged)


def _parameters(
    function: Callable[..., Any], where: str
) -> tuple[dict[str, tuple[Any, inspect.Parameter]], dict[str, _Take]]:
    """The parameters the model gives (annotation and default), and those the corridor gives."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ToolDefinitionError(f"{where}: a type cannot be found: {error}") from None
    except TypeError:
        raise ToolDefinitionError(f"{where}: {function!r} is no function; write one around it") from None
    shown: dict[str, tuple[Any, inspect.Parameter]] = {}
    given: dict[str, _Take] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolDefinitionError(f"{where}: parameter {name!r} cannot be given by name")
        if name not in hints:
            raise ToolDefinitionError(f"{where}: parameter {name!r} has no type")
        if hints[name] in _GIVEN:
            given[name] = _GIVEN[hints[name]]
        else:
            shown[name] = (hints[name], parameter)
    return shown, given


def _model(name: str, shown: dict[str, tuple[Any, inspect.Parameter]], about: dict[str, str], where: str) -> Any:
    # pydantic takes longer to import than all of the house, and nothing but this decorator needs it
    import pydantic  # noqa: PLC0415

    fields: dict[str, Any] = {}
    for number, (parameter, (annotation, declared)) in enumerate(shown.items()):
        default = ... if declared.default is declared.empty else declared.default
        field: Any = pydantic.Field(default, alias=parameter, description=about.get(parameter))
        fields[f"argument_{number}"] = (annotation, field)  # any parameter name is allowed, also pydantic's own
    try:
        return pydantic.create_model(name, __config__=pydantic.ConfigDict(extra="forbid"), **fields)
    except Exception as error:  # noqa: BLE001 - whatever pydantic says about a type, the tool cannot be made
        raise ToolDefinitionError(f"{where}: no schema can be made of its types: {_in_one_line(error)}") from None


def _schema_of(model: Any, where: str) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a default that is not JSON is left out of the schema, and still used
        try:
            return model.model_json_schema(by_alias=True)
        except Exception as error:  # noqa: BLE001 - whatever pydantic says about a type, the tool cannot be made
            raise ToolDefinitionError(f"{where}: no schema can be made of its types: {_in_one_line(error)}") from None


def _in_one_line(error: Exception) -> str:
    return " ".join(line.strip() for line in str(error).strip().splitlines())[:300]


def _without_titles(node: Any) -> Any:
    """The schema without the titles pydantic makes up; a property that is called ``title`` stays."""
    if isinstance(node, list):
        return [_without_titles(item) for item in typing.cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    mapping = typing.cast("dict[str, Any]", node)
    kept = {key: item for key, item in mapping.items() if key != "title" or not isinstance(item, str)}
    return {
        key: {name: _without_titles(inner) for name, inner in typing.cast("dict[str, Any]", item).items()}
        if key in ("properties", "$defs") and isinstance(item, dict)
        else item
        if key in ("default", "const", "enum", "examples")
        else _without_titles(item)
        for key, item in kept.items()
    }


def _path_args(
    shown: dict[str, tuple[Any, inspect.Parameter]], schema: dict[str, Any], where: str
) -> tuple[str, ...] | None:
    """The customary names and every parameter that is a :class:`pathlib.Path`; ``None`` leaves it to the custom."""
    inside = schema.get("$defs", {})
    paths = [name for name in shown if _holds_a_path(schema["properties"][name], inside, frozenset())]
    unguarded = [name for name in paths if not is_customary_path(name)]
    if not unguarded:
        return None
    for name in unguarded:
        if schema["properties"][name].get("type") != "string":
            raise ToolDefinitionError(
                f"{where}: parameter {name!r} holds a path in a form that cannot be guarded; make it a plain Path (one "
                "that may be None is guarded where it is called path, cwd or something_path)"
            )
    customary = [
        name for name in shown if is_customary_path(name) and schema["properties"][name].get("type") == "string"
    ]
    return tuple(name for name in shown if name in customary or name in unguarded)


def _holds_a_path(node: Any, definitions: Mapping[str, Any], entered: frozenset[str]) -> bool:
    """Whether a path stands anywhere in what this schema describes, by the formats that pydantic writes for them."""
    if isinstance(node, list):
        return any(_holds_a_path(item, definitions, entered) for item in typing.cast("list[Any]", node))
    if not isinstance(node, dict):
        return False
    schema = typing.cast("dict[str, Any]", node)
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name and name not in entered and _holds_a_path(definitions.get(name), definitions, entered | {name}):
        return True
    return schema.get("format") in _PATH_FORMATS or any(
        _holds_a_path(item, definitions, entered)
        for key, item in schema.items()
        if key not in ("default", "const", "enum", "examples")
    )


def _handler(function: Callable[..., Any], model: Any, given: dict[str, _Take]) -> Callable[..., Any]:
    """``execute(args, job)`` around the function."""

    def arguments_of(args: Mapping[str, Any], job: Job) -> dict[str, Any]:
        try:
            values = model.model_validate(dict(args))
        except ValueError as error:  # pydantic's ValidationError is one
            raise ToolError(f"Invalid arguments: {_said(error)}.") from None
        typed = {model.model_fields[field].alias: getattr(values, field) for field in values.model_fields_set}
        return typed | {name: take(job) for name, take in given.items()}

    if inspect.iscoroutinefunction(function):

        async def execute_async(args: Mapping[str, Any], job: Job) -> Any:
            return await function(**arguments_of(args, job))

        execute: Callable[..., Any] = execute_async
    else:

        def execute_in_thread(args: Mapping[str, Any], job: Job) -> Any:
            return function(**arguments_of(args, job))

        execute = execute_in_thread
    execute.__module__, execute.__qualname__ = function.__module__, function.__qualname__
    return execute


def _said(error: Any) -> str:
    """What a validator of pydantic's found, without its links and input dumps."""
    found: list[dict[str, Any]] = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'the arguments'}: {item['msg']}" for item in found)


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?):\s*$")
_ENTRY = re.compile(r"^(?P<indent>\s+)\*{0,2}(?P<name>\w+)\s*(\([^)]*\))?:\s*(?P<text>.*)$")
_FIELD = re.compile(r"^:(?P<kind>\w+)(?:\s+[^:]*?(?P<name>\w+))?:\s*(?P<text>.*)$")


def parsed_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description, and what is said about each parameter, of a Google- or Sphinx-style docstring."""
    description: list[str] = []
    about: dict[str, str] = {}
    section, current, indent = "", "", ""
    for line in text.splitlines():
        if found := _SECTION.match(line):
            section, current = found[1], ""
        elif found := _FIELD.match(line):
            section, current = "field", found["name"] if found["kind"] == "param" and found["name"] else ""
            if current:
                about[current] = found["text"]
        elif not section:
            description.append(line)
        elif (
            section in ("Args", "Arguments", "Parameters")
            and (found := _ENTRY.match(line))
            and (not current or len(found["indent"]) <= len(indent))
        ):
            current, indent = found["name"], found["indent"]
            about[current] = found["text"]
        elif current and line.strip():
            about[current] = f"{about[current]} {line.strip()}".strip()
    return "\n".join(description).strip(), about
