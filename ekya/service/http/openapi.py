"""OpenAPI description of the API, made from the declarations of its routes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from http import HTTPStatus
from typing import Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter

from ekya import __version__
from ekya.config.keys_in_words import ATTRIBUTES, read_meanings
from ekya.service.http.bodies import Note, Problem
from ekya.service.http.route import JSON, Access, Route
from ekya.service.http.routes import ROUTES

_REF = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"\{(\w+)\}")


@cache
def openapi_document() -> Mapping[str, Any]:
    """Returns the OpenAPI 3.1 document."""
    schemas, components = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ekya",
            "version": __version__,
            "description": "A service that keeps the models of a fleet of cameras accurate.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    refusals = [HTTPStatus.SERVICE_UNAVAILABLE] if route.call is None else []
    if route.access is not Access.OPEN:
        refusals += [HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS]
    if route.access is Access.CHANGE:
        refusals += [HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.SERVICE_UNAVAILABLE]
    if route.access is Access.LEND:
        refusals += [HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND]
    if route.query is not None:
        refusals.append(HTTPStatus.BAD_REQUEST)
    if route.body is not None or route.uploads:
        refusals += [HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE]
    parameters = [_in_path(name) for name in _PARAMETER.findall(route.path)]
    if parameters:
        refusals.append(HTTPStatus.NOT_FOUND)
    parameters += [] if route.query is None else list(_in_query(route.query))
    refused = {"description": "", "content": {JSON: {"schema": schemas[Problem]}}}
    told: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.about,
        "parameters": parameters,
        "responses": {
            **_success(route, schemas),
            **{str(int(one)): {**refused, "description": one.phrase} for one in sorted(set(refusals))},
        },
        "security": [] if route.access is Access.OPEN else [{"token": []}],
    }
    if route.body is not None:
        required = not route.may_be_empty
        told["requestBody"] = {"required": required, "content": {JSON: {"schema": schemas[route.body]}}}
    if route.uploads:
        told["requestBody"] = {"required": True, "content": {route.uploads: {"schema": {}}}}
    return told


def _success(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    done = {"204": {"description": "Done."}}
    if not route.media:
        return done
    schema = {} if route.answers is None else schemas[route.answers]
    told: dict[str, Any] = {"200": {"description": route.about, "content": {route.media: {"schema": schema}}}}
    if route.answers is Note:
        told |= {"202": {**told["200"], "description": "Kept, and not carried out yet: why."}, **done}
    return told


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _in_query(query: type[BaseModel]) -> Iterator[dict[str, Any]]:
    meanings = read_meanings(query)
    whole = query.model_json_schema()
    for name, schema in whole["properties"].items():
        told = {"description": _one_line(meanings.get(name, ""))}
        required = name in whole.get("required", ())
        yield {"name": name, "in": "query", "required": required, **told, "schema": schema}


def _schemas() -> tuple[dict[Any, Any], dict[str, Any]]:
    """Returns the schema of each body and answer, and the components that they refer to."""
    bodies = list(dict.fromkeys(route.body for route in ROUTES if route.body is not None))
    answers = list(dict.fromkeys(route.answers for route in ROUTES if route.answers is not None))
    kinds: list[tuple[Any, Literal["validation", "serialization"], TypeAdapter[Any]]] = [
        *((body, "validation", TypeAdapter(body)) for body in bodies),
        *((answer, "serialization", TypeAdapter(answer)) for answer in [*answers, Problem]),
    ]
    found, shared = TypeAdapter.json_schemas(kinds, ref_template=_REF)
    components: dict[str, Any] = shared.get("$defs", {})
    for model in _models([*bodies, *answers, Problem]):
        if model.__name__ in components:
            _describe(components[model.__name__], model)
    return {kind: schema for (kind, _), schema in found.items()}, dict(sorted(components.items()))


def _models(kinds: list[Any]) -> Iterator[type]:
    """Yields the models and dataclasses that types mention, each once."""
    seen: set[Any] = set()
    while kinds:
        kind = kinds.pop()
        if kind in seen:
            continue
        seen.add(kind)
        kinds = [*kinds, *get_args(kind)]
        if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, BaseModel)):
            yield kind
            kinds += list(get_type_hints(kind).values())


def _describe(schema: dict[str, Any], model: type) -> None:
    """Adds the meanings of a model's docstring to its schema."""
    schema["description"] = _one_line((model.__doc__ or "").partition(ATTRIBUTES)[0])
    for name, meaning in read_meanings(model).items():
        if name in schema.get("properties", {}):
            schema["properties"][name].setdefault("description", _one_line(meaning))


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")
