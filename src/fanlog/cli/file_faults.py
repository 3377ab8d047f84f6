"""Why a file named on the command line can't be used, and what to do about it."""

from __future__ import annotations

import errno

_ADVICE = {
    errno.ENOENT: "check the path",
    errno.EACCES: "give this user permission, or name another file",
    errno.EPERM: "give this user permission, or name another file",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "a part of the path is a file",
    errno.ELOOP: "symbolic links on the path lead in a circle",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.EROFS: "name a file on another disk",
    errno.ENOSPC: "free disk space, or name a file on another disk",
    errno.EDQUOT: "free disk space, or name a file on another disk",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EIO: "check the disk",
}


def reason(fault: OSError) -> str:
    """`Permission denied: give this user the right to it, or name another file.`"""
    said = fault.strerror or str(fault)
    advice = _ADVICE.get(fault.errno or 0)
    return f"{said}: {advice}." if advice else f"{said}."
