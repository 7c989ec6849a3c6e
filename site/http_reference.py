"""The reference of the HTTP API, generated from the OpenAPI description that the service provides at /openapi.json."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGE = "reference/http.md"
DESCRIPTION = "reference/openapi.json"
BEGINNING = """# HTTP API

All requests to [`denn serve`](../service.md). A running service provides this description at `/openapi.json`; here is
[a copy](openapi.json) (OpenAPI 3.1). Send your key as `Authorization: Bearer KEY`, as `X-API-Key: KEY`, or as the
password of HTTP Basic authentication ([keys](../service.md#keys-and-access)). Errors are
`application/problem+json`; see [Problem](#problem).

"""
Schema = Mapping[str, Any]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page, and the description itself."""
    described = _openapi()
    files.append(File.generated(config, PAGE, content=BEGINNING + "\n".join(_page(described))))
    files.append(File.generated(config, DESCRIPTION, content=json.dumps(described, indent=1, ensure_ascii=False)))
    return files


def _openapi() -> dict[str, Any]:
    """Return the description; the application needs its model only when it starts."""
    from denn.service.app import make_app
    from denn.service.settings import Settings

    guard: Any = make_app(None, Settings())  # type: ignore[arg-type]
    return guard.app.openapi()


def _page(described: Schema) -> Iterator[str]:
    yield "## Requests\n"
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield from _operation(method.upper(), path, operation)
    yield "\n## Objects\n"
    for name, schema in sorted(described["components"]["schemas"].items()):
        yield f"### {name}\n"
        yield f"{_text(schema.get('description', ''))}\n"
        if rows := list(_fields(schema)):
            yield "| Field | Type | Description |\n|---|---|---|"
            yield from rows
            yield ""


def _operation(method: str, path: str, operation: Schema) -> Iterator[str]:
    """Write one request: what it does, its parameters, its body and its responses."""
    yield f"### {method} {path} {{#{operation['operationId']}}}\n"
    title, told = operation.get("summary", ""), operation.get("description", "")
    right = f" Needs the right `{operation['x-right']}`." if "x-right" in operation else " Needs no key."
    yield f"{_text(told or title + '.')}{right}\n"
    if parameters := operation.get("parameters"):
        yield "| Parameter | In | Type | Description |\n|---|---|---|---|"
        for one in parameters:
            need = " *Required.*" if one.get("required") else ""
            words = one.get("description") or one["schema"].get("description", "")
            yield f"| `{one['name']}` | {one['in']} | {_kind(one['schema'])} | {_text(words)}{need} |"
        yield ""
    if body := operation.get("requestBody"):
        yield f"Body: {_content(body)}\n"
    yield "| Status | Content | Description |\n|---|---|---|"
    for code, answer in operation["responses"].items():
        yield f"| {code} | {_content(answer)} | {_text(answer.get('description', ''))} |"
    yield ""


def _content(part: Schema) -> str:
    kinds = part.get("content", {}).items()
    return ", ".join(f"`{kind}`" + (f": {_kind(of['schema'])}" if of.get("schema") else "") for kind, of in kinds)


def _fields(schema: Schema) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        need = " *Required.*" if name in schema.get("required", ()) else ""
        yield f"| `{name}` | {_kind(field)} | {_text(field.get('description', ''))}{need} |"


def _kind(schema: Schema) -> str:
    """Write a type in a few words, with its limits and its default."""
    kind = _plain(schema)
    limits = {"minimum": "at least", "maximum": "at most", "minLength": "at least", "maxLength": "at most"}
    limits |= {"minItems": "at least", "maxItems": "at most", "exclusiveMinimum": "above"}
    units = {"minLength": " character", "maxLength": " character", "minItems": " item", "maxItems": " item"}
    notes = [
        f"{word} {schema[name]:,}{units.get(name, '')}{'s' * (name in units and schema[name] != 1)}"
        for name, word in limits.items()
        if name in schema
    ]
    if schema.get("default") is not None:
        notes.append(f"default `{json.dumps(schema['default'], ensure_ascii=False)}`")
    return ", ".join([kind, *notes])


def _plain(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    for joint in ("anyOf", "oneOf", "allOf"):
        if joint in schema:
            return " or ".join(_kind(one) for one in schema[joint])
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    extra = schema.get("additionalProperties")
    if kind == "object" and isinstance(extra, dict) and extra:
        return f"object with values: {_kind(extra)}"
    return str(kind)


def _text(text: str) -> str:
    """Return plain text as Markdown in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
