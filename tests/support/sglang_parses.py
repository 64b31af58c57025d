"""Run by SGLang's Python: reads SGLang's arguments by its own parser, and specctl's options.

argv[1]: JSON with ``commands`` (argument lists behind ``sglang.launch_server``), ``environments`` and
``out``. No engine is built.
"""

import argparse
import json
import os
import sys


def main(work):
    # Without a GPU SGLang's modules cannot be imported as they are.
    import specctl_sglang.cpu_serve  # noqa: F401
    from sglang.srt.server_args import ServerArgs
    from specctl_sglang.compat.adaptivity import adaptivity_of
    from specctl_sglang.options import options_from_env

    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    found = []
    for command, environment in zip(work["commands"], work["environments"], strict=True):
        arguments = parser.parse_args(command)
        os.environ.pop("SPECCTL_SGLANG_OPTIONS", None)
        os.environ.update(environment)
        options_from_env()
        adapts = adaptivity_of(arguments, arguments.speculative_algorithm, is_steered=False)
        found.append(
            {
                "model": arguments.model_path,
                "algorithm": arguments.speculative_algorithm,
                "draft": arguments.speculative_draft_model_path,
                "tokens": arguments.speculative_num_draft_tokens,
                "adapts": adapts and adapts.name,
                "steps": arguments.speculative_num_steps,
            }
        )
    return found


if __name__ == "__main__":
    work = json.loads(sys.argv[1])
    with open(work["out"], "w") as file:
        json.dump(main(work), file)
