"""ViT folders of timm: its own random start, through our map, and back. Runs where timm is installed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.models.public import read_folder, write_folder

timm = pytest.importorskip("timm")
pytestmark = pytest.mark.peer

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4, "num_classes": 5}
CASES = {
    "an architecture as it is": ("vit_tiny_patch16_224", {"num_classes": 7}),
    "height and width, one channel": ("vit_tiny_patch16_224", {**SMALL, "img_size": (24, 32), "in_chans": 1}),
    "mean, norm behind it": ("vit_base_patch16_224", {**SMALL, "global_pool": "avg"}),
    "mean, norm before it, no class token": (
        "vit_base_patch16_224",
        {**SMALL, "global_pool": "avg", "fc_norm": False, "class_token": False, "mlp_ratio": 3.0},
    ),
    "no head, another gelu": ("vit_base_patch16_224", {**SMALL, "num_classes": 0, "act_layer": "gelu_tanh"}),
}


def images(model: Any) -> torch.Tensor:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(2, model.config.num_channels, *model.config.image_size, generator=draws, dtype=torch.float64)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_outputs_are_timm_s_and_what_we_write_it_reads(name: str, tmp_path: Path) -> None:
    architecture, change = CASES[name]
    theirs = timm.create_model(architecture, pretrained=False, **change).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    (tmp_path / "theirs").mkdir()
    timm.models._hub.save_for_hf(theirs, tmp_path / "theirs", safe_serialization=True)
    known, ours, warnings = read_folder(tmp_path / "theirs")
    assert (known, warnings) == ("vit", [])
    (tmp_path / "ours").mkdir()
    write_folder(tmp_path / "ours", known, ours, form="timm")
    back = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True)
    state, wanted = back.state_dict(), theirs.state_dict()
    assert state.keys() == wanted.keys()
    assert all(state[key].numpy().tobytes() == wanted[key].numpy().tobytes() for key in wanted)
    ours, pixels = ours.eval().double(), images(ours)
    with torch.inference_mode():
        exact = theirs.double()(pixels)
        found = ours.pool(ours(pixels)) if ours.head is None else ours.classify(pixels)
        again = back.eval().double()(pixels)
    assert exact.std() > 0.1
    assert float((found - exact).abs().max()) <= 1e-10
    assert float((again - exact).abs().max()) <= 1e-10
