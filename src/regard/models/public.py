"""Public checkpoints: folders with config.json and safetensors files, as the Hugging Face hub has them, both ways.

Strict: every tensor of the file is used or known to carry nothing, every tensor of ours comes from the file, and a
setting that would make another function of the model is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.errors import CheckpointError, DataError, FormatError
from regard.files import json_bytes, read_config, write_aside
from regard.models import registry
from regard.models.values import choose as choose
from regard.models.values import count as count
from regard.models.values import expect as expect
from regard.models.values import flag as flag
from regard.models.values import layout_name
from regard.models.values import number as number
from regard.models.weights import build_like, gather, map_tensors, write_tensors


@dataclass(frozen=True)
class Rule:
    """One of their tensors, as made of ours.

    Attributes:
        theirs: Its name; ``{i}`` numbers the layers.
        ours: Our name, or several: theirs is then ours one after the other along the output dimension.
        transposed: Theirs has the input dimension first.
        outside: It stands beside the model's body, so its name has no prefix: heads.
        copies: Other names under which a file may hold the same tensor, again or instead.
        shape: Its shape, where dimensions that ours has in one are several there: all but the first become one of ours,
            before theirs is transposed. Empty where it has our dimensions.
        layers: The setting that says how many ``{i}`` there are.
        row: Theirs has one more dimension, of size 1, in front.
        alternating: Heads, in whose rows theirs has side by side what ours has half a head apart: rotary pairs; 0 for
            rows in our order.
    """

    theirs: str
    ours: str | tuple[str, ...]
    transposed: bool = False
    outside: bool = False
    copies: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    layers: str = "num_layers"
    row: bool = False
    alternating: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        """Our names."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours


Form = Literal["huggingface", "timm"]


@dataclass(frozen=True)
class Layout:
    """How a family's public checkpoints are laid out.

    Attributes:
        model_type: What config.json calls the layout; see :func:`regard.models.values.layout_name`.
        architecture: What it calls the model with the head that our settings ask for.
        prefix: What names of the body begin with where there is a head; a file of the body alone has none.
        rules: The tensors, for our settings.
        head: Their name of the output table, which a tied checkpoint may leave out; empty where none is ever tied.
        embed: Their name of the table that it is tied to; empty likewise.
        buffers: Ends of names that carry nothing: masks and the like, which every model makes anew.
        read: From config.json to our settings; raises FormatError for what we have not.
        write: From our settings to config.json.
        fits: Whether it can hold a model of our settings; a family writes the first layout that can.
        lacks: What of our settings it cannot hold, in words; empty where it holds them all.
        adapt: From our settings and tensors to those of the same function that it can hold.
        tables: Tensors that carry nothing, and that their reader asks for all the same.
        check: Refuses tensors of the file that carry nothing only as long as they hold what every model makes anew.
        told: From our settings and the file's tensors to our settings, where config.json leaves open what tensors tell.
        spellings: Parts of names as some files have them, and as the rules have them.
        form: Whose folders they are; the config.json of ``timm`` is all that ``write`` says.
        labels: Entries of config.json that are its user's words, such as names of classes.
    """

    model_type: str
    architecture: Callable[[Any], str]
    prefix: str
    rules: Callable[[Any], Iterable[Rule]]
    head: str
    embed: str
    buffers: tuple[str, ...]
    read: Callable[[Mapping[str, Any], str], Any]
    write: Callable[[Any], dict[str, Any]]
    fits: Callable[[Any], bool] = lambda config: True
    lacks: Callable[[Any], str] = lambda config: ""
    adapt: Callable[[Any, dict[str, Tensor]], tuple[Any, dict[str, Tensor]]] = lambda config, tensors: (config, tensors)
    tables: Callable[[Any], dict[str, Tensor]] = lambda config: {}
    check: Callable[[Any, Mapping[str, Tensor], str], None] = lambda config, theirs, where: None
    told: Callable[[Any, Mapping[str, Tensor]], Any] = lambda config, theirs: config
    spellings: tuple[tuple[str, str], ...] = ()
    form: Form = "huggingface"
    labels: tuple[str, ...] = ()

    def expanded(self, config: Any) -> list[Rule]:
        """Write the rules out for every layer.

        Args:
            config: Our settings, with the numbers of layers.

        Returns:
            Rules with full names.
        """
        every: list[Rule] = []
        for rule in self.rules(config):
            for i in range(getattr(config, rule.layers)) if "{i}" in rule.theirs else (0,):
                parts = tuple(part.replace("{i}", str(i)) for part in rule.parts)
                every.append(replace(rule, theirs=rule.theirs.replace("{i}", str(i)), ours=parts))
        return every


def describe(folder: Path) -> tuple[registry.Family, Any]:
    """Say of which family and settings a public folder's model is, without its weights.

    Args:
        folder: With config.json.

    Returns:
        The family, and its settings.

    Raises:
        DataError: There is no config.json.
        FormatError: The family, or a setting, is none that we have.
    """
    where = str(folder / "config.json")
    values = read_config(folder / "config.json")
    known, layout = _layout_of(values, where)
    return known, layout.read(values, where)


def both(theirs: str, ours: str, **how: Any) -> Iterator[Rule]:
    """Give the rules of a layer that has a weight and a bias.

    Args:
        theirs: Its name there.
        ours: Its name here.
        **how: Further fields of the rules.

    Yields:
        One rule each.
    """
    for end in ("weight", "bias"):
        yield Rule(f"{theirs}.{end}", f"{ours}.{end}", **how)


def read_folder(folder: Path) -> tuple[str, nn.Module, list[str]]:
    """Build a model from a public folder.

    Args:
        folder: With config.json and model.safetensors, or its parts and their index.

    Returns:
        The family, the model with the folder's weights in their own precision, and warnings. Weights that lie turned in
        the file do so here: see :func:`regard.models.weights.lay_by_rows`.

    Raises:
        DataError: A file is missing.
        FormatError: The family, or a setting, is none that we have.
        CheckpointError: Tensors are missing, left over or of another shape.
    """
    where = str(folder / "config.json")
    values = read_config(folder / "config.json")
    family, layout = _layout_of(values, where)
    config = layout.read(values, where)
    registry.check_bounds(config, where)
    theirs = {_spelt(layout, name): tensor for name, tensor in _read_shards(folder).items()}
    config = layout.told(config, theirs)
    warnings: list[str] = []
    head, embed = (_found(theirs, name, layout.prefix) for name in (layout.head, layout.embed))
    if head is not None and embed is not None and config.tie and not torch.equal(theirs[head], theirs[embed]):
        config = replace(config, tie=False)
        warnings.append(
            f"{folder}: the output table differs from the embedding it is said to be tied to; both are kept"
        )
    layout.check(config, theirs, str(folder))
    weights = from_public(layout, config, theirs, str(folder))
    return family.name, build_like(family.build, config, weights, folder), warnings


def write_folder(
    folder: Path,
    family: str,
    model: nn.Module,
    more: Mapping[str, Any] | None = None,
    form: str = "huggingface",
    kept: str = "",
) -> None:
    """Write a model as a public folder.

    Args:
        folder: Where; it exists.
        family: The model's family.
        model: The model.
        more: Further entries of config.json, such as the numbers of special tokens; None for none.
        form: Whose folder it is.
        kept: As for :func:`layout_for`.

    Raises:
        DataError: The family has no public layout, or none for these settings.
    """
    layout = layout_for(family, model.config, form, kept)
    config, tensors = layout.adapt(model.config, gather(model))
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    values = {"model_type": layout.model_type, "architectures": [layout.architecture(config)], "dtype": dtype}
    values = (values if form == "huggingface" else {}) | layout.write(config)
    write_aside(folder / "config.json", json_bytes(values | dict(more or {})))
    write_tensors(folder / "model.safetensors", to_public(layout, config, tensors))


def layout_for(family: str, config: Any, form: str = "huggingface", kept: str = "") -> Layout:
    """Find the public layout that can hold a model.

    Args:
        family: The model's family.
        config: Its settings.
        form: Whose folders.
        kept: ``model_type`` of the layout that it had, which it gets again where that can hold it.

    Returns:
        The family's first layout that can.

    Raises:
        DataError: There is none; what stands in the way is said.
    """
    known = [layout for layout in registry.family(family).public if layout.form == form]
    known.sort(key=lambda layout: layout.model_type != kept)
    fitting = next((layout for layout in known if layout.fits(config) and not layout.lacks(config)), None)
    if fitting is not None:
        return fitting
    if not known:
        other = f" in {form}'s form" if registry.family(family).public else ""
        raise DataError(f"a {family!r} has no public layout{other}", mend="keep it in regard's own form")
    reasons = [f"{layout.model_type}: {lacks}" for layout in known if (lacks := layout.lacks(config))]
    why = f" ({'; '.join(reasons)})" if reasons else ""
    raise DataError(f"a {family!r} of these settings has no public layout{why}", mend="keep it in regard's own form")


def from_public(layout: Layout, config: Any, theirs: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """Rename, cut and turn their tensors into ours.

    Args:
        layout: The family's.
        config: Our settings.
        theirs: Their tensors by name; those that a rule took are taken out of it.
        where: The folder, for messages.

    Returns:
        Ours by name.

    Raises:
        CheckpointError: Tensors are missing or left over, or cannot be cut.
    """
    ours: dict[str, Tensor] = {}
    names = list(theirs)
    used: set[str] = set()
    missing: list[str] = []
    rules = layout.expanded(config)
    last = {name: at for at, rule in enumerate(rules) for name in (rule.theirs, *rule.copies)}
    for at, rule in enumerate(rules):
        name = _found(theirs, rule.theirs, layout.prefix) or next(
            (copy for copy in rule.copies if copy in theirs), None
        )
        if name is not None:
            used.add(name)
            used.update(copy for copy in rule.copies if copy in theirs and torch.equal(theirs[copy], theirs[name]))
        if layout.head and rule.theirs == layout.head and config.tie:
            continue
        if name is None:
            missing.append(rule.theirs)
            continue
        tensor = theirs[name]
        if rule.shape:
            if tensor.shape != rule.shape:
                what = f"{name} has shape {tuple(tensor.shape)}, not {rule.shape}"
                raise CheckpointError(what, where=where, mend="see that config.json belongs to these tensors")
            tensor = tensor.flatten(1)
        tensor = tensor.T if rule.transposed and tensor.dim() == 2 else tensor
        if rule.row and tensor.dim() >= 2 and len(tensor) == 1:
            tensor = tensor[0]
        if rule.alternating and tensor.dim() and len(tensor) % (2 * rule.alternating) == 0:
            tensor = tensor.unflatten(0, (rule.alternating, -1, 2)).transpose(1, 2).flatten(0, 2)
        if tensor.dim() == 0 or len(tensor) % len(rule.parts):
            raise CheckpointError(
                f"{name} of shape {tuple(theirs[name].shape)} is not {len(rule.parts)} parts", where=where
            )
        for part, piece in zip(rule.parts, tensor.chunk(len(rule.parts)), strict=True):
            if part in ours and not torch.equal(ours[part], piece):
                what = f"{name} differs between layers that are said to share it"
                raise CheckpointError(what, where=where)
            ours[part] = piece
        if last.get(name.removeprefix(layout.prefix), last.get(name)) == at:
            del theirs[name]  # what is not seen as it lies need not be held as well
    left = [name for name in names if name not in used and not name.endswith(layout.buffers)]
    for what, names in (("lacks", missing), ("has tensors that no layer here takes:", left)):
        if names:
            shown = ", ".join(sorted(names)[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            raise CheckpointError(
                f"the checkpoint {what} {shown}", where=where, mend=f"give a whole {layout.architecture(config)}"
            )
    return ours


def to_public(layout: Layout, config: Any, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn our tensors into theirs.

    Args:
        layout: The family's.
        config: Our settings.
        ours: Our tensors by name.

    Returns:
        Theirs by name; a tied output table is left out.
    """
    theirs: dict[str, Tensor] = {}
    rules = layout.expanded(config)
    prefix = layout.prefix if any(rule.outside for rule in rules) else ""
    for rule in rules:
        if layout.head and rule.theirs == layout.head and config.tie:
            continue
        whole = torch.cat([ours[part] for part in rule.parts])
        name = rule.theirs if rule.outside else prefix + rule.theirs
        if rule.alternating:
            whole = whole.unflatten(0, (rule.alternating, 2, -1)).transpose(1, 2).flatten(0, 2)
        whole = whole[None] if rule.row else whole
        whole = whole.T if rule.transposed and whole.dim() == 2 else whole
        theirs[name] = (whole.reshape(rule.shape) if rule.shape else whole).contiguous()
        if rule.copies and not config.tie:  # what is not tied, a reader does not make anew
            theirs |= {copy: theirs[name].clone() for copy in rule.copies}
    dtype = next(iter(theirs.values())).dtype
    return theirs | {prefix + name: table.to(dtype) for name, table in layout.tables(config).items()}


def _found(tensors: Mapping[str, Tensor], name: str, prefix: str) -> str | None:
    """Give the name under which a tensor is there, with or without the prefix."""
    return next((one for one in (prefix + name, name) if one in tensors), None)


def _spelt(layout: Layout, name: str) -> str:
    """Give a tensor's name as the rules have it."""
    for other, usual in layout.spellings:
        name = name.replace(other, usual)
    return name


def known_layouts() -> dict[str, tuple[registry.Family, Layout]]:
    """Give families and layouts by the ``model_type`` of their config.json."""
    return {layout.model_type: (one, layout) for one in registry.families().values() for layout in one.public}


def _layout_of(values: Mapping[str, Any], where: str) -> tuple[registry.Family, Layout]:
    known = known_layouts()
    kind = layout_name(values)
    if kind not in known:
        raise FormatError(f"model_type is {kind[:40]!r}", where=where, mend=f"known: {', '.join(sorted(known))}")
    return known[kind]


def _read_shards(folder: Path) -> dict[str, Tensor]:
    """Read model.safetensors, or all the parts that its index names."""
    if (folder / "model.safetensors").exists():
        return map_tensors(folder / "model.safetensors")
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        mend = "give a folder with model.safetensors; older .bin files are never unpickled"
        raise DataError("no model.safetensors here", where=str(folder), mend=mend)
    parts = read_config(index).get("weight_map")
    if not isinstance(parts, dict) or not all(isinstance(name, str) and "/" not in name for name in parts.values()):
        raise FormatError("weight_map names no files of this folder", where=str(index))
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(parts.values())):
        tensors |= map_tensors(folder / name)
    if tensors.keys() != parts.keys():
        odd = sorted(tensors.keys() ^ parts.keys())[0]
        raise CheckpointError(f"the index and the parts differ in {odd}", where=str(index))
    return tensors
