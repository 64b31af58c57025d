"""The ``specctl`` command.

Exit codes: 0 done (a daemon: stopped by SIGTERM or SIGINT); 1 a target cannot be reached or breaks the
contract; 2 wrong arguments; 3 a policy file is wrong; 4 a file or port on this machine cannot be used;
5 no daemon confirmed a freeze; 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

from specctl.errors import ContractError, PolicyError, SpecctlError, TargetError

__all__ = ["main"]

EXIT_TARGET = 1
EXIT_POLICY = 3
EXIT_LOCAL = 4
EXIT_INTERRUPTED = 130
LEVELS = ("debug", "info", "warning", "error")


class Runnable(Protocol):
    """What a command's module has. It is imported once its command is chosen."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, options: argparse.Namespace) -> int:
        """``options.command``: the command's name. Raises SpecctlError."""


class Command(NamedTuple):
    module: str
    words: str


COMMANDS = {
    "autotune": Command("specctl.cli.autotune", "watch servers and retune them"),
    "status": Command("specctl.cli.status", "what a server does now"),
    "freeze": Command("specctl.cli.freeze", "hold the tables of running servers as they are"),
    "thaw": Command("specctl.cli.freeze", "end a freeze"),
    "policy": Command("specctl.cli.policy", "check, show or describe policy files"),
    "corpus": Command("specctl.draft.command", "make and inspect files of finished outputs"),
    "record": Command("specctl.cli.record", "write a log of a running server, for replay and simulate"),
    "replay": Command("specctl.cli.replay", "what a policy decides on a recorded log, poll by poll"),
    "simulate": Command("specctl.simulate.command", "compare policies on a load, on virtual time"),
    "patches": Command("specctl.engine.command", "what the plugin changes in an engine, and why"),
    "profile": Command(
        "specctl.simulate.profiling.command", "measure a server's step costs, for specctl simulate"
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    try:
        options, command = _parsed(arguments)
        logging.basicConfig(
            level=getattr(logging, options.log_level.upper()),
            format="%(asctime)s %(levelname).1s %(message)s",
            stream=sys.stderr,
        )
        return command.run(options)
    except PolicyError as error:
        print(error, file=sys.stderr)
        return EXIT_POLICY
    except (TargetError, ContractError) as error:
        print(error, file=sys.stderr)
        return EXIT_TARGET
    except SpecctlError as error:
        print(error, file=sys.stderr)
        return EXIT_LOCAL
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _parsed(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Runnable]:
    """The command first, then its own options."""
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog="specctl",
        usage="specctl [-h] [--log-level LEVEL] COMMAND ...",
        description="Steers speculative decoding on running servers.",
        epilog="commands:\n"
        + "\n".join(f"  {name:{width}}  {command.words}" for name, command in COMMANDS.items())
        + "\n\nspecctl COMMAND --help lists a command's options. Exit codes: 0 done, 1 target, 2 arguments,\n"
        "3 policy, 4 local file or port, 5 freeze not confirmed.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_log_level(parser, "info")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="see below")
    rest = parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    rest.required = False
    first = parser.parse_args(arguments)
    chosen = COMMANDS[first.command]
    module = cast(Runnable, importlib.import_module(chosen.module))
    own = argparse.ArgumentParser(prog=f"specctl {first.command}", description=chosen.words)
    _add_log_level(own, first.log_level)
    module.add_arguments(own)
    own.set_defaults(command=first.command, refuse=own.error)
    return own.parse_args(first.rest), module


def _add_log_level(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--log-level", default=default, choices=LEVELS, metavar="LEVEL", help=f"{', '.join(LEVELS)}"
    )


if __name__ == "__main__":
    sys.exit(main())
