"""The ``specctl`` command.

Exit codes: 0 done (a daemon: stopped by SIGTERM or SIGINT); 1 a target cannot be reached or breaks the
contract; 2 wrong arguments; 3 a policy file is wrong; 4 a file or port on this machine cannot be used.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from specctl.errors import ContractError, PolicyError, SpecctlError, TargetError

__all__ = ["main"]

EXIT_TARGET = 1
EXIT_POLICY = 3
EXIT_LOCAL = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=getattr(logging, options.log_level.upper()),
        format="%(asctime)s %(levelname).1s %(message)s",
        stream=sys.stderr,
    )
    try:
        return int(options.run(options))
    except PolicyError as error:
        print(error, file=sys.stderr)
        return EXIT_POLICY
    except (TargetError, ContractError) as error:
        print(error, file=sys.stderr)
        return EXIT_TARGET
    except SpecctlError as error:
        print(error, file=sys.stderr)
        return EXIT_LOCAL
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specctl",
        description="Steers speculative decoding on running servers.",
        epilog="Exit codes: 0 done, 1 target, 2 arguments, 3 policy, 4 local file or port.",
    )
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error"), help="default: info"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_autotune(commands)
    _add_policy(commands)
    _add_freeze(commands)
    _add_status(commands)
    _add_corpus(commands)
    _add_simulate(commands)
    _add_record(commands)
    _add_profile(commands)
    return parser


def _add_autotune(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("autotune", help="watch servers and retune them", description=_AUTOTUNE)
    words = "a file, or a shipped policy's name; with --targets: for servers that no rule of it matches"
    command.add_argument("--policy", metavar="FILE", help=words)
    command.add_argument(
        "--target", default=[], action="append", metavar="URL", help="repeat for more servers"
    )
    command.add_argument(
        "--targets", type=Path, metavar="FILE", help="servers, DNS names, pods, and rules for their policies"
    )
    command.add_argument(
        "--token-file", type=Path, metavar="FILE", help="bearer token with the control scope"
    )
    command.add_argument(
        "--engine-profile", type=Path, action="append", default=[], metavar="FILE",
        help="step costs to begin with, of specctl profile; a folder: all in it; used where the server's "
        "fingerprint and method are the profile's; repeat",
    )  # fmt: skip
    command.add_argument("--audit-log", type=Path, metavar="FILE", help="JSON lines, appended")
    command.add_argument(
        "--metrics-port", type=_port, default=9109, metavar="N", help="default: 9109; 0: none"
    )
    command.add_argument("--metrics-host", default="127.0.0.1", metavar="HOST", help="default: 127.0.0.1")
    command.add_argument("--dry-run", action="store_true", help="decide and log, change nothing")
    command.add_argument(
        "--log-level", default=argparse.SUPPRESS, choices=("debug", "info", "warning", "error")
    )
    command.set_defaults(run=_autotune, refuse=command.error)


_AUTOTUNE = (
    "Runs until SIGTERM or SIGINT. On a stop the last table stays; its lease ends by itself, and the server "
    "then takes the policy's fallback."
)


def _add_policy(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("policy", help="check, show or describe policy files")
    actions = command.add_subparsers(required=True, metavar="ACTION")
    for name, run, words in (
        ("validate", _policy_validate, "say what is wrong with a policy file"),
        ("show", _policy_show, "print a policy with every default filled in"),
        ("schema", _policy_schema, "print the JSON schema (of FILE's kind, when given)"),
    ):
        action = actions.add_parser(name, help=words, description=words)
        action.add_argument("file", nargs="?" if name == "schema" else None, metavar="FILE")
        action.set_defaults(run=run)


def _add_freeze(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for name, words in (
        ("freeze", "hold the tables of running servers as they are: nothing is changed, leases are renewed"),
        ("thaw", "end a freeze"),
    ):
        command = commands.add_parser(name, help=words, description=f"{words}. {_FREEZE}")
        command.add_argument("file", metavar="FILE", help="the policy file or targets file of the daemon")
        command.set_defaults(run=_freeze, is_frozen=name == "freeze")


_FREEZE = "Sets the key `frozen` in the file, which the daemon takes up within a second."


def _add_status(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("status", help="what a server does now")
    command.add_argument("target", metavar="TARGET")
    command.add_argument("--json", action="store_true", help="for machines")
    command.add_argument("--token-file", type=Path, metavar="FILE", help="bearer token with the read scope")
    command.set_defaults(run=_status)


def _add_corpus(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("corpus", help="make and look at files of finished outputs")
    actions = command.add_subparsers(required=True, metavar="ACTION")
    words = "index logged outputs: JSON lines with a text, or with token ids; the oldest file first"
    build = actions.add_parser("build", help="index logged outputs", description=words)
    build.add_argument("inputs", nargs="+", type=Path, metavar="INPUT.jsonl")
    build.add_argument("--tokenizer", required=True, type=Path, metavar="FOLDER", help="of the served model")
    build.add_argument("--field", default="output", help="of a line; a.b for b inside a; default: output")
    build.add_argument("--namespace", default="", help="whose requests may get drafts from it; default: none")
    words = "check a corpus file and say what it holds, without a text"
    inspect = actions.add_parser("inspect", help=words, description=words)
    inspect.add_argument("file", type=Path, metavar="FILE")
    words = "one corpus of several, the oldest first; equal outputs are kept once"
    merge = actions.add_parser("merge", help=words, description=words)
    merge.add_argument("inputs", nargs="+", type=Path, metavar="FILE")
    for action in (build, merge):
        action.add_argument("--output", required=True, type=Path, metavar="FILE")
        action.add_argument("--max-bytes", type=_bytes, metavar="N", help="leave out what is oldest")
    build.set_defaults(run=_corpus_build)
    inspect.set_defaults(run=_corpus_inspect)
    merge.set_defaults(run=_corpus_merge)


def _add_simulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    # Only here are a command's options beside the command: they are many. The module imports nothing heavy.
    from specctl.cli.simulate import add_arguments

    words = "compare policies on a recorded load, on virtual time"
    command = commands.add_parser("simulate", help=words, description=words)
    add_arguments(command)
    command.set_defaults(run=_simulate)


def _add_record(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from specctl.cli.record import add_arguments

    words = "write a log of what a running server counts, for specctl simulate"
    command = commands.add_parser("record", help=words, description=words)
    add_arguments(command)
    command.set_defaults(run=_record)


def _add_profile(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from specctl.cli.profile import add_arguments

    words = "measure a running server's step costs in under two minutes, for specctl simulate"
    command = commands.add_parser("profile", help=words, description=words)
    add_arguments(command)
    command.set_defaults(run=_profile)


def _bytes(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count}: expected 1 or more")
    return count


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port}: expected 0 to 65535")
    return port


# The commands' modules are imported late: `specctl policy` needs no HTTP client and no estimators.


def _autotune(options: argparse.Namespace) -> int:
    from specctl.cli.autotune import autotune

    return autotune(options)


def _freeze(options: argparse.Namespace) -> int:
    from specctl.cli.freeze import freeze

    return freeze(options.file, is_frozen=options.is_frozen)


def _policy_validate(options: argparse.Namespace) -> int:
    from specctl.cli.policy import validate

    return validate(options.file)


def _policy_show(options: argparse.Namespace) -> int:
    from specctl.cli.policy import show

    return show(options.file)


def _policy_schema(options: argparse.Namespace) -> int:
    from specctl.cli.policy import schema

    return schema(options.file)


def _status(options: argparse.Namespace) -> int:
    from specctl.cli.status import status

    return status(options.target, token_file=options.token_file, as_json=options.json)


def _corpus_build(options: argparse.Namespace) -> int:
    from specctl.cli.corpus import build

    return build(
        options.inputs,
        options.output,
        tokenizer=options.tokenizer,
        field=options.field,
        namespace=options.namespace,
        max_bytes=options.max_bytes,
    )


def _corpus_inspect(options: argparse.Namespace) -> int:
    from specctl.cli.corpus import inspect

    return inspect(options.file)


def _corpus_merge(options: argparse.Namespace) -> int:
    from specctl.cli.corpus import merge_files

    return merge_files(options.inputs, options.output, max_bytes=options.max_bytes)


def _simulate(options: argparse.Namespace) -> int:
    from specctl.cli.simulate import simulate

    return simulate(options)


def _record(options: argparse.Namespace) -> int:
    from specctl.cli.record import record

    return record(options)


def _profile(options: argparse.Namespace) -> int:
    from specctl.cli.profile import profile

    return profile(options)


if __name__ == "__main__":
    sys.exit(main())
