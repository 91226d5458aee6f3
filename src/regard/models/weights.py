"""Tensors in safetensors files and in modules.

The files are read and written here, not by their library, for three reasons: where a checkpoint names a hash, the file
is hashed in the same pass, so that the bytes which were verified are the bytes which are used; a full disk is told from
a bad file; and all that a header claims is checked before memory is taken. Nothing is ever unpickled.

A model that is loaded for use is read once: its file is mapped, its modules are built without drawing weights for them,
and each parameter becomes the place in the file where its numbers stand, as long as kind and shape fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.positions import sinusoidal
from regard.errors import CheckpointError, ConfigError, ResourceError, UsageError
from regard.files import Sink, Source, json_bytes, written_aside
from regard.models.empty import NoDraws, without_memory

_DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8},
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER_BYTES = 1 << 24  # room for 100,000 tensors
_MAX_DIMS = 64
_MAPPED_BYTES = 1 << 18  # from here on a tensor is mapped instead of read


# --------------------------------------------------------------------------------------------------------------- files


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file, whole or not at all.

    Args:
        path: The file to make or to replace; its folder exists.
        tensors: By name, on any device; those that share memory are written once for each name.
        metadata: Added to ``{"format": "pt"}``; None for nothing.

    Raises:
        ResourceError: The disk is full or read-only, a permission is missing, or the like.
        CheckpointError: A tensor's dtype has no name in the format.
    """
    with written_aside(path) as sink:
        put_tensors(sink, tensors, metadata or {}, where=str(path))


def put_tensors(sink: Sink, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, where: str) -> None:
    """Write the content of a safetensors file.

    Args:
        sink: The file.
        tensors: By name, on any device.
        metadata: Added to ``{"format": "pt"}``.
        where: The file's name in errors.

    Raises:
        CheckpointError: A tensor's dtype has no name in the format.
    """
    # The widest first: every tensor then begins at a multiple of its item size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    end = 0
    for name, tensor in ordered:
        if tensor.dtype not in _DTYPE_NAMES:
            raise CheckpointError(f"tensor {name!r} is {tensor.dtype}, which cannot be saved", where=where)
        begin, end = end, end + tensor.numel() * tensor.element_size()
        dtype_name, shape = _DTYPE_NAMES[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": dtype_name, "shape": shape, "data_offsets": [begin, end]}
    text = json_bytes(header)
    text += b" " * (-len(text) % 8)
    sink.write(len(text).to_bytes(8, "little") + text)
    for _, tensor in ordered:
        sink.write(_bytes_of(tensor.detach().cpu().contiguous()))


def read_tensors(path: Path, *, cap_bytes: int | None = None) -> dict[str, Tensor]:
    """Read a safetensors file from anywhere. All that its header claims is checked before memory is taken.

    Args:
        path: The file; a link is followed.
        cap_bytes: Refuse a larger file; None for any size.

    Returns:
        Tensors by name on the CPU, each with memory of its own, in the order of their bytes.

    Raises:
        CheckpointError: It is missing, over the cap or not safetensors: a pickle, truncated, overlapping, …
        ResourceError: It may not be read, or memory is short.
    """
    with Source(path, follow_links=True) as source:
        if cap_bytes is not None and source.size_bytes > cap_bytes:
            raise source.error(f"holds {source.size_bytes} bytes, over the limit of {cap_bytes}")
        return take_tensors(source)


def map_tensors(path: Path) -> dict[str, Tensor]:
    """Map a safetensors file from anywhere: nothing large is copied, pages come from the disk when they are used.

    Who writes to a tensor has a copy of that page, and the file stays as it is. As with every mapped file, whoever
    changes it must put a new file in its place, not write into the old one; so does all that is written here.

    Args:
        path: The file; a link is followed.

    Returns:
        As :func:`read_tensors`. Each large tensor is mapped by itself: who drops it gives its memory back.

    Raises:
        CheckpointError: As :func:`read_tensors`.
        ResourceError: It may not be read, or memory is short.
    """
    tensors: dict[str, Tensor] = {}
    with Source(path, follow_links=True) as source:
        for name, dtype, shape, begin in _checked_header(source):
            count = math.prod(shape)
            # A small one is cheaper to read; and numbers that stand askew cannot be used where they lie.
            if count * dtype.itemsize < _MAPPED_BYTES or begin % dtype.itemsize:
                tensors[name] = _taken(source, name, dtype, shape)
            else:
                tensors[name] = torch.frombuffer(source.map(count * dtype.itemsize), dtype=dtype).view(shape)
    return tensors


def list_tensors(path: Path) -> list[str]:
    """Say what a safetensors file holds, from its checked header.

    Args:
        path: The file; a link is followed.

    Returns:
        The names of its tensors, in the order of their bytes.

    Raises:
        CheckpointError: It is missing or not safetensors.
    """
    with Source(path, follow_links=True) as source:
        return [name for name, *_ in _checked_header(source)]


def take_tensors(source: Source) -> dict[str, Tensor]:
    """Read the content of a safetensors file.

    Args:
        source: The file, of which nothing was read yet.

    Returns:
        As `read_tensors`.

    Raises:
        CheckpointError: It is not safetensors.
        ResourceError: Memory is short.
    """
    return {name: _taken(source, name, dtype, shape) for name, dtype, shape, _ in _checked_header(source)}


def _taken(source: Source, name: str, dtype: torch.dtype, shape: list[int]) -> Tensor:
    """Read the next tensor into memory of its own."""
    try:
        tensor = torch.empty(shape, dtype=dtype)
    except RuntimeError as error:
        raise ResourceError(f"no memory for tensor {_short(name)}", where=str(source.path)) from error
    source.fill(_bytes_of(tensor))
    return tensor


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _checked_header(source: Source) -> list[tuple[str, torch.dtype, list[int], int]]:
    """Names, dtypes, shapes and places in the order of their bytes, which fill the file without gap or overlap."""
    head = bytearray(8)
    source.fill(memoryview(head))
    header_bytes = int.from_bytes(head, "little")
    data_bytes = source.size_bytes - 8 - header_bytes
    if data_bytes < 0 and head.startswith((b"PK\3\4", b"\x80")):
        raise source.error("is a pickle with the name of a safetensors file; pickles run code, and none is read")
    if data_bytes < 0:
        raise source.error(f"is truncated or no safetensors file: it begins with a header of {header_bytes} bytes")
    header = source.json(header_bytes, cap_bytes=_MAX_HEADER_BYTES, what="the header")
    header.pop("__metadata__", None)
    spans = []
    for name, entry in header.items():
        dtype_name, shape, begin, end = _checked_entry(source, name, entry)
        if end > data_bytes:
            raise source.error(f"tensor {_short(name)} ends after the file: it is truncated or damaged")
        spans.append((begin, end, name, _DTYPES[dtype_name], shape))
    position = 0
    for begin, end, name, _, _ in sorted(spans, key=lambda span: span[:2]):
        if begin != position:
            fault = "overlaps the one before" if begin < position else "begins after a gap"
            raise source.error(f"tensor {_short(name)} {fault}")
        position = end
    if position != data_bytes:
        raise source.error(f"holds {data_bytes - position} bytes that belong to no tensor")
    start = 8 + header_bytes
    return [
        (name, dtype, shape, start + begin) for begin, _, name, dtype, shape in sorted(spans, key=lambda span: span[:2])
    ]


def _checked_entry(source: Source, name: str, entry: Any) -> tuple[str, list[int], int, int]:
    """A tensor's dtype, shape and offsets, which are possible and agree with each other."""
    match entry:
        case {"dtype": str(dtype_name), "shape": [*shape], "data_offsets": [begin, end], **rest} if not rest:
            numbers = [*shape, begin, end]
        case _:
            raise source.error(f"tensor {_short(name)} is not described by dtype, shape and data_offsets")
    if dtype_name not in _DTYPES:
        raise source.error(f"tensor {_short(name)} has the unknown dtype {_short(dtype_name)}")
    if len(shape) > _MAX_DIMS or not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
        raise source.error(f"tensor {_short(name)} has impossible numbers in its shape or offsets: {_short(numbers)}")
    item_bytes = _DTYPES[dtype_name].itemsize
    # Zeros apart, because torch multiplies the sizes of an empty tensor too.
    if math.prod(shape) * item_bytes != end - begin or math.prod(filter(None, shape)) >= 1 << 60:
        cause = f"tensor {_short(name)} has {end - begin} bytes, which do not make {dtype_name} {_short(shape)}"
        raise source.error(cause)
    return dtype_name, shape, begin, end


def _short(value: object) -> str:
    """What a stranger wrote, on one short line."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# ------------------------------------------------------------------------------------------------------------- modules


def gather(module: nn.Module) -> dict[str, Tensor]:
    """Copy a module's weights, for `fit` to put back.

    Args:
        module: On any device.

    Returns:
        Parameters and persistent buffers by name, contiguous on the CPU; tied ones once, under the first name.

    Raises:
        CheckpointError: The module keeps something in its state that is not a tensor.
    """
    return {
        names[0]: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for names, tensor in _by_memory(module)
    }


def _by_memory(module: nn.Module) -> list[tuple[list[str], Tensor]]:
    """Parameters and persistent buffers, each with all of its names; tied is: the same memory seen the same way."""
    found: dict[object, tuple[list[str], Tensor]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"{name!r} is a {type(tensor).__name__}, and only tensors can be saved")
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        key = place if tensor.data_ptr() else id(tensor)  # empty tensors, and those on the meta device, have no memory
        found.setdefault(key, ([], tensor))[0].append(name)
    return list(found.values())


def fit(tensors: Mapping[str, Tensor], module: nn.Module, *, where: str) -> None:
    """Put weights into a module: every one, or none. Tied weights stay tied, dtypes and devices stay the module's.

    Args:
        tensors: By name; of tied weights any name will do, and where several are there they have to agree.
        module: On any device.
        where: What the tensors were read from, for errors.

    Raises:
        CheckpointError: A tensor is missing, unknown, of another shape or kind of number, or not finite.
    """
    with torch.no_grad():
        for target, value in _matched(tensors, module, where):
            target.copy_(value)


def lay_by_rows(module: nn.Module) -> None:
    """Have the numbers of every parameter stand row by row, as optimizers and others expect who see it as a vector.

    Args:
        module: Some of its parameters may be views, as of a file in which they lie turned.
    """
    for parameter in module.parameters():
        parameter.data = parameter.data.contiguous()


def _matched(tensors: Mapping[str, Tensor], module: nn.Module, where: str) -> list[tuple[Tensor, Tensor]]:
    """Find for each of a module's tensors the one that goes there; every one fits, or it is an error."""
    slots = _by_memory(module)
    known = {name: target for names, target in slots for name in names}
    shapes = {name: (list(value.shape), list(known[name].shape)) for name, value in tensors.items() if name in known}
    faults = {
        "missing": [repr(names[0]) for names, _ in slots if not tensors.keys() & names],
        "unknown": [_short(name) for name in tensors if name not in known],
        "of another shape": [f"{name!r} {has}, not {wants}" for name, (has, wants) in shapes.items() if has != wants],
    }
    if any(faults.values()):
        lists = [f"{len(items)} {fault}: {_some(items)}" for fault, items in faults.items() if items]
        raise CheckpointError(f"does not fit the model; {'; '.join(lists)}", where=where)
    values: list[tuple[Tensor, Tensor]] = []
    for names, target in slots:
        first, *others = [name for name in names if name in tensors]
        _check_numbers(first, tensors[first], target, where)
        for other in others:
            if tensors[other].dtype != tensors[first].dtype or not torch.equal(tensors[other], tensors[first]):
                raise CheckpointError(f"tensors {first!r} and {other!r} differ, but the model ties them", where=where)
        values.append((target, tensors[first]))
    return values


def count_parameters(build: Callable[[Any], nn.Module], config: Any) -> int:
    """Count a model's parameters from its real modules, without memory for them.

    Args:
        build: Makes the model.
        config: Its settings.

    Returns:
        How many there are; tied ones count once.
    """
    return sum(parameter.numel() for parameter in without_memory(build, config).parameters())


def build_like(
    build: Callable[[Any], nn.Module], config: Any, tensors: Mapping[str, Tensor], folder: Path
) -> nn.Module:
    """Build a model and fill it; sizes that the tensors do not bear out are refused before memory is taken for them.

    Args:
        build: Makes the model.
        config: Its settings, from anywhere.
        tensors: Its weights; the model has their dtype.
        folder: Where both come from, for errors; or the one file that holds them.

    Returns:
        The model.

    Raises:
        ConfigError: Settings do not go together.
        CheckpointError: Settings and tensors do not.
    """
    where, said = (str(folder / name if folder.is_dir() else folder) for name in ("model.safetensors", "config.json"))
    try:
        model = without_memory(build, config)
    except (UsageError, ConfigError) as error:  # settings that do not go together
        raise ConfigError(error.what, where=error.where or said, mend=error.mend) from error
    # Parameters, and persistent buffers, which may be as large.
    wanted = sum(tensor.numel() for _, tensor in _by_memory(model))
    held = sum(tensor.numel() for tensor in tensors.values())
    if wanted > 2 * held + 1_000_000:
        raise CheckpointError(f"the config describes {wanted:,} numbers, the file holds {held:,}", where=where)
    with NoDraws():
        model = build(config)
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) == 1 and (dtype := dtypes.pop()).is_floating_point:
        # Numbers that the file will bring are not converted, only their room; tables that are computed are.
        for tensor in model.state_dict(keep_vars=True).values():
            if tensor.is_floating_point() and tensor.dtype != dtype:
                tensor.data = torch.empty(tensor.shape, dtype=dtype)
        model = model.to(dtype)
    placed: set[tuple[int, torch.dtype]] = set()
    with torch.no_grad():
        for target, value in _matched(tensors, model, where):
            place = (value.data_ptr(), value.dtype)
            if value.dtype == target.dtype and value.device == target.device and place not in placed:
                target.data = value
                placed.add(place)  # memory is shared by tied weights alone
            else:
                target.copy_(value)
    return model


def _check_numbers(name: str, value: Tensor, target: Tensor, where: str) -> None:
    """The module's dtype can take the tensor's numbers, and they are finite there."""
    if value.dtype != target.dtype and not (value.is_floating_point() and target.is_floating_point()):
        raise CheckpointError(f"tensor {name!r} is {value.dtype}, and the model's is {target.dtype}", where=where)
    if value.is_floating_point() and not _is_finite(value.to(target.dtype)):
        cause = f"tensor {name!r} holds weights that are not finite"
        raise CheckpointError(cause if target.dtype == value.dtype else f"{cause} in {target.dtype}", where=where)


def _is_finite(value: Tensor) -> bool:
    """Say whether all numbers are finite, in one pass without memory where they are."""
    wide = torch.promote_types(value.dtype, torch.float32)
    # What is not finite stays so in a sum; but a sum of what is finite may pass the greatest number.
    return bool(value.sum(dtype=wide).isfinite()) or bool(value.isfinite().all())


def _some(items: list[str]) -> str:
    """The first few of a list, and how many more there are."""
    more = len(items) - 8
    return f"{', '.join(items[:8])}{f' and {more} more' if more > 0 else ''}"


def check_sines(theirs: Mapping[str, Tensor], names: tuple[str, ...], width: int, where: str) -> None:
    """Refuse a file's tables of positions that are not the sines and cosines that are computed here.

    Args:
        theirs: The file's tensors.
        names: What the tables' names end with.
        width: Of a table: sines, then cosines.
        where: The folder, for messages.

    Raises:
        CheckpointError: A table holds something else.
    """
    for name, table in theirs.items():
        if name.endswith(names):
            slack = 1e-3 if table.dtype in (torch.float32, torch.float64) else 1e-2
            if table.dim() == 2 and table.shape[1] == width and table.is_floating_point():
                wanted = sinusoidal(torch.arange(len(table)), width, "halves")
                if not len(table) or (table.float() - wanted).abs().max() < slack:
                    continue
            raise CheckpointError(f"{name} holds other positions than sines and cosines", where=where)
