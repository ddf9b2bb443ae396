"""The console script `slipway`, and `python -m slipway.pipelines`, which is the same."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; Ctrl-C while its modules are imported ends the process without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # it may be ignored, as after nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from slipway.pipelines.cli.app import main as run

    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
