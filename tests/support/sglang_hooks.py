"""What is changed in SGLang's classes, in a process that stands for a scheduler's; run by SGLang's Python."""

import json
import multiprocessing
import sys
from pathlib import Path

import specctl_sglang.cpu_serve  # noqa: F401  (the stand-ins have to be there before SGLang)
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from specctl_sglang import register
from specctl_sglang.compat import hooks
from specctl_sglang.patches import of_algorithm


def main(out):
    multiprocessing.parent_process = lambda: object()
    load_plugins()
    found = {"unasked": sorted(HookRegistry._hooks)}
    found |= {"after another's patch": after_anothers_patch()}
    for _ in range(2):
        register.register()
        register._register_in_engine(None)
    HookRegistry.apply_hooks()
    hooks.now(of_algorithm("SPECCTL_SUFFIX"))
    found |= {"asked": hooks.in_force(), "hooks": [len(one) for one in HookRegistry._hooks.values()]}
    found["why not"] = hooks.why_not_in_force()
    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.run_batch", lambda *_: None, HookType.REPLACE
    )
    found["replaced"] = hooks.why_not_in_force()
    Path(out).write_text(json.dumps(found))


def after_anothers_patch():
    original = Scheduler.run_batch
    Scheduler.run_batch = lambda *_: None
    register._register_in_engine(None)
    Scheduler.run_batch = original
    return sorted(HookRegistry._hooks)


if __name__ == "__main__":
    main(json.loads(sys.argv[1])["out"])
