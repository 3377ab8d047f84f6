"""The settings that keep a broker safe and let its operator see: TLS, logins, the audit log,
metrics and traces. Secrets themselves are never here, only the files that they are in."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fanlog.config_live import LIVE
from fanlog.identity import Role
from fanlog.model import MIB


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """TLS 1.3 on every listener."""

    certificate_file: Annotated[
        str,
        Meta(
            extra=LIVE,
            description="PEM file with the certificate, and those that vouch for it. It turns TLS "
            "on, for every listener.",
        ),
    ] = ""
    private_key_file: Annotated[
        str, Meta(extra=LIVE, description="PEM file with the private key of the certificate.")
    ] = ""
    client_ca_file: Annotated[
        str,
        Meta(
            extra=LIVE,
            description="PEM file with the authorities whose client certificates are believed. "
            "Empty: clients are not asked for one.",
        ),
    ] = ""
    client_certificates: Annotated[
        Literal["optional", "required"],
        Meta(extra=LIVE, description="Whether every client must have a certificate."),
    ] = "optional"
    handshake_timeout_seconds: Annotated[
        float,
        Meta(
            extra=LIVE,
            gt=0,
            description="The broker closes a connection whose TLS handshake takes longer than "
            "this.",
        ),
    ] = 10.0
    handshakes_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="TLS handshakes at a time, of one listener. One more ends the oldest, so "
            "that those who never finish keep nobody out.",
        ),
    ] = 1000
    reload_check_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="How often the broker looks whether the files have changed. SIGHUP makes "
            "it read them at once.",
        ),
    ] = 5.0
    expiry_warning_days: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=0,
            description="Days before its end from which the broker warns of a certificate, in the "
            "log and in health.",
        ),
    ] = 14


class SecurityOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Who is let in."""

    auth: Annotated[
        bool,
        Meta(
            description="Whether clients must log in. Without it everybody who reaches a port may "
            "do everything, so the broker then listens on this machine only."
        ),
    ] = False
    admin_key_file: Annotated[
        str,
        Meta(
            description="File with the key of the admin `admin`. Make one with: fanlog key "
            "generate."
        ),
    ] = ""
    accounts_max: Annotated[
        int, Meta(ge=1, description="Keys and users that the broker keeps, together.")
    ] = 100_000
    allow_open: Annotated[
        bool,
        Meta(
            description="Listen on other addresses than this machine's own although clients need "
            "not log in. The broker warns of it at every start."
        ),
    ] = False
    token_key_file: Annotated[
        str,
        Meta(
            description="File with the public keys that tokens (JWT) are checked with: PEM, a JWK, "
            "or a JWK set. The broker reads it again when it changes."
        ),
    ] = ""
    token_jwks_url: Annotated[
        str,
        Meta(description="Address of a JWK set with such keys. https, or http on this machine."),
    ] = ""
    token_issuer: Annotated[
        str, Meta(description="The issuer (`iss`) that tokens must have. Tokens need it.")
    ] = ""
    token_audience: Annotated[
        str, Meta(description="The audience (`aud`) that tokens must have. Tokens need it.")
    ] = ""
    token_algorithms: Annotated[
        str,
        Meta(description="Algorithms of tokens, with spaces between them. Only asymmetric ones."),
    ] = "RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA"
    token_leeway_seconds: Annotated[
        float,
        Meta(ge=0, le=300, description="How far the clocks of issuer and broker may be apart."),
    ] = 10.0
    token_user_claim: Annotated[
        str, Meta(min_length=1, description="The claim of a token that is the user's name.")
    ] = "sub"
    token_role_claim: Annotated[
        str,
        Meta(
            description="The claim that names the role, or the groups that `token_roles` maps to "
            "one. It may be a path, such as realm_access.roles."
        ),
    ] = "fanlog_role"
    token_roles: Annotated[
        str,
        Meta(
            description="Roles for the values of that claim, such as `ops=admin staff=viewer`. The "
            "first that fits wins. Empty: the claim is the role."
        ),
    ] = ""
    token_role: Annotated[
        Literal["", "admin", "producer", "consumer", "viewer", "observer"],
        Meta(description="The role of tokens and OpenID users that name none. Empty: no role."),
    ] = ""
    token_publish_claim: Annotated[
        str, Meta(description="The claim with the topics that a token may publish to.")
    ] = "fanlog_publish"
    token_subscribe_claim: Annotated[
        str, Meta(description="The claim with the topics that a token may read.")
    ] = "fanlog_subscribe"
    jwks_floor_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="Time between two requests for a JWK set, however many tokens name keys "
            "that are not known.",
        ),
    ] = 10.0
    jwks_lifetime_seconds: Annotated[
        float,
        Meta(gt=0, description="Age at which a JWK set is asked for again."),
    ] = 3600.0
    login_timeout_seconds: Annotated[
        float,
        Meta(gt=0, description="Time that a WebSocket has to log in, if it opened without one."),
    ] = 10.0
    expiry_warning_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="How long before its token expires a connection is told, so that the "
            "client can show a new one.",
        ),
    ] = 30.0
    session_idle_seconds: Annotated[
        float, Meta(gt=0, description="A browser's session ends when it was not used for so long.")
    ] = 3600.0
    session_lifetime_seconds: Annotated[
        float, Meta(gt=0, description="A browser's session ends after so long in any case.")
    ] = 43_200.0
    sessions_max: Annotated[int, Meta(ge=1, description="Browser sessions at a time.")] = 10_000
    ticket_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="How long a ticket for server-sent events or a WebSocket is good.",
        ),
    ] = 30.0
    oidc_issuer: Annotated[
        str,
        Meta(
            description="Address of an OpenID provider that people log in with. The claims of its "
            "users are read as those of tokens are."
        ),
    ] = ""
    oidc_client_id: Annotated[
        str, Meta(description="The name that the OpenID provider knows this broker by.")
    ] = ""
    oidc_client_secret_file: Annotated[
        str,
        Meta(description="File with the secret for the provider. Empty: PKCE alone is enough."),
    ] = ""
    oidc_redirect_url: Annotated[
        str,
        Meta(
            description="Where the provider sends browsers back to: .../v1/oidc/callback. Empty: "
            "the address that the browser has used."
        ),
    ] = ""
    oidc_scopes: Annotated[
        str, Meta(description="What the provider is asked for, with spaces between.")
    ] = "openid profile email"


class AccountTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a key and a user of the config file have in common."""

    role: Role | None = None
    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    manage: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    describe: tuple[str, ...] | None = None
    comment: str = ""
    messages_per_second: float = 0.0
    bytes_per_second: float = 0.0
    connections: int = 0
    topics: int = 0
    stored_bytes: int = 0


class KeyTable(AccountTable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[keys.NAME]` in the config file: a key, by its hash or by a file that has it."""

    hash: str = ""
    key_file: str = ""


class UserTable(AccountTable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[users.NAME]` in the config file: a user, with the hash of a password, a file that has it,
    or names in client certificates."""

    password_hash: str = ""
    password_file: str = ""
    certificates: tuple[str, ...] = ()


class AuditOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The audit log."""

    level: Annotated[
        Literal["off", "changes", "denials", "all"],
        Meta(
            extra=LIVE,
            description="What is written down: changes; also what was refused; or also every "
            "login, subscription and read.",
        ),
    ] = "denials"
    retention_seconds: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=0,
            description="How long audit records are kept. The default is a year. 0: for ever.",
        ),
    ] = 365 * 24 * 3600
    retention_bytes: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=0,
            description="Size limit of the audit log. The oldest records go first. The default "
            "holds some millions. 0: no limit.",
        ),
    ] = 1024 * MIB
    pending_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="Records of changes that wait in memory while the disk is full. Further "
            "ones are counted, and one record says how many.",
        ),
    ] = 10_000
    merged_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="Refusals in one second with a record each. Further ones share records, so "
            "that a flood of them does not fill the disk.",
        ),
    ] = 200
    head_file: Annotated[
        str,
        Meta(
            description="File with the number and hash of the newest record. On another disk it "
            "shows whether the end of the audit log was cut off. Empty: audit.json in the data "
            "folder."
        ),
    ] = ""


class TelemetryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Logs, metrics and traces."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(extra=LIVE, description="Lowest level that the broker logs, on stderr."),
    ] = "info"
    topics_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Topics, groups and queues that metrics name: those with the highest rate, "
            "and those that are furthest behind. The others are one line together.",
        ),
    ] = 50
    history: Annotated[
        bool,
        Meta(
            description="Whether a broker with a web listener keeps metrics over time: an hour at "
            "5 s, a day at 1 min and two weeks at 10 min, in memory and in the data folder.",
        ),
    ] = True
    history_series_max: Annotated[
        int,
        Meta(
            ge=50,
            le=2000,
            description="Series that the history of metrics keeps. A series takes 17 KB of memory "
            "and up to 33 KB on disk. For a new one beyond this, the broker drops the one without "
            "values for longest.",
        ),
    ] = 800
    slow_turn_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="A turn of the broker that takes longer is logged. 0: none is.",
        ),
    ] = 100
    slow_sync_ms: Annotated[
        int,
        Meta(ge=0, description="A sync of the disk that takes longer is logged. 0: none is."),
    ] = 500
    slow_request_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="A request that takes longer is logged, with who asked. What waits for "
            "messages does not count. 0: none is.",
        ),
    ] = 1000
    slow_loop_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="If the event loop stands still for longer, the broker logs in which "
            "function. 0: it does not look.",
        ),
    ] = 500
    trace_ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of the batches without a trace in which the broker begins one: 0.01 "
            "is one of a hundred. What clients sample is always followed.",
        ),
    ] = 0.0
    traced_per_second_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Sampled messages that the broker follows in a second. Clients choose what "
            "is sampled; past this the broker has no spans of it. 0: it follows none.",
        ),
    ] = 100
    otlp_endpoint: Annotated[
        str,
        Meta(
            pattern="^(https?://.+)?$",
            description="Collector for spans and metrics over OTLP/HTTP, such as "
            "http://127.0.0.1:4318. It needs the extra `otel`. Empty: nothing is exported.",
        ),
    ] = ""
    otlp_headers_file: Annotated[
        str,
        Meta(
            description="File with headers for the collector, one `name: value` a line, such as "
            "its key."
        ),
    ] = ""
    otlp_interval_seconds: Annotated[
        float, Meta(gt=0, description="How often spans and metrics are exported.")
    ] = 5.0
    service_name: Annotated[
        str, Meta(min_length=1, description="Name of this broker at the collector.")
    ] = "fanlog"
