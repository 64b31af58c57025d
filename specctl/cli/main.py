"""The ``specctl`` command. A command's module is imported once the command is chosen."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

import click

from specctl import __version__
from specctl.errors import (
    BenchArgumentError,
    ContractError,
    PolicyError,
    SpecctlError,
    TargetError,
    install_words,
)
from specctl.terminal import StderrHandler, examples, log_options

__all__ = ["COMMANDS", "PROGRAM", "cli", "main"]

EXIT_TARGET = 1
EXIT_ARGUMENTS = 2
EXIT_POLICY = 3
EXIT_LOCAL = 4
EXIT_INTERRUPTED = 130
PROGRAM = "specctl"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
COMPLETE_VARIABLE = "_SPECCTL_COMPLETE"


class Place(NamedTuple):
    """Where a command is: ``module:attribute``, and its line in the list of commands."""

    where: str
    words: str


SECTIONS: dict[str, dict[str, Place]] = {
    "Choose and measure": {
        "recommend": Place("specctl.recommend.command:recommend", "which method fits, and how to launch it"),
        "bench": Place("specctl.bench.command:bench", "compare settings on your own server and prompts"),
        "profile": Place("specctl.simulate.profiling.command:profile", "measure a server's step costs"),
        "simulate": Place("specctl.simulate.command:simulate", "compare policies on a load, on virtual time"),
    },
    "Run": {
        "autotune": Place("specctl.cli.autotune:autotune", "watch servers and retune them"),
        "freeze": Place("specctl.cli.freeze:freeze_command", "hold the tables of running servers"),
        "thaw": Place("specctl.cli.freeze:thaw_command", "end a freeze"),
        "policy": Place("specctl.cli.policy:policy", "check, show or describe policy files"),
        "corpus": Place("specctl.draft.command:corpus", "make and inspect files of finished outputs"),
    },
    "See and find out": {
        "status": Place("specctl.cli.status:status", "what a server does now"),
        "top": Place("specctl.top.command:top", "a live view of one or many servers"),
        "doctor": Place("specctl.doctor.command:doctor", "what is wrong with a server or a launch command"),
        "record": Place("specctl.cli.record:record", "write a log of a running server"),
        "replay": Place("specctl.cli.replay:replay", "what a policy decides on a recorded log"),
        "patches": Place("specctl.engine.command:patches", "what the plugin changes in an engine, and why"),
        "completion": Place("specctl.cli.completion:completion", "print the completion script of a shell"),
    },
}
COMMANDS = {name: place for section in SECTIONS.values() for name, place in section.items()}
EXIT_CODES = """\b
Exit codes:
  0    done (a daemon: stopped by SIGTERM or SIGINT)
  1    a target cannot be reached, breaks the contract or lacks what is asked for; doctor: an error was found
  2    wrong arguments
  3    a policy file is wrong
  4    a file or port on this machine cannot be used, or a package is missing
  5    the file is changed, and no daemon confirmed the freeze
  130  interrupted
"""
EPILOG = "\n\n".join(
    (
        examples(
            "specctl status http://localhost:8000",
            "specctl autotune --policy balanced --target http://localhost:8000",
            "specctl COMMAND --help",
        ),
        EXIT_CODES,
    )
)


class Program(click.Group):
    """Lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].where.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return _with_log_options(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), place.words) for name, place in section.items()])


# Packages of the optional groups, and the group that brings each.
_EXTRAS = {
    "llvmlite": "draft",
    "matplotlib": "simulate",
    "numba": "draft",
    "sklearn": "simulate",
    "xxhash": "draft",
}


def _missing(error: ModuleNotFoundError) -> str:
    """Raises the error again when no group brings the module."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        raise error
    return f"{PROGRAM}: this needs the package {package}; {install_words(_EXTRAS[package])}"


def _with_log_options(command: click.Command) -> click.Command:
    """The same options before a command and after it; of a group, also after each of its commands."""
    taken = {name for option in command.params for name in option.opts}
    command.params += [option for option in log_options() if not taken & set(option.opts)]
    command.context_settings.setdefault("help_option_names", ["-h", "--help"])
    for inner in getattr(command, "commands", {}).values():
        _with_log_options(inner)
    return command


cli = Program(
    PROGRAM,
    help="Steers speculative decoding on running servers.",
    epilog=EPILOG,
    params=[*log_options()],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")(cli)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code. Raises SystemExit with 2 for wrong arguments."""
    if COMPLETE_VARIABLE in os.environ:
        return _complete(os.environ[COMPLETE_VARIABLE])
    handler = StderrHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger().setLevel(logging.INFO)
    given = sys.argv[1:] if arguments is None else list(arguments)
    colour = False if os.environ.get("NO_COLOR") else None
    try:
        with cli.make_context(PROGRAM, given, color=colour) as context:
            return int(cli.invoke(context) or 0)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        error.show()
        raise SystemExit(EXIT_ARGUMENTS) from None
    except SpecctlError as error:
        click.secho(str(error), err=True, fg="red", color=colour)
        return _exit_code(error)
    except ModuleNotFoundError as error:
        click.secho(_missing(error), err=True, fg="red", color=colour)
        return EXIT_LOCAL
    except (KeyboardInterrupt, click.Abort):
        if arguments is None:
            _leave(EXIT_INTERRUPTED)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return 0
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        _drop_output()
        click.secho(f"standard output: {error.strerror}", err=True, fg="red", color=colour)
        return EXIT_LOCAL


def _drop_output() -> None:
    """Python writes the rest at exit, and would complain about it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _leave(code: int) -> NoReturn:
    """At once: Python would wait for threads, and one may wait for a name server that does not answer."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _exit_code(error: SpecctlError) -> int:
    if isinstance(error, PolicyError):
        return EXIT_POLICY
    if isinstance(error, BenchArgumentError):
        return EXIT_ARGUMENTS
    return EXIT_TARGET if isinstance(error, TargetError | ContractError) else EXIT_LOCAL


def _complete(instruction: str) -> int:
    from click.shell_completion import shell_complete

    return shell_complete(cli, {}, PROGRAM, COMPLETE_VARIABLE, instruction)


if __name__ == "__main__":
    sys.exit(main())
