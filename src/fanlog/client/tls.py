"""TLS of a client: which authorities it trusts, its own certificate, and its errors."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fanlog.config import ClientOptions
from fanlog.errors import ConnectError, InvalidArgumentError

if TYPE_CHECKING:
    from fanlog.client.address import Address

_UNKNOWN_CA = (18, 19, 20, 21)  # X509_V_ERR_*: self-signed, or from somebody unknown
_EXPIRED = 10
_NOT_YET = 9
_WRONG_NAMES = (62, 64)


# Variables of commands and of Spark's processes, and the client's options that they are. Those of a
# broker are FANLOG_TLS_CERTIFICATE_FILE and its like, so a client's certificate has another name.
TLS_VARIABLES = {
    "FANLOG_TLS_CA_FILE": "tls_ca_file",
    "FANLOG_TLS_SERVER_NAME": "tls_server_name",
    "FANLOG_CLIENT_CERTIFICATE_FILE": "tls_certificate_file",
    "FANLOG_CLIENT_KEY_FILE": "tls_key_file",
}
_contexts: dict[tuple[Any, ...], ssl.SSLContext] = {}
_CONTEXTS_MAX = 16


def tls_from(environment: Mapping[str, str]) -> dict[str, str]:
    """The TLS settings of an environment, as options of a client."""
    return {
        option: value for name, option in TLS_VARIABLES.items() if (value := environment.get(name))
    }


def shared_context(options: ClientOptions) -> ssl.SSLContext:
    """One context for all connections with these options, until one of the files changes: reading a
    machine's trusted authorities is slow."""
    files = (options.tls_ca_file, options.tls_certificate_file, options.tls_key_file)
    key = tuple((path, _changed_at(path)) for path in files)
    context = _contexts.get(key)
    if context is None:
        if len(_contexts) >= _CONTEXTS_MAX:
            _contexts.clear()
        context = _contexts[key] = client_context(options)
    return context


def _changed_at(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_ino)


def client_context(options: ClientOptions) -> ssl.SSLContext:
    """Checks the broker's certificate and its name. TLS 1.3 is the minimum."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if options.tls_ca_file:
        _load("tls_ca_file", options.tls_ca_file, context.load_verify_locations)
    else:
        context.load_default_certs()
    if options.tls_certificate_file:
        key = options.tls_key_file or options.tls_certificate_file
        _load(
            "tls_certificate_file",
            options.tls_certificate_file,
            lambda path: context.load_cert_chain(path, key, password=_no_password),
        )
    elif options.tls_key_file:
        raise InvalidArgumentError(
            "tls_key_file is given without tls_certificate_file: give both, or neither."
        )
    return context


def _load(option: str, path: str, load: Callable[[str], object]) -> None:
    try:
        load(path)
    except ssl.SSLError as fault:
        raise InvalidArgumentError(
            f"{option}: {path} is not usable ({fault.reason or fault}). It must be a PEM file"
            + ("." if option == "tls_ca_file" else ", and tls_key_file its private key.")
        ) from fault
    except OSError as fault:
        key = "" if option == "tls_ca_file" else ", or the file of its key can't"
        raise InvalidArgumentError(
            f"{option}: {path} can't be read{key} ({fault.strerror}). Check the path."
        ) from fault


def _no_password() -> str:
    raise InvalidArgumentError(
        "tls_key_file: the private key has a password. Take it off with: openssl pkey -in KEY "
        "-out NEW, and keep the file for yourself only."
    )


def server_name(address: Address, options: ClientOptions) -> str:
    """The name that the broker's certificate must have."""
    return options.tls_server_name or address.host


def wrap(opened: socket.socket, context: ssl.SSLContext, name: str) -> ssl.SSLSocket:
    """A connected socket with TLS on it; it is closed if that fails."""
    try:
        return context.wrap_socket(opened, server_hostname=name)
    except BaseException:
        opened.close()
        raise


def no_tls(peer: Address | str, fault: ssl.SSLError) -> ConnectError:
    """Why there is no TLS connection, and how to fix it."""
    return ConnectError(f"There is no TLS connection to {peer}: {explain(fault)}")


def explain(fault: ssl.SSLError) -> str:
    """The cause and its fix, as the end of a sentence."""
    if isinstance(fault, ssl.SSLCertVerificationError):
        return _refused(fault)
    if isinstance(fault, ssl.SSLEOFError):
        return (
            "the connection was closed before the greeting. The broker's log says why; it may want "
            "a certificate of this client (tls_certificate_file)."
        )
    reason = fault.reason or ""
    if reason == "WRONG_VERSION_NUMBER":
        return (
            "that port does not use TLS. Use fanlog:// instead of fanlogs://, or turn TLS on "
            "in the broker (tls.certificate_file)."
        )
    if "PROTOCOL_VERSION" in reason or reason == "UNSUPPORTED_PROTOCOL":
        return "that port does not support TLS 1.3, and older versions are not safe enough."
    if "CERTIFICATE_REQUIRED" in reason:
        return (
            "the broker wants a certificate of this client. Give tls_certificate_file and "
            "tls_key_file."
        )
    if "UNKNOWN_CA" in reason or "BAD_CERTIFICATE" in reason or "CERTIFICATE" in reason:
        return (
            "the broker refused this client's certificate. Give one from an authority in its "
            "tls.client_ca_file, that has not expired."
        )
    return f"{reason or fault}."


def _refused(fault: ssl.SSLCertVerificationError) -> str:
    said = fault.verify_message
    if fault.verify_code in _UNKNOWN_CA:
        return (
            "the broker's certificate is not from an authority that this client trusts "
            f"({said}). Give tls_ca_file, the PEM file of its authority (FANLOG_TLS_CA_FILE for "
            "commands)."
        )
    if fault.verify_code == _EXPIRED:
        return "the broker's certificate has expired. The broker's operator must renew it."
    if fault.verify_code == _NOT_YET:
        return "the broker's certificate is not valid yet. Compare the clocks of both machines."
    if fault.verify_code in _WRONG_NAMES:
        return (
            f"the broker's certificate is for another host ({said}) Connect with a host name of "
            "the certificate, or give that name as tls_server_name."
        )
    return f"the broker's certificate is refused: {said}."
