"""The first moments of a process of a pod: it limits itself and then becomes the pod's command.

Run as a script of its own by `processes`, never imported: limits that are set in the new process
hold before the command's first instruction, and nothing runs between fork and exec in the parent.

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

#: Exit codes for a command that may not be executed, and for one that is not there.
_NOT_ALLOWED, _NOT_FOUND = 126, 127
#: "Send me this signal when my parent ends": a number that the kernel knows.
_PR_SET_PDEATHSIG = 1


def main(limits: str, argv: list[str]) -> int:
    """Become the command; what comes back is why that could not be."""
    # Not every event loop hands over the three alone.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for name, most in json.loads(limits).items():
        what = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(what)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))
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
