"""The entry point of `phalanx` and of `python -m phalanx`.

Imports take most of the time of a short command. ^C during them ends the process at once: as a
KeyboardInterrupt it would have a traceback, and some modules turn it into errors of their own.
"""

import os
import signal
import sys
from types import FrameType

#: The exit code after ^C, as that of a shell.
_INTERRUPTED = 130


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED)


def run() -> None:
    """Run the command that the arguments name."""
    # A shell starts commands in the background with SIGINT ignored: they stay so.
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, _exit_at_once)
    from phalanx.cli.main import COMMANDS, import_command, main

    if name := next((word for word in sys.argv[1:2] if word in COMMANDS), ""):
        import_command(name)
    try:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        main(prog_name="phalanx")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    run()
