"""The settings that keep a broker safe and let its operator see: TLS, logins, the audit log,
metrics and traces. Secrets themselves are never here, only the files that they are in."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """TLS 1.3 on every listener."""

    certificate_file: Annotated[
        str,
        Meta(
            description="PEM file with the certificate, and those that vouch for it. It turns TLS "
            "on, for every listener."
        ),
    ] = ""
    private_key_file: Annotated[
        str, Meta(description="PEM file with the private key of the certificate.")
    ] = ""
    client_ca_file: Annotated[
        str,
        Meta(
            description="PEM file with the authorities whose client certificates are believed. "
            "Empty: clients are not asked for one."
        ),
    ] = ""
    client_certificates: Annotated[
        Literal["optional", "required"],
        Meta(description="Whether every client must have a certificate."),
    ] = "optional"


class SecurityOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Who is let in."""

    auth: Annotated[
        bool,
        Meta(
            description="Whether clients must log in. Without it everybody who reaches a port may "
            "do everything, so the broker then listens on this machine only."
        ),
    ] = False
    allow_open: Annotated[
        bool,
        Meta(
            description="Listen on other addresses than this machine's own although clients need "
            "not log in. The broker warns of it at every start."
        ),
    ] = False


class AuditOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The audit log."""

    level: Annotated[
        Literal["off", "changes", "denials", "all"],
        Meta(
            description="What is written down: changes; also what was refused; or also every "
            "login, subscription and read."
        ),
    ] = "denials"


class TelemetryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics and traces."""

    topics_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Topics, groups and queues that metrics name. The rest are one line "
            "together.",
        ),
    ] = 50
