"""Public image models, ready to be used: classes where they have a head, vectors where they have none."""

from __future__ import annotations

from pathlib import Path

import torch

from regard.files import read_config, reading
from regard.models.interface import HoldsImageEncoder, ImageEncoder
from regard.models.public import describe
from regard.tasks.images.classifier import ImageClassifier, ImageEmbedder
from regard.tasks.images.encoders import model_folder, read_encoder
from regard.tasks.labeller import Classes
from regard.tasks.plain import MODEL_TYPE, family_of_plain, model_type


def sees(folder: str | Path) -> bool:
    """Say whether a folder that no task of ours has trained holds a model of images.

    Args:
        folder: With config.json.

    Returns:
        Whether it does.

    Raises:
        FormatError: The family is none that we have.
    """
    is_plain = model_type(folder) == MODEL_TYPE
    found = family_of_plain(Path(folder)) if is_plain else describe(Path(folder))[0]
    return issubclass(found.build, ImageEncoder | HoldsImageEncoder)  # type: ignore[arg-type]


def is_of_images(path: str | Path) -> bool:
    """Say whether a folder holds a model of images, a run's folder or a public one.

    Args:
        path: The folder.

    Returns:
        Whether it does; not where there is no model.
    """
    folder = model_folder(path)
    return (folder / "config.json").is_file() and sees(folder)


def load_images(path: str | Path, device: torch.device | None = None) -> ImageClassifier | ImageEmbedder:
    """Load an image model from a public folder.

    Args:
        path: A folder with config.json, model.safetensors and how images are normalized.
        device: Where it is to run; None is the CPU.

    Returns:
        The model: a classifier, its classes named as the folder names them, or by their numbers; or an encoder.

    Raises:
        DataError: A file is missing.
        FormatError: A file is not what it claims to be.
        CheckpointError: Tensors are missing or left over.
    """
    folder = model_folder(path)
    with reading(folder):
        encoder, pixels = read_encoder(str(folder))
        if encoder.head is None:
            return ImageEmbedder(encoder, pixels, "none", device)
        count = encoder.config.num_classes
        return ImageClassifier(encoder, pixels, Classes(_names(folder, count)), device)


def _names(folder: Path, count: int) -> tuple[str, ...]:
    """Read the classes' names; where they are not there, or two are the same, the numbers stand for them."""
    values = read_config(folder / "config.json")
    of = values.get("id2label")
    names = [of.get(str(n)) for n in range(count)] if isinstance(of, dict) else values.get("label_names")
    told = [one for one in names if isinstance(one, str)] if isinstance(names, list) else []
    if len(told) != count:
        return tuple(map(str, range(count)))
    return tuple(told) if len(set(told)) == count else tuple(f"{n}: {name}" for n, name in enumerate(told))
