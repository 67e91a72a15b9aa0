"""Sets the resource limits of a new process and then executes the container's command in it.

`container_process` runs this file as a script: limits that the new process sets itself hold before
the command's first instruction, and no Python code runs between fork and exec in the parent.

    python launch.py '{"AS": 1073741824}' COMMAND ARGUMENT …
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys

#: Exit codes of a command that may not be executed, and of one that does not exist.
_NOT_ALLOWED, _NOT_FOUND = 126, 127
#: The option of prctl(2) that sends this process a signal when its parent ends.
_PR_SET_PDEATHSIG = 1


def main(limits: str, argv: list[str]) -> int:
    """Execute the command; returns an exit code if that fails."""
    # Some event loops leave more descriptors open than the standard three.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for name, limit in json.loads(limits).items():
        number = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(number)
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(number, (value, value))
    os.umask(0o077)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.execvp(argv[0], argv)
    except PermissionError:
        code, reason = _NOT_ALLOWED, "may not be executed"
    except OSError as error:
        code, reason = _NOT_FOUND, error.strerror or "cannot be executed"
    sys.stderr.write(f"{argv[0]}: {reason}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
