"""Pages of settings, environment variables and limits, made from `fanlog.config` and
`fanlog.model`. Law: names, types, defaults, ranges and reasons come from the types themselves."""

from __future__ import annotations

import msgspec

from fanlog import config, config_cluster, config_limits, config_security, config_web, model
from fanlog.cli.options import Option, options_of
from scripts.docs.commands_page import parameters_with_variables
from scripts.docs.tables import code, page, table

_NUMBERS = {"whole": "a whole number"}

_SETTINGS_HEAD = """\
Every setting of Fanlog, made from the source.

A broker reads its settings from four sources. A later one wins:

1. the defaults on this page
2. the file `fanlog.toml`, or the file that `--config` names
3. environment variables: `FANLOG_LISTENER_PORT` sets `listener.port`
   ([all variables](environment.md))
4. flags of `fanlog serve`, such as `--port`

`fanlog config init` writes a file with every setting. `fanlog config show` prints the values in
effect and where each one comes from. `fanlog config check` finds mistakes in a file. Settings that
are marked *Live* can be changed while the broker runs
([how](../service.md#change-settings-while-it-runs)); the others need a restart.

Sizes are numbers of bytes, or texts such as `"64KiB"` and `"128MB"`. Durations are numbers of
seconds, or texts such as `"500ms"` and `"7d"`.

```toml title="fanlog.toml"
data = "/var/lib/fanlog"

[listener]
host = "127.0.0.1"
port = 7420

[topic]
durability = "fsync"
retention_seconds = "30d"
```"""

_SECTIONS: tuple[tuple[str, str, str, type[msgspec.Struct]], ...] = (
    ("Broker", "broker", "What the broker allows.", config.BrokerOptions),
    ("Native listener", "listener", "The native port.", config.ListenerOptions),
    ("Redis listener", "redis", "The port for Redis clients.", config.RedisOptions),
    ("Web listener", "web", "The port for browsers and HTTP clients.", config_web.WebOptions),
    (
        "Limits",
        "limits",
        "What each user and each address may use.",
        config_limits.LimitOptions,
    ),
    ("TLS", "tls", "Certificates of all ports.", config_security.TlsOptions),
    ("Security", "security", "Who is let in.", config_security.SecurityOptions),
    ("Audit", "audit", "The audit log.", config_security.AuditOptions),
    ("Telemetry", "telemetry", "Logs, metrics and traces.", config_security.TelemetryOptions),
    ("Edge", "edge", "What `fanlog edge` stands in front of.", config.EdgeOptions),
    ("Cluster", "cluster", "A node of a cluster.", config_cluster.ClusterOptions),
    ("Log", "log", "Files, memory and retention.", config.LogOptions),
    (
        "Topics",
        "topic",
        (
            "In the file: the defaults of new topics. A topic may have its own values: "
            "`fanlog topic create --help`, `client.create_topic(...)`."
        ),
        model.TopicSettings,
    ),
)
_OTHERS: tuple[tuple[str, str, str, type[msgspec.Struct]], ...] = (
    (
        "Client",
        "client",
        (
            "Options of `fanlog.connect(url, ...)` and `fanlog.sync.connect(url, ...)`, given by "
            "name: `fanlog.connect(url, linger_ms=5)`. No file or variable sets them."
        ),
        config.ClientOptions,
    ),
    (
        "Queues",
        "queue",
        (
            "Options of `client.work(...)`. The broker keeps them with the queue, see "
            "[Run jobs in a queue](../queues.md#settings)."
        ),
        model.QueueSettings,
    ),
    (
        "Spark",
        "spark",
        (
            "Internal sizes of the Spark source and sink. Some have an option of their own, see "
            "[Use Fanlog in Spark](../spark.md#options-of-the-source)."
        ),
        config.SparkOptions,
    ),
)


def settings_page() -> str:
    """Every setting, by section."""
    parts = [_SETTINGS_HEAD, "## Top level", _options_table(_top_level())]
    for title, section, text, struct in _SECTIONS:
        written = f"Section `[{section}]` of the file. {text}"
        parts += [f"## {title}", written, _options_table(options_of(struct, section))]
    for title, section, text, struct in _OTHERS:
        parts += [f"## {title}", text, _options_table(options_of(struct, section), bare=True)]
    return page("Settings", *parts)


def _top_level() -> list[Option]:
    return [option for option in options_of(config.Config, "") if not option.section]


def _options_table(options: list[Option], *, bare: bool = False) -> str:
    """A table of options; `bare` shows names without their section."""
    return table(
        ("setting", "default", "meaning"),
        (
            (
                f'<span id="{anchor(option)}"></span>' + code(option.name if bare else option.path),
                code(option.write(option.default)) or "empty",
                f"{option.reason}<br>*{_allowed(option)}*"
                + ("" if bare or not option.live else " *Live.*"),
            )
            for option in options
        ),
    )


def _allowed(option: Option) -> str:
    """What may be given, as a sentence with the type in it."""
    if option.kind == "choice":
        return f"One of {option.allowed}."
    text = option.allowed.replace("a number", _NUMBERS.get(option.kind, "a number"))
    return f"{text[0].upper()}{text[1:]}."


def anchor(option: Option) -> str:
    """Where a setting is on its page."""
    return option.path.replace(".", "-")


_ENVIRONMENT_HEAD = """\
`fanlog` reads these environment variables. Python programs that use the client read none: they pass
the address to `fanlog.connect`.

A `FANLOG_*` variable that sets nothing is reported at the start, with the name that may have been
meant. Variables that Kubernetes or Docker make for a service called `fanlog` are ignored."""


def environment_page() -> str:
    """Every environment variable."""
    commands = (
        (code(one.variable), code(one.flag), one.help) for one in parameters_with_variables()
    )
    brokers = (
        (code(option.variable), f"[`{option.path}`](settings.md#{anchor(option)})", option.reason)
        for option in options_of(config.Config, "")
    )
    return page(
        "Environment variables",
        _ENVIRONMENT_HEAD,
        "## Of commands",
        table(("variable", "same as", "meaning"), commands),
        "## Of the broker",
        "Each sets one [setting](settings.md) of `fanlog serve`. It wins over the file, and a flag "
        "wins over it.",
        table(("variable", "setting", "meaning"), brokers),
    )


# Limits that no setting changes, because a format depends on them.
FIXED_LIMITS: dict[str, str] = {
    "TOPIC_NAME_BYTES_MAX": "Bytes of a topic's name, in UTF-8.",
    "DURABLE_NAME_BYTES_MAX": "Bytes of a durable name, or of a group's name.",
    "PARTITIONS_MAX": "Partitions of one topic.",
    "PRODUCER_ID_MAX": "Highest id of a client's producer. Higher ids are the broker's own.",
    "PRODUCER_EPOCH_MAX": "Highest epoch of a producer.",
    "PRODUCER_NAME_BYTES_MAX": "Bytes of a producer's name.",
    "TRANSACTION_ID_BYTES_MAX": "Bytes of a transaction's id.",
}


def limits_page() -> str:
    """Every limit: those of formats, and those that a setting changes."""
    fixed = (
        (code(name), f"{getattr(model, name):,}", FIXED_LIMITS.get(name, ""))
        for name in sorted(fixed_limits())
    )
    limits = (
        (
            f"[`{option.path}`](settings.md#{anchor(option)})",
            code(option.write(option.default)),
            option.reason,
        )
        for option in options_of(config.Config, "")
        if option.name.endswith("_max")
    )
    return page(
        "Limits",
        "Every buffer, queue and count has a limit, so that no client can take all memory. A "
        "request that goes over one fails with an error that names the limit "
        "([error codes](errors.md#limits)).",
        "## Limits that you can change",
        table(("setting", "default", "meaning"), limits),
        "## Fixed limits",
        "The formats on disk and on the wire depend on these. They are in `fanlog.model`.",
        table(("name", "value", "meaning"), fixed),
    )


def fixed_limits() -> set[str]:
    """The limits of formats."""
    return {name for name in vars(model) if name.endswith("_MAX") and name.isupper()}
