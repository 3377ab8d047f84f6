"""The settings for security and observability: TLS, logins, the audit log, metrics and traces. They
never contain a secret, only the names of files with secrets. It is long because each setting is
written out with its range and its reason."""

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
            description="PEM file with the certificate and its chain. It turns TLS on, for every "
            "listener.",
        ),
    ] = ""
    private_key_file: Annotated[
        str, Meta(extra=LIVE, description="PEM file with the private key of the certificate.")
    ] = ""
    client_ca_file: Annotated[
        str,
        Meta(
            extra=LIVE,
            description="PEM file with the authorities of client certificates. Empty: the broker "
            "does not ask for client certificates.",
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
            description="TLS handshakes of one listener at a time. One more closes the oldest, so "
            "that peers that never finish do not block others.",
        ),
    ] = 1000
    reload_check_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="How often the broker checks the files for changes. SIGHUP makes it read "
            "them at once.",
        ),
    ] = 5.0
    expiry_warning_days: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=0,
            description="How many days before a certificate expires the broker begins to warn, in "
            "the log and in health.",
        ),
    ] = 14


class SecurityOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Logins, tokens and sessions."""

    auth: Annotated[
        bool,
        Meta(
            description="Whether clients must log in. Without it everybody who can reach a port "
            "may do everything, so the broker then listens on this machine only."
        ),
    ] = False
    admin_key_file: Annotated[
        str,
        Meta(
            description="File with the key of the admin `admin`. Create one with: fanlog key "
            "generate."
        ),
    ] = ""
    accounts_max: Annotated[
        int, Meta(ge=1, description="Keys and users that the broker keeps, together.")
    ] = 100_000
    allow_open: Annotated[
        bool,
        Meta(
            description="Allow listening on other addresses than those of this machine without "
            "logins. The broker warns at every start."
        ),
    ] = False
    token_key_file: Annotated[
        str,
        Meta(
            description="File with the public keys for tokens (JWT): PEM, a JWK, or a JWK set. "
            "The broker reads it again when it changes."
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
            description="Roles for the values of that claim, such as `ops=admin staff=viewer`. "
            "The first match wins. Empty: the claim is the role."
        ),
    ] = ""
    token_role: Annotated[
        Literal["", "admin", "producer", "consumer", "viewer", "observer"],
        Meta(description="The role of tokens and OpenID users without a role. Empty: none."),
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
            description="Shortest time between two requests for a JWK set, even if tokens name "
            "unknown keys.",
        ),
    ] = 10.0
    jwks_lifetime_seconds: Annotated[
        float,
        Meta(gt=0, description="Age at which the broker fetches a JWK set again."),
    ] = 3600.0
    login_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0, description="Time that a WebSocket has to log in, if it opened without a login."
        ),
    ] = 10.0
    expiry_warning_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="How long before a token expires the broker notifies the connection, so "
            "that the client can send a new one.",
        ),
    ] = 30.0
    session_idle_seconds: Annotated[
        float, Meta(gt=0, description="A browser session ends when it was not used for this long.")
    ] = 3600.0
    session_lifetime_seconds: Annotated[
        float, Meta(gt=0, description="A browser session ends after this time in any case.")
    ] = 43_200.0
    sessions_max: Annotated[int, Meta(ge=1, description="Browser sessions at a time.")] = 10_000
    ticket_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="How long a ticket for server-sent events or a WebSocket is valid.",
        ),
    ] = 30.0
    oidc_issuer: Annotated[
        str,
        Meta(
            description="Address of an OpenID provider for logins. The broker reads the claims of "
            "its users like those of tokens."
        ),
    ] = ""
    oidc_client_id: Annotated[
        str, Meta(description="The client id of this broker at the OpenID provider.")
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
        str, Meta(description="The scopes to request from the provider, separated by spaces.")
    ] = "openid profile email"


class AccountTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The common fields of a key and a user in the config file."""

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
            description="What the audit log records: changes; also refusals; or also every login, "
            "subscription and read.",
        ),
    ] = "denials"
    retention_seconds: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=0,
            description="How long the broker keeps audit records. The default is a year. 0: for "
            "ever.",
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
            description="Records of changes that wait in memory while the disk is full. The "
            "broker only counts further ones, and writes their number in one record.",
        ),
    ] = 10_000
    merged_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="Refusals per second with their own record. Further ones share records, "
            "so that a flood does not fill the disk.",
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
            description="Topics, groups and queues that metrics name: those with the highest "
            "rate, and those that are furthest behind. All others share one line.",
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
            description="The broker logs a turn that takes longer. 0: off.",
        ),
    ] = 100
    slow_sync_ms: Annotated[
        int,
        Meta(ge=0, description="The broker logs a sync of the disk that takes longer. 0: off."),
    ] = 500
    slow_request_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="The broker logs a request that takes longer, with its client. Requests "
            "that wait for messages do not count. 0: off.",
        ),
    ] = 1000
    slow_loop_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="If the event loop is blocked for longer, the broker logs the function. "
            "0: off.",
        ),
    ] = 500
    trace_ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of the batches without a trace for which the broker starts one: "
            "0.01 is one of a hundred. The broker always follows traces of clients.",
        ),
    ] = 0.0
    traced_per_second_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Sampled messages per second that the broker follows. Clients choose the "
            "samples; above this the broker makes no spans. 0: it follows none.",
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
        float, Meta(gt=0, description="Time between two exports of spans and metrics.")
    ] = 5.0
    service_name: Annotated[
        str, Meta(min_length=1, description="Name of this broker at the collector.")
    ] = "fanlog"
