"""The verb ``regard doctor``."""

from __future__ import annotations

import shutil
from importlib import metadata, util

from regard.cli.options import Json, write_json
from regard.version import __version__


def doctor(*, json: Json = False) -> None:
    """Say what this machine has and what regard makes of it."""
    import torch

    from regard.kernels import native
    from regard.places import cache_folder
    from regard.training import hardware

    device = hardware.choose("auto")
    extras = {"tensorboard": "tensorboardX", "parquet": "pyarrow"}
    found = {
        name: "yes" if util.find_spec(module) else f"no: pip install regard[{name}]" for name, module in extras.items()
    }
    folder = cache_folder()
    above = next(parent for parent in (folder, *folder.parents) if parent.exists())
    facts = {
        "regard": __version__,
        "device": hardware.describe(device),
        "cuda": f"{torch.cuda.device_count()} devices" if torch.cuda.is_available() else "none: models run on the CPU",
        "bfloat16": "fast" if _fast_bf16(device) else "slow here: leave training.precision at fp32",
        "threads": str(torch.get_num_threads()),
        "products": native.describe(),
        "tokenizers": metadata.version("tokenizers"),
        "sacrebleu": metadata.version("sacrebleu"),
        **{f"extra {name}": state for name, state in found.items()},
        "data cache": f"{folder}, {shutil.disk_usage(above).free / 1e9:,.0f} GB free",
    }
    if json:
        write_json(facts)
        return
    for name, value in facts.items():
        print(f"{name:18} {value}")


def _fast_bf16(device: object) -> bool:
    """Ask the processor or the card whether it multiplies bfloat16 itself."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_bf16_supported()
