"""From one form of a model's folder to another: regard's own, Hugging Face's, timm's; and out of GGUF files.

Tensors keep their precision. What lies beside the weights goes along: tokenizers, the numbers of special tokens, how
outputs are chosen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from torch import nn

from regard.data.pieces import Pieces
from regard.data.pixels import Pixels
from regard.data.tokenizer import END, START, UNKNOWN, Tokenizer
from regard.decoding import DecodeOptions
from regard.errors import DataError, FormatError, UsageError
from regard.files import folder_aside, json_bytes, read_config, reading, write_aside
from regard.models.gguf import Loaded, read_gguf
from regard.models.public import known_layouts, layout_for, read_folder, write_folder
from regard.models.registry import families
from regard.models.values import layout_name
from regard.models.weights import list_tensors
from regard.places import on_disk
from regard.tasks import folder as folders
from regard.tasks import plain
from regard.tasks.filler import Filler
from regard.tasks.generator import Generator
from regard.tasks.images.public import sees
from regard.tasks.public_pairs import load_public, translates
from regard.tasks.public_search import EARLY
from regard.tasks.public_text import framed
from regard.tasks.sentences import POOLING_FOLDER, read_modules
from regard.tasks.translator import Translator

Form = Literal["huggingface", "timm", "regard"]
FORMS: tuple[Form, ...] = get_args(Form)

# What may lie beside a public model, and goes along as it is.
BESIDE = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model"),
    *(
        "preprocessor_config.json",
        "generation_config.json",
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        f"{POOLING_FOLDER}/config.json",
    ),
)
BESIDE_CAP_BYTES = 1 << 28


@dataclass(frozen=True)
class Converted:
    """What was written.

    Attributes:
        path: The new folder.
        family: Of the model.
        tensors: In its weights' file.
        parameters: Of the model; tied ones count once, computed tables not at all.
        size_bytes: Of all its files.
        notes: What a user should know.
    """

    path: Path
    family: str
    tensors: int
    parameters: int
    size_bytes: int
    notes: tuple[str, ...] = ()


def convert(path: str | Path, out: str | Path, to: str) -> Converted:
    """Write a model in another form; whole, or not at all.

    Args:
        path: A run's folder, the model folder in it, a Hugging Face or timm folder, or a GGUF file of a Llama-type
            model.
        out: The new folder; nothing is there yet, or an empty folder.
        to: ``huggingface``, ``timm`` or ``regard``.

    Returns:
        What was written.

    Raises:
        UsageError: The form is unknown, the model has it already, or something is at ``out``.
        DataError: There is no model, or it has no such form; what stands in the way is said.
        ResourceError: The disk is full, a permission or an optional package is missing.
    """
    form = next((one for one in FORMS if one == to), None)
    if form is None:
        raise UsageError(f"unknown form {to!r}", mend=f"choose from {', '.join(FORMS)}")
    source, target = on_disk(path), new_folder(out)
    if source.is_file():
        return _gguf(source, target, form)
    source, kind = _model_folder(source)
    layouts = known_layouts()
    is_public = kind in layouts
    if kind is not None and form == (layouts[kind][1].form if is_public else "regard"):
        raise UsageError(f"the model is in the form {to!r} already", where=str(path), mend="give another form")
    if kind is None or translates(kind) or plain.task(source) == "translate":
        return _pairs(source, target, form, is_public=is_public)
    if plain.task(source) in (Generator.task, Filler.task):
        return _text(source, target, form)
    return _plain(source, target, form)


def rewrite(path: str | Path, out: str | Path, change: Callable[[nn.Module], None]) -> Converted:
    """Write a model with other weights: in the form that it has, but GGUF and public encoder–decoders in our own.

    Args:
        path: As for :func:`convert`.
        out: Likewise.
        change: Changes the model's weights; what it refuses is not written.

    Returns:
        What was written.

    Raises:
        UsageError: Something is at ``out``.
        DataError: There is no model.
        ResourceError: The disk is full, a permission or an optional package is missing.
    """
    source, target = on_disk(path), new_folder(out)
    if source.is_file():
        return _gguf(source, target, "regard", change)
    source, kind = _model_folder(source)
    is_pairs = translates(kind)
    if not is_pairs and kind is not None and (kind != plain.MODEL_TYPE or plain.task(source) == "none"):
        return _plain(source, target, "regard" if kind == plain.MODEL_TYPE else known_layouts()[kind][1].form, change)
    product = load_public(source, keep_precision=True)[0] if is_pairs else folders.load(source)
    change(product.model)
    with folder_aside(target) as new:
        folders.save(new, product)
        return _described(new, target, _family(product.model), product.model, [])


def new_folder(out: str | Path) -> Path:
    """Find where a new folder is to be.

    Args:
        out: The path; nothing is there, or an empty folder.

    Returns:
        It from the root on.

    Raises:
        UsageError: Something is there.
    """
    target = Path(os.path.abspath(out))
    with reading(target):
        if os.path.lexists(target) and not (target.is_dir() and not target.is_symlink() and not any(target.iterdir())):
            raise UsageError("something is there already", where=str(out), mend="give a new folder")
    return target


def _model_folder(source: Path) -> tuple[Path, str | None]:
    """Find the folder with the model in a run's folder, and who wrote it."""
    with reading(source):
        source = source / "model" if (source / "model" / "config.json").exists() else source
        kind = plain.model_type(source)
    if kind is not None and kind not in (plain.MODEL_TYPE, *known_layouts()):
        known = ", ".join(sorted([plain.MODEL_TYPE, *known_layouts()]))
        raise FormatError(f"model_type is {kind[:40]!r}", where=str(source / "config.json"), mend=f"known: {known}")
    return source, kind


def _unchanged(model: nn.Module) -> None:
    pass


def _gguf(source: Path, target: Path, to: Form, change: Callable[[nn.Module], None] = _unchanged) -> Converted:
    """Convert a GGUF file."""
    loaded = read_gguf(source)
    change(loaded.model)
    with folder_aside(target) as new:
        written = framed(loaded.tokenizer.to_str(), () if loaded.start_id is None else [loaded.start_id])
        notes = _from_gguf(new, to, loaded, written)
        return _described(new, target, "llama", loaded.model, notes)


def _pairs(source: Path, target: Path, to: Form, *, is_public: bool) -> Converted:
    """Convert what translates."""
    notes: list[str] = []
    if is_public:
        translator, notes = load_public(source, keep_precision=True)
    else:
        translator = folders.load_as(Translator, source)
    name = _family(translator.model)
    if to != "regard":
        layout_for(name, translator.model.config, to)  # what has no such form is told before anything is written
    with folder_aside(target) as new:
        if to == "regard":
            folders.save(new, translator)
        else:
            notes = [*notes, *_write_public(new, name, translator)]
        return _described(new, target, name, translator.model, notes)


def _text(source: Path, target: Path, to: Form) -> Converted:
    """Convert a trained language model to a public folder."""
    product = folders.load(source)
    name = _family(product.model)
    layout_for(name, product.model.config, to)
    tokenizer = product.tokenizers()["tokenizer.json"].to_json()
    described: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if isinstance(product, Filler):
        ids: dict[str, Any] = {}
        described |= {"mask_token": product.mask, "cls_token": START, "sep_token": END}
    else:
        ends = product.end_ids if isinstance(product, Generator) else ()
        starts = product.start_id if isinstance(product, Generator) else None
        ids = {"bos_token_id": starts, "eos_token_id": _ends(ends)}
        tokenizer = framed(tokenizer, () if starts is None else [starts])
    with folder_aside(target) as new:
        write_folder(new, name, product.model, ids, to)
        write_aside(new / "tokenizer.json", tokenizer)
        write_aside(new / "tokenizer_config.json", json_bytes(described))
        return _described(new, target, name, product.model, [])


def _ends(ids: Sequence[int]) -> int | list[int] | None:
    """Say which tokens end a text as config.json has it: none, one, or a list."""
    return list(ids) if len(ids) > 1 else next(iter(ids), None)


def _write_public(new: Path, family: str, translator: Translator) -> list[str]:
    """Write a translator as a public folder."""
    tokenizer, options, model = translator.tokenizer, translator.options, translator.model
    start, end = tokenizer.target.start_id, tokenizer.target.end_id
    longest = translator.max_tokens + options.max_extra_tokens + 1
    if model.config.max_len < translator.max_tokens:  # their tables of sines end somewhere
        model.config = replace(model.config, max_len=longest)
    ids = {"pad_token_id": start, "decoder_start_token_id": start, "eos_token_id": end}
    write_folder(new, family, model, ids)
    generation: dict[str, Any] = {
        **ids,
        "max_length": min(longest, model.config.max_len),
        "num_beams": options.beam,
        "length_penalty": options.length_penalty,
    }
    if options.beam > 1:  # without beams it is none of their settings
        generation["early_stopping"] = next(own for own, ours in EARLY.items() if ours == options.early_stopping)
    if options.banned:
        generation["bad_words_ids"] = [[token] for token in options.banned]
    if options.repetition_penalty != 1.0:
        generation["repetition_penalty"] = options.repetition_penalty
    write_aside(new / "generation_config.json", json_bytes(generation))
    folders.save_pair_tokenizer(new, tokenizer)
    described: dict[str, Any] = {"model_max_length": translator.max_tokens}
    source, target = tokenizer.source, tokenizer.target
    if isinstance(source, Pieces) and isinstance(target, Pieces):
        (new / "pieces.json").unlink()
        names = {number: piece for piece, number in target.vocabulary.items()}
        described |= {"tokenizer_class": "MarianTokenizer", "unk_token": UNKNOWN, "eos_token": names.get(end, END)}
        described |= {"pad_token": names.get(start, "<pad>"), "separate_vocabs": source.vocabulary != target.vocabulary}
    elif isinstance(source, Tokenizer) and tokenizer.shared:
        write_aside(new / "tokenizer.json", framed(source.to_json(), (), [source.end_id]))
        described |= {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": START}
    write_aside(new / "tokenizer_config.json", json_bytes(described))
    notes = _notes(options)
    if not (isinstance(source, Pieces) or tokenizer.shared):
        notes.append("the two tokenizers stay in files of regard's own names: the form has no place for two")
    return notes


def _notes(options: DecodeOptions) -> list[str]:
    if options.beam == 1 or options.length_penalty == 0 or options.length_offset == 0:
        return []
    return ["the form divides by length^α, not by ((5 + length) / 6)^α: among beams another output may come first"]


def _plain(source: Path, target: Path, to: Form, change: Callable[[nn.Module], None] = _unchanged) -> Converted:
    """Convert a model that no task of ours has trained."""
    notes: list[str] = []
    if plain.model_type(source) != plain.MODEL_TYPE:
        name, model, notes = read_folder(source)
        more = read_config(source / "config.json")
    elif plain.task(source) != "none" and sees(source):  # what a task trained of images is the family's own model
        name, model = plain.load_model(source)
        more = _told(source, to)
    else:
        name, model = plain.load_plain(source)
        more = read_config(source / plain.KEPT_CONFIG) if (source / plain.KEPT_CONFIG).is_file() else {}
    if to != "regard":
        layout_for(name, model.config, to)
    change(model)
    with folder_aside(target) as new:
        if to == "regard":
            plain.save_plain(new, name, model)
            write_aside(new / plain.KEPT_CONFIG, json_bytes(more))
        else:
            _write_plain(new, name, model, more, to)
        _copy_beside(source, new)
        return _described(new, target, name, model, notes)


def _told(source: Path, to: Form) -> dict[str, Any]:
    """Say in a form's own words what a run knows besides: names of classes, how images are normalized."""
    names = (read_config(source / "config.json").get("labels") or {}).get("names") or []
    if to == "timm":
        pixels = Pixels.read(source)
        size = [len(pixels.mean), *pixels.size]
        normalized = {"input_size": size, "mean": list(pixels.mean), "std": list(pixels.std)}
        cut = {"crop_mode": "center" if pixels.fit == "crop" else "squash", "crop_pct": round(pixels.share, 6)}
        normalized = {**normalized, **cut, "interpolation": pixels.resample, "num_classes": len(names)}
        return {"pretrained_cfg": normalized, **({"label_names": names} if names else {})}
    numbers = {str(number): name for number, name in enumerate(names)}
    return {"id2label": numbers, "label2id": {name: int(n) for n, name in numbers.items()}} if names else {}


def _write_plain(new: Path, family: str, model: nn.Module, more: Mapping[str, Any], to: Form) -> None:
    """Write a public folder; of an older config.json stays what neither describes the tensors nor selects code."""
    had = layout_name(more)
    layout, older = layout_for(family, model.config, to, had), known_layouts().get(had)
    fixed = {*layout.write(model.config), "model_type", "architectures", "dtype", "torch_dtype", "auto_map"}
    usual = fixed - set(layout.labels)
    kept = {key: value for key, value in more.items() if key not in usual or key.endswith("_token_id")}
    kept = {} if older is not None and older[1].form != to else kept
    write_folder(new, family, model, kept, to, had)


def _from_gguf(new: Path, to: Form, loaded: Loaded, written: str) -> list[str]:
    special = loaded.special_ids
    numbers = {"bos_token_id": None, **special, "eos_token_id": _ends(loaded.end_ids)}
    if to != "regard":
        write_folder(new, "llama", loaded.model, numbers, to)
    else:
        plain.save_plain(new, "llama", loaded.model)
        write_aside(new / plain.KEPT_CONFIG, json_bytes(numbers))
    write_aside(new / "tokenizer.json", written)
    known = {key.removesuffix("_id"): loaded.tokenizer.id_to_token(n) for key, n in special.items()}
    write_aside(new / "tokenizer_config.json", json_bytes({"tokenizer_class": "PreTrainedTokenizerFast", **known}))
    return ["weights are in float32: those of the file were dequantized"]


def _copy_beside(source: Path, new: Path) -> None:
    # An unknown module is refused here too: its weights would be lost.
    modules = [f"{place}/config.json" for kind, place in read_modules(source) if kind == "Pooling"]
    for name in dict.fromkeys([*BESIDE, *modules]):
        path = source / name
        with reading(path):
            if not path.is_file():
                continue
            if path.stat().st_size > BESIDE_CAP_BYTES:
                raise FormatError(f"over {BESIDE_CAP_BYTES:,} bytes", where=str(path))
            content = path.read_bytes()
        (new / name).parent.mkdir(exist_ok=True)
        write_aside(new / name, content)


def _family(model: nn.Module) -> str:
    found = (name for name, known in families().items() if isinstance(model.config, known.config))
    name = next(found, None)
    if name is None:
        raise DataError(f"a {type(model).__name__} is of no family that is known here")
    return name


def _described(new: Path, target: Path, family: str, model: nn.Module, notes: list[str]) -> Converted:
    tensors = len(list_tensors(new / "model.safetensors"))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    size_bytes = sum(path.stat().st_size for path in new.rglob("*") if path.is_file())
    return Converted(target, family, tensors, parameters, size_bytes, tuple(notes))
