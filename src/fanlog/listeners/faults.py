"""What every listener tells a peer when the fault is ours, when it takes nothing, and when the
broker can't listen. Law: what comes back says what to do, and who can do it."""

from __future__ import annotations

import errno
import socket

from fanlog.errors import ConfigError, allow_more

OUR_FAULT = (
    "The broker failed because of a bug. Its log has the details: please report them. The outcome "
    "is unknown."
)
NOTHING_TAKEN = (
    "Too many bytes wait for this client, which does not read them. Read faster, or use more "
    "connections. " + allow_more("listener.control_bytes_max")
)
# Only root may open ports below this, unless the system is configured otherwise.
_FREE_PORTS_FROM = 1024


def listen_error(
    fault: OSError | OverflowError, host: str, port: int, *, port_flag: str, host_option: str
) -> ConfigError:
    """Why the broker can't listen, and what to change."""
    number = fault.errno if isinstance(fault, OSError) else None
    if number == errno.EADDRINUSE:
        why = "another program uses the port"
        advice = f"Stop that program, or choose another port with {port_flag}."
    elif number in (errno.EACCES, errno.EPERM):
        why = "this user may not use the port"
        advice = f"Choose one of {_FREE_PORTS_FROM} or more with {port_flag}."
    elif isinstance(fault, socket.gaierror) or (number or 0) < 0:
        # Names are looked up by another library, which counts its errors downwards.
        why = "this name has no address"
        advice = f"Give an address of this machine with {host_option}, such as 127.0.0.1."
    elif number == errno.EADDRNOTAVAIL:
        why = "this machine does not have that address"
        advice = f"Give one of its own with {host_option}, such as 127.0.0.1."
    elif number in (errno.EMFILE, errno.ENFILE):
        why = "too many files are open"
        advice = "Raise the limit of open files (ulimit -n)."
    else:
        why = str(fault)
        advice = f"Choose another address with {host_option}, or another port with {port_flag}."
    return ConfigError(f"Can't listen on {host or 'any address'} port {port}: {why}. {advice}")
