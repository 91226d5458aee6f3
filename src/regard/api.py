"""What the command line does, as Python functions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from regard.errors import UsageError
from regard.places import on_disk

# What a function needs is imported where it is called: to load a model for use takes no trainer, no page and no scorer.
if TYPE_CHECKING:
    from regard.decoding import DecodeOptions
    from regard.layers.packed_linear import Precision
    from regard.looking import Maps
    from regard.tasks.convert import Converted
    from regard.tasks.embedder import Embedder
    from regard.tasks.filler import Filler
    from regard.tasks.generator import Generator
    from regard.tasks.images.classifier import ImageEmbedder
    from regard.tasks.images.generator import ImageGenerator
    from regard.tasks.images.reconstructor import Reconstructor
    from regard.tasks.labeller import Labeller
    from regard.tasks.submission import Submission
    from regard.tasks.tagger import Tagger
    from regard.tasks.task import Evaluated
    from regard.tasks.translator import Translator
    from regard.training import run

    Texts = Translator | Generator | Filler | Labeller | Tagger | Embedder
    Loaded = Texts | ImageEmbedder | Reconstructor | ImageGenerator


def train(
    task: str,
    *,
    out: str | Path,
    data: str | Path | None = None,
    recipe_name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> run.Result:
    """Train a model, score it beside baselines, and write a run folder with a report.

    Args:
        task: What to train for: ``translate``, ``lm``, ``mlm``, ``plm``, ``instruct``, ``classify``, ``regress``,
            ``tag``.
        out: The run's folder.
        data: The training file; None where the recipe names its own.
        recipe_name: A recipe's name or YAML file; None is the task's default recipe.
        settings: Settings to change, by dotted name: ``{"training.max_steps": 1000}``.
        device: ``auto``, ``cpu``, ``cuda``, …
        quiet: Show no progress.

    Returns:
        The final model and its scores.

    Raises:
        UsageError: The recipe is for another task, or there is no training data.
    """
    from regard.settings import set_value
    from regard.training import recipe, run

    values = recipe.with_data(recipe.read_for(task, recipe_name), None if data is None else str(data))

    def change(own: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in (settings or {}).items():
            own = set_value(own, name, value, f"settings[{name!r}]")
        return dict(own)

    resolved = recipe.resolve(recipe.changed(values, change, recipe_name or task))
    return run.run(resolved, Path(out), device=device, quiet=quiet)


def load(path: str | Path, device: str = "cpu", precision: Precision | None = None) -> Loaded:
    """Load a model.

    Args:
        path: A run's folder or the model folder in it; a public folder of an encoder–decoder (Marian), of a
            bidirectional encoder (BERT, RoBERTa, XLM, XLM-R, ELECTRA, MiniLM), of a causal model (GPT-2, Llama-type) or
            of an image encoder (ViT, Swin, ViT-MAE); or a GGUF file of a Llama-type model.
        device: Where it is to run.
        precision: Get it ready for use, see :func:`make_quick`; on the CPU it can then be used, not trained, changed or
            saved. None leaves it as it is.

    Returns:
        The model, ready to be used: to translate, to go on from texts, to fill in masks, to label or tag texts, to
        classify images, or to give vectors of either. A public encoder fills in masks where it has the head for it.

    Raises:
        UsageError: The path is a URL, or a model's name on a hub: nothing is ever fetched.
    """
    from regard.models.weights import lay_by_rows

    loaded = load_for_use(path, device)
    if precision is None:
        lay_by_rows(loaded.model)
    else:
        make_quick(loaded, precision)
    return loaded


def make_quick(loaded: Loaded, precision: str, compiled: bool = False) -> Any:
    """Get a model ready for use: packed on the CPU; on a GPU its steps become graphs, where it takes any.

    Args:
        loaded: The model with what belongs to it.
        precision: Of its weights, see :func:`regard.layers.packed.ready`.
        compiled: Compile its steps before they are captured.

    Returns:
        The model itself.

    Raises:
        UsageError: Steps are to be compiled, and it is on no GPU or takes none; or it cannot have the precision.
    """
    from regard.decoding.fixed import takes_steps
    from regard.layers.packed import ready

    is_graph = hasattr(loaded, "steps") and loaded.device.type == "cuda" and takes_steps(loaded.model)
    if compiled and not is_graph:
        mend = "leave it out, or give a GPU to what writes"
        raise UsageError("steps of this model cannot be compiled here", mend=mend)
    if is_graph:
        loaded.steps = "compiled graph" if compiled else "graph"  # type: ignore[union-attr]
    return ready(loaded.model, precision)


def load_for_use(path: str | Path, device: str = "cpu") -> Loaded:
    """Load a model that will be packed, or at least not be trained: its weights lie as they do in the file.

    Args:
        path: As :func:`load` takes it.
        device: Where it is to run.

    Returns:
        The model.

    Raises:
        UsageError: As of :func:`load`.
    """
    from regard.tasks import plain
    from regard.tasks.public_pairs import translates
    from regard.training import hardware

    target = hardware.choose(device)
    source = on_disk(path)
    kind = None if source.suffix == ".gguf" else plain.model_type(source)
    is_plain = kind == plain.MODEL_TYPE and plain.task(source) == "none"
    if source.suffix != ".gguf" and not is_plain and (kind in (None, plain.MODEL_TYPE) or translates(kind)):
        from regard.tasks import folder

        return folder.load(path, target)
    from regard.tasks.images.public import load_images, sees
    from regard.tasks.public_text import is_causal, load_generator

    if source.suffix != ".gguf" and sees(source):
        return load_images(source, target)
    if source.suffix == ".gguf" or is_causal(source):
        loaded, notes = load_generator(path, target)
    else:
        from regard.tasks.embedder import load_embedder
        from regard.tasks.filler import is_masked, load_filler

        loaded, notes = load_filler(path, target) if not is_plain and is_masked(source) else load_embedder(path, target)
    for note in notes:
        warnings.warn(note, stacklevel=3)
    return loaded


def convert(path: str | Path, out: str | Path, to: Literal["huggingface", "timm", "regard"]) -> Converted:
    """Write a model in another form; whole, or not at all.

    Args:
        path: A run's folder, the model folder in it, a Hugging Face or timm folder, or a GGUF file of a Llama-type
            model.
        out: The new folder; nothing is there yet.
        to: ``huggingface``, ``timm`` or ``regard``.

    Returns:
        What was written: tensors, parameters, bytes, and what a user should know.

    Raises:
        UsageError: The form is unknown, the model has it already, or something is at ``out``.
        DataError: There is no model, or it has no such form; what stands in the way is said.
    """
    from regard.tasks.convert import convert as write

    return write(path, out, to)


def evaluate(
    model: Translator | str | Path,
    data: str,
    *,
    options: DecodeOptions | None = None,
    references: Literal["line", "source"] | None = None,
    source: str | None = None,
    target: str | None = None,
) -> Evaluated:
    """Score a model on a file of pairs.

    Args:
        model: A loaded model, or its path.
        data: A file of pairs.
        options: How outputs are chosen; None as the model was made for.
        references: ``line`` or ``source``; None as the model was made for.
        source: Column or suffix of the source; None for the format's default.
        target: Column or suffix of the target.

    Returns:
        Scores with their signatures, inputs and outputs.
    """
    from regard.data import read_pairs
    from regard.tasks import folder
    from regard.tasks.translator import Translator

    translator = model if isinstance(model, Translator) else folder.load_as(Translator, model)
    return translator.evaluate(read_pairs(data, source=source, target=target), options, references)


def submit(model: Labeller | str | Path, layout: str, data: str | Path, out: str | Path) -> list[Submission]:
    """Label a benchmark's hidden test files and write the files that its server takes.

    Args:
        model: A loaded model, or its path.
        layout: The benchmark: ``glue-cola``, ``glue-sst-2``, …, ``glue-ax``.
        data: The folder of its test files.
        out: Folder of the new files; made where it is missing.

    Returns:
        The files, each with its number of predictions and of texts whose beginning alone was read.
    """
    from regard.tasks import folder
    from regard.tasks.labeller import Labeller
    from regard.tasks.submission import submit as write

    return write(model if isinstance(model, Labeller) else folder.load_as(Labeller, model), layout, data, out)


def look(
    model: Loaded | str | Path,
    text: str | Path,
    target: str | None = None,
    language: str = "",
) -> Maps:
    """Show what a model attends to.

    Args:
        model: A loaded model, or its path.
        text: Input; for an image encoder an image file.
        target: Of a translator or a language model: an output to look at; None lets it write one.
        language: Of the text, for an encoder that is told it.

    Returns:
        The maps, which show themselves in a notebook.
    """
    from regard.looking.reading import look as see

    return see(load(model) if isinstance(model, str | Path) else model, text, target, language=language)
