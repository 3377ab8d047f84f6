"""The OpenAPI 3.1 document, generated from the routes and from the types that check requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, cast

import msgspec

from fanlog import errors
from fanlog.listeners.web.entrance import COOKIE, OPEN_PATHS
from fanlog.listeners.web.openapi_names import NOT_INTERNAL, PATH_SCHEMAS, TARGET_SCHEMA
from fanlog.listeners.web.problems import CONTENT_TYPE, Problem, problem_of, status_of
from fanlog.listeners.web.reference import Schema
from fanlog.listeners.web.routes import Nothing, Route
from fanlog.release import VERSION

JSON = "application/json"
BYTES = "application/octet-stream"
_REF = "#/components/schemas/{name}"

# What may happen to any request.
_ALWAYS = (
    errors.InvalidArgumentError,
    errors.UnauthenticatedError,
    errors.ForbiddenError,
    errors.RateLimitedError,
    errors.OverloadedError,
)
# What may happen to one with a body.
_WITH_BODY = (errors.MessageTooLargeError, errors.RequestTimeoutError)

_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

# What types can't say, and the broker checks.
_ONE_VALUE: Schema = {
    "oneOf": [
        {"required": ["json"]},
        {"required": ["text"]},
        {"required": ["base64"]},
        {"required": ["deleted"], "properties": {"deleted": {"const": True}}},
    ],
    "not": {
        "required": ["key", "key_base64"],
        "properties": {"key": {"type": "string"}, "key_base64": {"type": "string"}},
    },
}
_CHOSEN_LETTERS: Schema = {
    "oneOf": [
        {"required": ["ids"]},
        {"required": ["where"]},
        {"required": ["all"], "properties": {"all": {"const": True}}},
    ]
}
_RULES: dict[str, Schema] = {
    "ChosenLetters": _CHOSEN_LETTERS,
    "ReplayedLetters": _CHOSEN_LETTERS,
    "OutgoingMessage": _ONE_VALUE,
    "TopicMessage": _ONE_VALUE,
    "BroadcastBody": _ONE_VALUE,
    "Publications": {
        "properties": {
            "publish": {
                "type": "array",
                "minItems": 1,
                "maxItems": 1000,
                "items": {
                    "anyOf": [
                        {"$ref": _REF.format(name="TopicMessage")},
                        {"$ref": _REF.format(name="TopicMessageList")},
                    ]
                },
            }
        }
    },
    "Truncation": {
        "oneOf": [
            {"required": ["offsets"], "properties": {"offsets": {"minProperties": 1}}},
            {"required": ["before"]},
        ]
    },
}

_SCHEMES: Schema = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A key (`fl_...`), or a token (JWT).",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "A browser's session: POST /v1/login.",
    },
}

TAGS = {
    "topics": "Create, change and delete topics.",
    "messages": "Publish and read messages.",
    "groups": "Consumer groups: their members, partitions and lag.",
    "queues": "Take jobs, and report their outcomes.",
    "dead letters": "Jobs that failed for good.",
    "tasks": "Long work in the background, and its progress.",
    "streams": "Follow topics as they grow, and streams that end, such as the answer of a "
    "language model.",
    "requests": "Send a request, and wait for its answer.",
    "presence": "See who is present.",
    "users": "Send to users, and disconnect them.",
    "connections": "See connections, and close them.",
    "status": "The health of the broker.",
    "accounts": "Keys and users, and what they may do.",
    "logins": "Log in and out, and see what you may do.",
    "operations": "Settings, and the audit log.",
    "transactions": "Open transactions.",
    "schedules": "Messages that are published again and again, and messages that wait "
    "until they are due.",
    "pipelines": "Spark queries that read this broker, and the last runs of pipelines.",
}


def make_document(routes: Sequence[Route], server: str = "/", *, guarded: bool = False) -> Schema:
    """The document for these routes. `guarded`: clients must log in."""
    schemas = _schemas(routes)
    paths: dict[str, Schema] = {}
    for route in routes:
        path = paths.setdefault(route.path, {})
        path[route.method.lower()] = _operation(route)
    used = dict.fromkeys(route.tag for route in routes)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Fanlog",
            "version": VERSION,
            "summary": "A publish/subscribe broker and durable event log.",
            "description": "Every error is a problem document (RFC 9457): `detail` says what to "
            "do, and `code` is stable.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": server}],
        "tags": [{"name": tag, "description": TAGS.get(tag, "")} for tag in used],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": _problem_responses(),
            "securitySchemes": _SCHEMES,
        },
        "security": [{"bearer": []}, {"session": []}, *([] if guarded else [{}])],
    }


def _types(routes: Iterable[Route]) -> list[Any]:
    found: dict[Any, None] = {Problem: None}
    for route in routes:
        bodies = route.bodies or {JSON: route.body}
        for kind in (route.answer, *route.types, *bodies.values()):
            several = cast("tuple[Any, ...]", kind) if isinstance(kind, tuple) else (kind,)
            for one in several:
                if one not in (None, bytes, str, Nothing):
                    found[one] = None
    return list(found)


def _schemas(routes: Sequence[Route]) -> dict[str, Schema]:
    _, components = msgspec.json.schema_components(_types(routes), ref_template=_REF)
    for query in {route.query for route in routes}:
        _, used = msgspec.json.schema_components([query], ref_template=_REF)
        # The query itself appears as parameters.
        components |= {name: entry for name, entry in used.items() if name != query.__name__}
    for name, rules in _RULES.items():
        if name in components:
            components[name] |= rules
    # Only its parts appear, see `Publications`.
    components.pop("TopicPublication", None)
    return {name: _tidied(schema) for name, schema in sorted(components.items())}


def _tidied(schema: Any) -> Any:
    """A schema whose descriptions are lines, where they were docstrings."""
    if isinstance(schema, list):
        return [_tidied(entry) for entry in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    tidy = {name: _tidied(entry) for name, entry in cast("Schema", schema).items()}
    if isinstance(tidy.get("description"), str):
        tidy["description"] = _sentence(tidy["description"])
    if tidy.get("contentEncoding") == "base64":
        tidy["pattern"] = _BASE64
    return tidy


def _sentence(text: str) -> str:
    """A docstring as one line."""
    return " ".join(text.split())


def _ref(kind: Any) -> Schema:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema


def operation_id(route: Route) -> str:
    """A name for code that is generated: `topics_create`."""
    tag = re.sub(r"\W+", "_", route.tag)
    return f"{tag}_{route.handler.__name__}"


def _operation(route: Route) -> Schema:
    operation: Schema = {
        "operationId": operation_id(route),
        "summary": route.summary,
        "tags": [route.tag],
    }
    if route.description:
        operation["description"] = _sentence(route.description)
    parameters = [*_path_params(route), *_query_params(route), *_header_params(route)]
    if parameters:
        operation["parameters"] = parameters
    content = _contents(route)
    if content:
        # A body that is taken as it is may be empty.
        operation["requestBody"] = {"required": list(content) != [BYTES], "content": content}
    if route.path in OPEN_PATHS:
        operation["security"] = []
    operation["responses"] = _responses(route)
    return operation


def _path_params(route: Route) -> list[Schema]:
    schemas = PATH_SCHEMAS
    if route.path.endswith("/stream") or route.tag == "queues":
        schemas = schemas | {"topic": TARGET_SCHEMA}
    elif route.tag in ("topics", "messages", "requests") and route.method != "GET":
        schemas = schemas | {"topic": schemas["topic"] | NOT_INTERNAL}
    return [
        {"name": name, "in": "path", "required": True, "schema": schemas[name]}
        for name in re.findall(r"\{(\w+)", route.path)
    ]


def _query_params(route: Route) -> list[Schema]:
    if route.query is Nothing:
        return []
    _, components = msgspec.json.schema_components([route.query], ref_template=_REF)
    schema = _tidied(components[route.query.__name__])
    required = schema.get("required", ())
    parameters = [
        _param(name, "query", _inlined(field, components), required=name in required)
        for name, field in schema.get("properties", {}).items()
    ]
    for parameter in parameters:
        if parameter["name"] in route.query_example:
            parameter["example"] = route.query_example[parameter["name"]]
    return parameters


def _inlined(field: Schema, components: Schema) -> Schema:
    """A parameter's schema without a reference: the types of parameters stand nowhere else."""
    name = field.get("$ref", "").rpartition("/")[2]
    if not name:
        return field
    return _tidied(components[name]) | {key: said for key, said in field.items() if key != "$ref"}


def _header_params(route: Route) -> list[Schema]:
    return [
        {
            "name": header.name,
            "in": "header",
            "required": False,
            "description": header.description,
            "schema": {"type": "string", **header.schema},
        }
        for header in route.headers
    ]


def _param(name: str, location: str, field: Schema, *, required: bool) -> Schema:
    schema = _without_null(field)
    described: Schema = {"name": name, "in": location, "required": required}
    description = schema.pop("description", "")
    if description:
        described["description"] = description
    return described | {"schema": schema}


def _without_null(field: Schema) -> Schema:
    """A parameter may be absent, but it is never null."""
    options = [option for option in field.get("anyOf", ()) if option != {"type": "null"}]
    schema = {name: entry for name, entry in field.items() if name != "anyOf"}
    if len(options) == 1:
        schema = options[0] | schema
    elif options:
        schema["anyOf"] = options
    if schema.get("default", 0) is None:
        del schema["default"]
    return schema


def _contents(route: Route) -> Schema:
    bodies = dict(route.bodies)
    if route.body is not None and not bodies:
        bodies = {JSON if route.body is not bytes else BYTES: route.body}
    content: Schema = {}
    for media, kind in bodies.items():
        content[media] = {"schema": _body_schema(kind)}
        if media == JSON and route.example is not None:
            content[media]["example"] = route.example
    return content


def _body_schema(kind: Any) -> Schema:
    if isinstance(kind, tuple):
        return {"anyOf": [_ref(one) for one in cast("tuple[Any, ...]", kind)]}
    if kind is bytes:
        return {}
    if kind is str:
        return {"type": "string"}
    return _ref(kind)


def _responses(route: Route) -> Schema:
    answered: Schema = {"description": HTTPStatus(route.status).phrase}
    if route.answer is not None:
        answered["content"] = {route.answer_type: {"schema": _body_schema(route.answer)}}
        if route.answer_example is not None:
            answered["content"][route.answer_type]["example"] = route.answer_example
        answered["content"] |= {media: {"schema": {"type": "string"}} for media in route.texts}
    if route.answer_headers:
        answered["headers"] = {
            header.name: {
                "description": header.description,
                "schema": {"type": "string", **header.schema},
            }
            for header in route.answer_headers
        }
    responses: Schema = {str(route.status): answered}
    for status in route.also:
        responses[str(status)] = {"description": HTTPStatus(status).phrase}
    has_body = route.body is not None
    raised = (*_ALWAYS, *(_WITH_BODY if has_body else ()), *route.errors)
    for status in sorted({status_of(kind("")) for kind in raised} | {500, 501}):
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    if route.unavailable is not None:
        responses["503"] = {
            "description": HTTPStatus(503).phrase,
            "content": {
                JSON: {"schema": _ref(route.unavailable)},
                CONTENT_TYPE: {"schema": _REF_PROBLEM},
            },
        }
    return responses


def _problem_responses() -> dict[str, Schema]:
    """A response for each status, with the codes that it may have."""
    by_status: dict[int, list[type[errors.FanlogError]]] = {}
    for kind in errors.BY_CODE.values():
        by_status.setdefault(status_of(kind("")), []).append(kind)
    return {
        str(status): {
            "description": HTTPStatus(status).phrase,
            "content": {
                CONTENT_TYPE: {
                    "schema": _REF_PROBLEM,
                    "examples": {kind.code: {"value": _example(kind)} for kind in kinds},
                }
            },
        }
        for status, kinds in sorted(by_status.items())
    }


_REF_PROBLEM: Schema = {"$ref": _REF.format(name=Problem.__name__)}


def _example(kind: type[errors.FanlogError]) -> Any:
    meaning = _sentence((kind.__doc__ or "").partition("What to do:")[0])
    return msgspec.to_builtins(problem_of(kind(meaning)))
