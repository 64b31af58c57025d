"""Run by vLLM's Python: reads vLLM's arguments by its own parser and checks its speculative config.

argv[1]: JSON with ``commands`` (argument lists behind ``vllm serve``) and ``out``. No engine is built.
"""

import dataclasses
import json
import sys
from typing import get_args


def main(work):
    from specctl_vllm.options import parse_speculative_config
    from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    known = {field.name for field in dataclasses.fields(SpeculativeConfig)}
    found = []
    for command in work["commands"]:
        arguments = parser.parse_args(command)
        engine_arguments = AsyncEngineArgs.from_cli_args(arguments)
        given = engine_arguments.speculative_config
        wrong = []
        if given is not None:
            parsed = parse_speculative_config(dict(given), on_device=True)
            config = dict(given) if parsed is None else parsed[0]
            wrong = sorted(config.keys() - known)
            if config["method"] not in get_args(SpeculativeMethod):
                wrong.append(config["method"])
        found.append({"model": arguments.model_tag or arguments.model, "wrong": wrong, "asked": given})
    return found


if __name__ == "__main__":
    work = json.loads(sys.argv[1])
    with open(work["out"], "w") as file:
        json.dump(main(work), file)
