"""Runs `regard` many times a second: imports it once, forks a process for each command.

A job comes as a line of JSON on standard input, its exit code goes out as a line. The command's own standard streams
are files. So each command is a process of its own, with its own user and limits, that did not wait for torch.
"""

import importlib
import json
import os
import pkgutil
import resource
import signal
import sys

import regard
from regard.cli.main import main
from regard.models.registry import families
from regard.training import recipe

# Another user may have no way to the modules that are imported late: ours, and what those import inside of functions.
NAMES = [module.name for module in pkgutil.walk_packages(regard.__path__, "regard.") if "__main__" not in module.name]
LATE = ("statistics",)
LOADED = (*map(importlib.import_module, (*NAMES, *LATE)), recipe.read("translate"), families())


def run(job: dict) -> None:
    signal.alarm(job["seconds"])
    for number, (name, flags) in enumerate(
        ((job["stdin"], os.O_RDONLY), (job["stdout"], os.O_WRONLY), (job["stderr"], os.O_WRONLY))
    ):
        os.dup2(os.open(name, flags), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the server's own has read ahead
    os.chdir(job["cwd"])
    if job["file_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_bytes"], job["file_bytes"]))
    if job["user"] is not None:
        os.setgroups([])
        os.setgid(job["user"])
        os.setuid(job["user"])
    try:
        main(job["args"])
    except SystemExit as done:
        sys.stdout.flush()
        os._exit(done.code)  # what torch does at its end takes longer than most commands


if __name__ == "__main__":
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            run(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
