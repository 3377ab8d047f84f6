"""Settings that Spark's side reads from the environment. Law: it is read here and nowhere else
below, and only on the driver; tasks are handed what was found. Secrets are the exception: every
process reads its own, so that they never travel with a plan.

Elsewhere only the command line reads settings (`fanlog.cli`). The exceptions are here: where Java
is, because Spark itself looks for it there; and FANLOG_URL, FANLOG_KEY_FILE and the like, because a
Spark program has no command line of Fanlog's.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from fanlog.client.credentials import choose_credentials, split_login
from fanlog.client.tls import tls_from
from fanlog.config import DEFAULT_HOST, NATIVE_PORT
from fanlog.errors import ConfigError

DEFAULT_URL = f"fanlog://{DEFAULT_HOST}:{NATIVE_PORT}"
JAVA_VERSION_MIN = 17
_INSTALL = "on Debian and Ubuntu: sudo apt-get install openjdk-17-jre-headless"
JAVA_MISSING = (
    f"Spark needs Java {JAVA_VERSION_MIN} or newer, but found no Java: install it "
    f"({_INSTALL}), or set JAVA_HOME to its folder."
)
_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)


def broker_url() -> str:
    """Where the broker is, if no option says so: FANLOG_URL, as for commands, or this machine."""
    url = os.environ.get("FANLOG_URL") or DEFAULT_URL  # noqa: TID251 - see the law above
    return split_login(url).url


def login_options(key_file: str) -> dict[str, Any]:
    """What this process logs in with: the file of the option, or what its environment has. The
    certificates that it trusts are in its environment as well."""
    environment = os.environ  # noqa: TID251 - see the law above
    trusted = tls_from(environment)
    if key_file:
        return {"key_file": key_file} | trusted
    secrets = split_login(environment.get("FANLOG_URL", "")).secrets
    return trusted | (secrets or choose_credentials(environment))


def check_java() -> None:
    """Checks that there is a Java for Spark. Spark takes the one in JAVA_HOME, if that is set, and
    no other."""
    home = os.environ.get("JAVA_HOME")  # noqa: TID251 - where Spark looks for it
    found = f"{home}/bin/java" if home else shutil.which("java")
    if home and not (found and os.access(found, os.X_OK)):
        raise ConfigError(
            f"JAVA_HOME is {home}, but there is no Java in it ({found} is not a program). Correct "
            f"it, or unset it to use the Java in PATH. Spark needs Java {JAVA_VERSION_MIN} or "
            "newer."
        )
    if not found:
        raise ConfigError(JAVA_MISSING)
    version = _maybe_version(Path(found))
    if version is not None and version < JAVA_VERSION_MIN:
        which = f"JAVA_HOME ({home})" if home else found
        raise ConfigError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer; {which} is Java {version}. Install "
            f"a newer one ({_INSTALL}), and set JAVA_HOME to its folder."
        )


def _maybe_version(java: Path) -> int | None:
    """The version of a Java, without running it: its folder says so."""
    try:
        release = (java.resolve().parent.parent / "release").read_text(errors="replace")
    except OSError:
        return None
    found = _VERSION.search(release)
    return int(found[1]) if found else None
