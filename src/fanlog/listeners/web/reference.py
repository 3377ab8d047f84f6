"""The reference page: the OpenAPI document as HTML, for people. It is made here, without a script,
and it loads nothing but its own style sheet and a few lines that copy and search."""

from __future__ import annotations

import json
import shlex
from html import escape
from typing import Any
from urllib.parse import urlencode

Schema = dict[str, Any]
_JSON = "application/json"
# What stands for a path's parts in an example.
_PARTS = {"partition": "0"}
_NOTHING: Schema = {}
# As far as numbers go: no limit that people would care about.
_INT64_MAX = (1 << 63) - 1


def make_page(document: Schema, origin: str) -> str:
    """The page, with curl lines for the host of the request."""
    names: dict[str, list[str]] = {}
    sections: dict[str, list[str]] = {tag["name"]: [] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            (tag,) = operation["tags"]
            writer = _DocumentedOperation(document, origin, method.upper(), path, operation)
            sections[tag].append(writer.html())
            names.setdefault(tag, []).append(writer.link())
    descriptions = {tag["name"]: tag.get("description", "") for tag in document["tags"]}
    main = "".join(
        f'<section id="{_id(tag)}"><h2>{escape(_title(tag))}</h2>'
        f"<p>{_text(descriptions[tag])}</p>{''.join(operations)}</section>"
        for tag, operations in sections.items()
    )
    nav = "".join(
        f'<h3><a href="#{_id(tag)}">{escape(_title(tag))}</a></h3><ul>{"".join(links)}</ul>'
        for tag, links in names.items()
    )
    info = document["info"]
    return _PAGE.format(
        version=escape(info["version"]),
        intro=_text(info["description"]),
        origin=escape(origin),
        nav=nav,
        main=main,
        codes=_codes(document),
    )


def make_front_page(release: str, origin: str) -> str:
    """What is at `/`, where there is no page of the user's."""
    return _FRONT.format(release=escape(release), origin=escape(origin))


class _DocumentedOperation:
    """One operation."""

    def __init__(
        self, document: Schema, origin: str, method: str, path: str, operation: Schema
    ) -> None:
        self._document = document
        self._origin = origin
        self._method = method
        self._path = path
        self._operation = operation
        self._id: str = operation["operationId"]

    def link(self) -> str:
        summary = escape(self._operation["summary"])
        return f'<li><a href="#{self._id}">{summary}</a></li>'

    def html(self) -> str:
        operation = self._operation
        parts = [
            f'<article id="{self._id}" data-search="{escape(self._search())}">',
            f'<h3><a href="#{self._id}">{escape(operation["summary"])}</a></h3>',
            f'<p class="path"><span class="method {self._method.lower()}">{self._method}</span>',
            f" <code>{_path(self._path)}</code></p>",
        ]
        if "description" in operation:
            parts.append(f"<p>{_text(operation['description'])}</p>")
        parts.append(f'<div class="curl"><pre><code>{escape(self._curl())}</code></pre></div>')
        parts += [self._parameters(), self._body(), self._answer(), self._errors(), "</article>"]
        return "".join(parts)

    def _search(self) -> str:
        return f"{self._method} {self._path} {self._operation['summary']}".lower()

    # An example

    def _curl(self) -> str:
        url = self._url()
        responses = self._operation["responses"]
        if "200" not in responses and "101" in responses:
            return f"new WebSocket({json.dumps(url.replace('http', 'ws', 1))})"
        words = ["curl"]
        if "text/event-stream" in responses.get("200", {}).get("content", {}):
            words.append("-N")
        if self._method not in ("GET", "POST"):
            words += ["-X", self._method]
        content = self._operation.get("requestBody", {}).get("content", {})
        if content:
            words += ["-d", json.dumps(content.get(_JSON, {}).get("example", {}))]
        elif self._method == "POST":
            words += ["-X", "POST"]
        return f"{shlex.join(words)} {shlex.quote(url)}"

    def _url(self) -> str:
        """The address, with an example of each part and parameter that has one."""
        path, query = self._path, dict[str, Any]()
        for parameter in self._operation.get("parameters", ()):
            name = parameter["name"]
            if parameter["in"] == "path":
                path = path.replace(f"{{{name}}}", _PARTS.get(name, f"my-{name}"))
            elif parameter["in"] == "query" and "example" in parameter:
                query[name] = parameter["example"]
        return self._origin + path + (f"?{urlencode(query)}" if query else "")

    # What comes

    def _parameters(self) -> str:
        parameters = [p for p in self._operation.get("parameters", ()) if p["in"] != "path"]
        if not parameters:
            return ""
        rows = "".join(
            _row(
                parameter["name"],
                parameter["schema"],
                parameter.get("description", ""),
                required=parameter["required"],
                note="header" if parameter["in"] == "header" else "",
            )
            for parameter in parameters
        )
        return f"<h4>Parameters</h4><table>{rows}</table>"

    def _body(self) -> str:
        content = self._operation.get("requestBody", {}).get("content", {})
        schema = content.get(_JSON, {}).get("schema", {})
        others = [media for media in content if media != _JSON]
        said = f"<p>Also {_listed(others)}.</p>" if others and schema else ""
        return self._fields("Body", schema) + said if schema else said

    def _answer(self) -> str:
        for status, response in self._operation["responses"].items():
            if status.startswith("2"):
                content: Schema = response.get("content", {})
                media: Schema = next(iter(content.values()), _NOTHING)
                return self._answered(status, media)
        return ""

    def _answered(self, status: str, media: Schema) -> str:
        """The example is what most people want to see; the fields are there for the others."""
        if not media:
            return f"<h4>Answer {status}</h4><p>No body.</p>"
        fields = self._fields("", media.get("schema", {}))
        opened = "" if "example" in media else " open" if fields.count("<tr>") < 8 else ""
        return (
            f"<h4>Answer {status}</h4>{_example(media)}"
            f"<details{opened}><summary>Fields</summary>{fields}</details>"
        )

    def _errors(self) -> str:
        shown: list[str] = []
        for status, response in self._operation["responses"].items():
            if status.startswith("4"):
                name = response.get("$ref", "").rsplit("/", 1)[-1]
                shown.append(f'<a href="#error-{name}">{status}</a>' if name else status)
        return f"<p class=errors>Errors: {', '.join(shown)}</p>" if shown else ""

    def _fields(self, title: str, schema: Schema) -> str:
        """The fields of an object, and those of the objects in it."""
        parts = [f"<h4>{title}</h4>" if title else ""]
        for option in schema.get("anyOf", (schema,)):
            found = self._resolved(option)
            rows: list[str] = []
            self._add_rows(rows, found, "", 0)
            if len(parts) > 1:
                parts.append("<h4>Or</h4>")
            doc = _text(found.get("description", ""))
            parts.append(f"<p>{doc}</p><table>{''.join(rows)}</table>")
        return "".join(parts)

    def _add_rows(self, rows: list[str], schema: Schema, prefix: str, depth: int) -> None:
        required = schema.get("required", ())
        for name, field in schema.get("properties", {}).items():
            inner, suffix = self._inner(field)
            is_object = bool(inner.get("properties"))
            description = field.get("description") or inner.get("description", "")
            shown = f"{prefix}{name}"
            rows.append(_row(shown, field, description, required=name in required))
            if is_object and depth < 1:
                self._add_rows(rows, inner, f"{shown}{suffix}.", depth + 1)

    def _inner(self, field: Schema) -> tuple[Schema, str]:
        """The object that a field is, or that it lists."""
        options = [o for o in field.get("anyOf", ()) if o != {"type": "null"}] or [field]
        field = options[0]
        if field.get("type") == "array":
            return self._resolved(field.get("items", {})), "[]"
        return self._resolved(field), ""

    def _resolved(self, schema: Schema) -> Schema:
        name = schema.get("$ref", "").rsplit("/", 1)[-1]
        return self._document["components"]["schemas"][name] if name else schema


def _row(name: str, schema: Schema, description: str, *, required: bool, note: str = "") -> str:
    kind = _kind(schema)
    limits = _limits(schema)
    marks = [note, "required" if required else "", limits]
    more = "".join(f" <small>{escape(mark)}</small>" for mark in marks if mark)
    return (
        f"<tr><th><code>{escape(name)}</code></th><td><i>{escape(kind)}</i>{more}"
        f"<p>{_text(description)}</p></td></tr>"
    )


def _kind(schema: Schema) -> str:
    options = [o for o in schema.get("anyOf", ()) if o != {"type": "null"}]
    if options and not isinstance(schema.get("type"), str):
        return " or ".join(dict.fromkeys(map(_kind, options)))
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[-1]
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if schema.get("type") == "object" and "additionalProperties" in schema:
        values: Any = schema["additionalProperties"]
        return "object" if isinstance(values, bool) else f"object of {_kind(values)}"
    if schema.get("contentEncoding") == "base64":
        return "base64"
    return str(schema.get("type", "any"))


def _limits(schema: Schema) -> str:
    for option in schema.get("anyOf", ()):
        schema = option | schema if option != {"type": "null"} else schema
    low, high = schema.get("minimum"), schema.get("maximum")
    if high == _INT64_MAX:
        high = None
    parts: list[str] = []
    if low is not None and high is not None:
        parts.append(f"{low} to {high}")
    elif low is not None:
        parts.append(f"at least {low}")
    elif high is not None:
        parts.append(f"at most {high}")
    if "maxLength" in schema:
        parts.append(f"up to {schema['maxLength']} characters")
    default = schema.get("default")
    if default not in (None, "", [], {}):
        parts.append(f"default {json.dumps(default)}")
    return ", ".join(parts)


def _example(media: Schema) -> str:
    if "example" not in media:
        return ""
    shown = json.dumps(media["example"], indent=2, ensure_ascii=False)
    return f"<pre><code>{escape(shown)}</code></pre>"


def _codes(document: Schema) -> str:
    rows: list[str] = []
    for status, response in document["components"]["responses"].items():
        media = next(iter(response["content"].values()))
        for code, example in media["examples"].items():
            mark = f' id="error-{status}"' if f'id="error-{status}"' not in "".join(rows) else ""
            rows.append(
                f"<tr{mark}><th><code>{escape(code)}</code></th><td>{status} "
                f"{escape(response['description'])}<p>{_text(example['value']['detail'])}</p>"
                "</td></tr>"
            )
    return "".join(rows)


def _text(text: str) -> str:
    """A sentence, with `code` in it."""
    pieces = escape(text).split("`")
    return "".join(
        f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces)
    )


def _path(path: str) -> str:
    return escape(path).replace("{", "<var>").replace("}", "</var>")


def _listed(words: list[str]) -> str:
    return ", ".join(f"<code>{escape(word)}</code>" for word in words)


def _title(tag: str) -> str:
    return tag[:1].upper() + tag[1:]


def _id(tag: str) -> str:
    return escape(tag.replace(" ", "-"))


_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/v1/reference.css">
"""

_PAGE = (
    _HEAD
    + """<title>Fanlog HTTP reference</title>
<script src="/v1/reference.js" defer></script>
</head>
<body class="reference">
<nav>
<p class="name"><a href="/">Fanlog</a> <small>{version}</small></p>
<input id="search" type="search" placeholder="Search" aria-label="Search operations" hidden>
{nav}
<h3><a href="#errors">Errors</a></h3>
</nav>
<main>
<header>
<h1>HTTP reference</h1>
<p>{intro} The same as <a href="/v1/openapi.json">OpenAPI 3.1</a>, for tools.</p>
<div class="curl"><pre><code>curl {origin}/v1/status</code></pre></div>
</header>
{main}
<section id="errors"><h2>Errors</h2><p>The codes of all errors, by status.</p>
<table>{codes}</table></section>
</main>
</body>
</html>
"""
)

_FRONT = (
    _HEAD
    + """<title>Fanlog</title>
</head>
<body class="front">
<main>
<h1>Fanlog</h1>
<p>A broker is running here, release {release}. Browsers and plain HTTP clients read and write its
topics.</p>
<pre><code>curl -d hello {origin}/v1/topics/greetings/messages
curl {origin}/v1/topics/greetings/messages</code></pre>
<ul>
<li><a href="/v1/reference">HTTP reference</a>: all requests, with examples</li>
<li><a href="/v1/openapi.json">OpenAPI 3.1</a>: the same for tools</li>
<li><a href="/v1/topics">Topics</a> and <a href="/v1/status">status</a> of this broker</li>
</ul>
</main>
</body>
</html>
"""
)
