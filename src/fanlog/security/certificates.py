"""The certificate of the listeners: PEM files, read again when they change.

Law: broken files are never used. A new certificate is tried in its own context, and replaces the
old one only if all of it fits; existing connections keep theirs.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from fanlog.config_security import TlsOptions
from fanlog.errors import ConfigError

logger = logging.getLogger("fanlog.tls")

_DAY_SECONDS = 86_400
# Interval of warnings: an operator may miss one.
_WARN_EVERY_SECONDS = _DAY_SECONDS


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a certificate that users need."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    not_before: float
    not_after: float

    def days_left(self, now: float) -> float:
        return (self.not_after - now) / _DAY_SECONDS


def read_certificate(pem: bytes) -> Certificate:
    """The first certificate in a PEM text. Raises ValueError."""
    # It takes a while to import, and most commands have no use for it.
    from cryptography import x509  # noqa: PLC0415

    return _described(x509.load_pem_x509_certificate(pem))


def read_der_certificate(der: bytes) -> Certificate:
    """The certificate that a peer presented. Raises ValueError."""
    from cryptography import x509  # noqa: PLC0415 - as above

    return _described(x509.load_der_x509_certificate(der))


def _described(certificate: Any) -> Certificate:
    from cryptography import x509  # noqa: PLC0415 - as above

    names: list[str] = []
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = [str(name.value) for name in found.value]
    except x509.ExtensionNotFound:
        pass
    return Certificate(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        names=tuple(names),
        not_before=certificate.not_valid_before_utc.timestamp(),
        not_after=certificate.not_valid_after_utc.timestamp(),
    )


def certified_names(described: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names in a peer's certificate, as `ssl` describes it: what it is the certificate of, then
    its other names, without those that are addresses."""
    if not described:
        return ()
    names: dict[str, None] = {}
    for part in cast("tuple[tuple[tuple[str, str], ...], ...]", described.get("subject", ())):
        for kind, value in part:
            if kind == "commonName":
                names[value] = None
    for kind, value in cast("tuple[tuple[str, str], ...]", described.get("subjectAltName", ())):
        if kind in ("DNS", "email", "URI"):
            names[value] = None
    return tuple(names)


class Certificates:
    """The files of `[tls]`. The next handshake uses `context`. `problem` describes what is wrong
    with them now, for the log and for health; empty if nothing is."""

    def __init__(
        self,
        options: TlsOptions,
        socket_class: type[ssl.SSLSocket] = ssl.SSLSocket,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._socket_class = socket_class
        self._clock = clock
        self._seen = self._stamps()
        self._refused = ""
        self._warned_at = 0.0
        self.reloads = 0
        self.context, self.certificate = self._load(options)
        self._warn_of_readers()
        self.warn_of_expiry()

    @property
    def options(self) -> TlsOptions:
        return self._options

    # Reading

    def _paths(self) -> list[str]:
        options = self._options
        paths = [options.certificate_file, options.private_key_file, options.client_ca_file]
        return [path for path in paths if path]

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        """Identifies a state of the files, also if a link points to other files, as in
        Kubernetes."""
        found: list[tuple[int, int, int]] = []
        for path in self._paths():
            try:
                status = os.stat(path)
                found.append((status.st_mtime_ns, status.st_ino, status.st_size))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)

    def _load(self, options: TlsOptions) -> tuple[ssl.SSLContext, Certificate]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.sslsocket_class = self._socket_class
        # A ticket would let a client come back by a certificate that is not trusted any more.
        context.num_tickets = 0
        key = options.private_key_file or options.certificate_file
        try:
            pem = Path(options.certificate_file).read_bytes()
        except OSError as fault:
            raise _unreadable("tls.certificate_file", options.certificate_file, fault) from fault
        try:
            certificate = read_certificate(pem)
        except ValueError as fault:
            raise ConfigError(
                f"tls.certificate_file: {options.certificate_file} has no certificate in PEM "
                "format (-----BEGIN CERTIFICATE-----). Give such a file."
            ) from fault
        try:
            context.load_cert_chain(options.certificate_file, key, password=_no_password)
        except ssl.SSLError as fault:
            raise _wrong_pair(options, key, fault) from fault
        except OSError as fault:
            raise _unreadable("tls.private_key_file", key, fault) from fault
        _trust_clients(context, options)
        return context, certificate

    # Reading again

    def look(self) -> None:
        """Reads the files again if they have changed. To be called every few seconds."""
        stamps = self._stamps()
        if stamps != self._seen:
            self.reload()
        self.warn_of_expiry()

    def prepare(self, options: TlsOptions) -> Callable[[], None]:
        """Reads the files that these options name. Raises ConfigError if they do not fit; what it
        returns makes them those of the next handshake, once the options are the broker's. Where
        nothing has changed there is nothing to do: other settings must not wait for new files."""
        if options == self._options and self._stamps() == self._seen:
            return lambda: None
        try:
            context, certificate = self._load(options)
        except ConfigError as fault:
            if options == self._options:
                # Health shows it until the files fit, because the log may not be read.
                self._refused = str(fault)
            raise

        def take() -> None:
            self._seen = self._stamps()
            self._take(context, certificate)

        return take

    def reload(self) -> bool:
        """Reads the files again. If they do not fit, the old ones stay in use, and the log has the
        reason."""
        self._seen = self._stamps()
        try:
            context, certificate = self._load(self._options)
        except ConfigError as fault:
            self._refused = str(fault)
            logger.error("The new TLS files are refused, and the old ones stay in use: %s", fault)
            return False
        self._take(context, certificate)
        return True

    def _take(self, context: ssl.SSLContext, certificate: Certificate) -> None:
        self.context, self.certificate = context, certificate
        self._refused = ""
        self._warned_at = 0.0
        self.reloads += 1
        logger.info("New connections get the certificate of %s.", self.describe())
        self._warn_of_readers()
        self.warn_of_expiry()

    def describe(self) -> str:
        """`CN=broker, until 2027-01-31`."""
        until = time.strftime("%Y-%m-%d", time.gmtime(self.certificate.not_after))
        return f"{self.certificate.subject or ', '.join(self.certificate.names)}, until {until}"

    # What people must know

    @property
    def problem(self) -> str:
        if self._refused:
            return f"The new TLS files are refused, and the old ones stay in use: {self._refused}"
        return self._expiry()

    def _expiry(self) -> str:
        days = self.certificate.days_left(self._clock())
        name = self._options.certificate_file
        if days <= 0:
            return f"The certificate {name} has expired: clients refuse it. Renew it."
        if days > self._options.expiry_warning_days:
            return ""
        return f"The certificate {name} expires in {days:.1f} days. Renew it."

    def warn_of_expiry(self) -> None:
        """In the log, once a day."""
        said = self._expiry()
        now = self._clock()
        if said and now - self._warned_at >= _WARN_EVERY_SECONDS:
            self._warned_at = now
            logger.warning("%s The broker reads the files again by itself.", said)

    def _warn_of_readers(self) -> None:
        key = self._options.private_key_file or self._options.certificate_file
        try:
            mode = os.stat(key).st_mode
        except OSError:
            return
        if mode & stat.S_IROTH:
            logger.warning(
                "Other users of this machine can read the private key %s. Run: chmod 600 on it.",
                key,
            )


def _trust_clients(context: ssl.SSLContext, options: TlsOptions) -> None:
    if not options.client_ca_file:
        if options.client_certificates == "required":
            raise ConfigError(
                'tls.client_certificates is "required", but no authority is set. '
                "Set tls.client_ca_file to a PEM file with the authority that issues them."
            )
        return
    required = options.client_certificates == "required"
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    try:
        context.load_verify_locations(options.client_ca_file)
    except ssl.SSLError as fault:
        raise ConfigError(
            f"tls.client_ca_file: {options.client_ca_file} has no certificates in PEM format. "
            "Give a file with the authority that issues the clients' certificates."
        ) from fault
    except OSError as fault:
        raise _unreadable("tls.client_ca_file", options.client_ca_file, fault) from fault


def _no_password() -> str:
    raise ConfigError(
        "tls.private_key_file: the private key has a password, which the broker can't enter. "
        "Remove it with: openssl pkey -in KEY -out NEW, and keep the file for the broker only."
    )


def _unreadable(option: str, path: str, fault: OSError) -> ConfigError:
    return ConfigError(f"{option}: {path} can't be read ({fault.strerror}).")


def _wrong_pair(options: TlsOptions, key: str, fault: ssl.SSLError) -> ConfigError:
    if fault.reason == "KEY_VALUES_MISMATCH":
        return ConfigError(
            f"tls.private_key_file: {key} is not the key of {options.certificate_file}. Give a "
            "certificate and its own key."
        )
    if fault.reason == "EE_KEY_TOO_SMALL":
        return ConfigError(
            f"tls.certificate_file: the key of {options.certificate_file} is too small to be "
            "safe. Issue a certificate with ECDSA P-256, or RSA of 2048 bits or more."
        )
    return ConfigError(
        f"tls.private_key_file: {key} has no private key in PEM format "
        f"(-----BEGIN PRIVATE KEY-----): {fault.reason or fault}."
    )
