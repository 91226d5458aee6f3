"""ViT and MAE against the public implementations: their random start, through our maps, layer by layer, and back."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.errors import CheckpointError, DataError, FormatError, RegardError
from regard.models.mae import Mae, MaeConfig
from regard.models.public import read_folder, write_folder
from regard.models.registry import family
from regard.models.values import class_names
from regard.models.vit import Vit, VitConfig
from regard.models.weights import count_parameters, list_tensors, read_tensors, write_tensors
from regard.tasks import plain

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 30,
    "patch_size": 6,
    "num_channels": 3,
}
DECODER = {
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 2,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 28,
}


def vit(kind: str = "ViTModel", pooler: bool = True, **change: Any) -> nn.Module:
    config = transformers.ViTConfig(**{**SIZES, **change})
    rest = {"add_pooling_layer": pooler} if kind == "ViTModel" else {}
    return getattr(transformers, kind)(config, **rest)


def mae(**change: Any) -> nn.Module:
    return transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**{**SIZES, **DECODER, **change}))


CASES = {
    "with pooler": lambda: vit(),
    "without pooler": lambda: vit(pooler=False),
    "classes": lambda: vit("ViTForImageClassification", num_labels=7),
    "large epsilon, quick gelu, one channel": lambda: vit(
        layer_norm_eps=1e-2, hidden_act="quick_gelu", num_channels=1, patch_size=5
    ),
    "what is left over is not read": lambda: vit(image_size=32, patch_size=6, hidden_act="gelu_new"),
}
MAES = {
    "plain pixels": lambda: mae(),
    "normalized pixels": lambda: mae(norm_pix_loss=True, mask_ratio=0.6, layer_norm_eps=1e-6),
    "one channel, relu": lambda: mae(num_channels=1, patch_size=5, hidden_act="relu", mask_ratio=0.5),
}


def moved(theirs: nn.Module) -> nn.Module:
    """Moved so far from its start that biases, norms and tables matter."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return theirs.eval()


def images(theirs: nn.Module, size: tuple[int, int]) -> Tensor:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(3, theirs.config.num_channels, *size, generator=draws, dtype=torch.float64)


def layers_of(theirs: nn.Module, pixels: Tensor) -> list[Tensor]:
    with torch.inference_mode():
        out = theirs(pixels.to(theirs.dtype), output_hidden_states=True, interpolate_pos_encoding=True)
        if "logits" in out:
            return [*out.hidden_states, out.logits]
        pooled = [] if out.pooler_output is None else [out.pooler_output]
        return [*out.hidden_states, out.last_hidden_state, *pooled]


def layers_of_ours(ours: Vit, pixels: Tensor) -> list[Tensor]:
    seen: list[Tensor] = []
    hooks = [one.register_forward_hook(lambda _, __, out: seen.append(out)) for one in (ours.dropout, *ours.blocks)]
    pixels = pixels.to(ours.norm.weight.dtype)
    with torch.inference_mode():
        features = ours(pixels)
        for hook in hooks:
            hook.remove()
        seen = [layer.unflatten(0, (len(pixels), -1)) for layer in seen]
        if ours.head is not None:
            return [*seen, ours.classify(pixels)]
        hidden = features.hidden_ND.unflatten(0, (len(pixels), -1))
        return [*seen, hidden, *([] if ours.pooler is None else [ours.pool(features)])]


def worst(one: list[Tensor], other: list[Tensor]) -> list[float]:
    assert [layer.shape for layer in one] == [layer.shape for layer in other]
    return [float((a.double() - b.double()).abs().max()) for a, b in zip(one, other, strict=True)]


def same_bytes(one: nn.Module, other: nn.Module) -> bool:
    state, wanted = one.state_dict(), other.state_dict()
    assert state.keys() == wanted.keys()
    return all(state[key].numpy().tobytes() == wanted[key].numpy().tobytes() for key in wanted)


def read_back(theirs: nn.Module, folder: Path) -> nn.Module:
    """They load what we wrote, without a tensor missing or left over."""
    rest = {} if not isinstance(theirs, transformers.ViTModel) else {"add_pooling_layer": theirs.pooler is not None}
    back, info = type(theirs).from_pretrained(folder, output_loading_info=True, **rest)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return back


@pytest.mark.parametrize("name", CASES)
def test_every_layer_is_theirs_and_what_we_write_they_read(name: str, tmp_path: Path) -> None:
    theirs = moved(CASES[name]())
    theirs.double().save_pretrained(tmp_path / "theirs")
    known, ours, warnings = read_folder(tmp_path / "theirs")
    assert (known, warnings) == ("vit", [])
    theirs.float().save_pretrained(tmp_path / "float32")
    _, narrow, _ = read_folder(tmp_path / "float32")
    exactly = copy.deepcopy(theirs).double()
    for size in ((30, 30), (48, 24), (37, 62), (12, 55)):
        pixels = images(theirs, size)
        exact = layers_of(exactly, pixels)
        assert len(exact) >= 3 + 2
        assert max(worst(layers_of_ours(ours.eval(), pixels), exact)) <= 1e-10, size
        mine, error = worst(layers_of_ours(narrow.eval(), pixels), exact), worst(layers_of(theirs, pixels), exact)
        assert all(m <= 2 * e + 1e-7 for m, e in zip(mine, error, strict=True)), size
    (tmp_path / "ours").mkdir()
    write_folder(tmp_path / "ours", known, narrow)
    assert same_bytes(read_back(theirs, tmp_path / "ours"), theirs)


def test_without_contrast_the_epsilon_is_that_of_the_file(tmp_path: Path) -> None:
    """Inputs of a variance below the usual epsilons: another one would give other numbers."""
    for epsilon in (1e-12, 1e-6, 1e-5):
        theirs = moved(vit(layer_norm_eps=epsilon)).double()
        with torch.no_grad():  # all that goes into the first norm has a deviation of about 1e-4
            for table in (theirs.embeddings.cls_token, theirs.embeddings.position_embeddings):
                table *= 1e-4
            theirs.embeddings.patch_embeddings.projection.bias *= 1e-4
        theirs.save_pretrained(tmp_path)
        pixels = 1e-4 * images(theirs, (30, 30))
        _, ours, _ = read_folder(tmp_path)
        assert ours.config.norm_eps == epsilon
        exact = layers_of(theirs, pixels)
        assert max(worst(layers_of_ours(ours.eval(), pixels), exact)) <= 1e-10
        for module in ours.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 3e-6
        assert max(worst(layers_of_ours(ours, pixels), exact)) > 1e-3


# ----------------------------------------------------------------------------------------------------------------- MAE


def in_two_dimensions(theirs: nn.Module, grid: tuple[int, int]) -> None:
    """Theirs stretches the decoder's table as if it were one long row; a grid has two dimensions."""
    table = theirs.decoder.decoder_pos_embed
    side = int((table.shape[1] - 1) ** 0.5)
    image = table[:, 1:].unflatten(1, (side, side)).permute(0, 3, 1, 2)
    stretched = nn.functional.interpolate(image, size=grid, mode="bicubic", align_corners=False)
    whole = torch.cat([table[:, :1], stretched.flatten(2).transpose(1, 2)], 1)
    theirs.decoder.interpolate_pos_encoding = lambda _: whole if grid != (side, side) else table


@pytest.mark.parametrize("name", MAES)
def test_mae_is_theirs_with_the_same_noise_and_back(name: str, tmp_path: Path) -> None:
    theirs = moved(MAES[name]())
    theirs.double().save_pretrained(tmp_path / "theirs")
    known, ours, warnings = read_folder(tmp_path / "theirs")
    assert (known, warnings) == ("mae", [])
    ours.eval()
    patch = theirs.config.patch_size
    for size in ((30, 30), (5 * patch, 4 * patch), (3 * patch, 7 * patch)):
        grid = (size[0] // patch, size[1] // patch)
        pixels, noise = images(theirs, size), torch.rand(3, grid[0] * grid[1])
        in_two_dimensions(theirs, grid)
        with torch.inference_mode():
            out = theirs(pixels, noise=noise, interpolate_pos_encoding=True, output_hidden_states=True)
            rebuilt = ours(pixels, noise)
            total, count = ours.loss(pixels, rebuilt)
            visible, _ = ours.choose(noise)
            encoded = ours.encoder(pixels, visible).hidden_ND.unflatten(0, (3, -1))
            latent = theirs.vit(pixels, noise=noise, interpolate_pos_encoding=True).last_hidden_state
        assert float((encoded - latent).abs().max()) <= 1e-10
        assert torch.equal(rebuilt.masked_BT, out.mask.bool())
        assert int(count) == int(out.mask.sum())
        assert float((rebuilt.predicted_BTF - out.logits).abs().max()) <= 1e-10
        assert abs(float(total / count - out.loss)) <= 1e-10
    theirs.float()
    theirs.save_pretrained(tmp_path / "float32")
    _, narrow, _ = read_folder(tmp_path / "float32")
    exactly = copy.deepcopy(theirs).double()
    pixels, noise = images(theirs, (30, 30)), torch.rand(3, (30 // patch) ** 2)
    with torch.inference_mode():
        exact = exactly(pixels, noise=noise).logits
        error = float((theirs(pixels.float(), noise=noise).logits - exact).abs().max())
        mine = float((narrow.eval()(pixels.float(), noise).predicted_BTF - exact).abs().max())
    assert mine <= 2 * error + 1e-7
    (tmp_path / "ours").mkdir()
    write_folder(tmp_path / "ours", known, narrow)
    assert any(key.startswith("decoder.decoder_layers.1.") for key in list_tensors(tmp_path / "ours/model.safetensors"))
    assert same_bytes(read_back(theirs, tmp_path / "ours"), theirs)


def test_mae_names_in_both_spellings_are_read(tmp_path: Path) -> None:
    theirs = moved(mae())
    theirs.save_pretrained(tmp_path)
    tensors = read_tensors(tmp_path / "model.safetensors")
    other = {
        name.replace("decoder.decoder_encoder.layer.", "decoder.decoder_layers."): one for name, one in tensors.items()
    }
    one = read_folder(tmp_path)[1].state_dict()
    write_tensors(tmp_path / "model.safetensors", other)
    two = read_folder(tmp_path)[1].state_dict()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_mae_tables_start_as_theirs_and_the_file_counts(tmp_path: Path) -> None:
    fresh = Mae(MaeConfig((30, 30), 3, 6, 24, 3, 4, 40, 16, 2, 2, 28))
    theirs = mae()
    # The start of transformers 5.24 leaves both tables at zero, though it has the functions that make them.
    theirs.vit.embeddings.patch_embeddings.projection._is_hf_initialized = False
    theirs.vit.embeddings.initialize_weights()
    theirs.decoder.initialize_weights(25)
    for ours, table in (
        (fresh.encoder.positions.weight, theirs.vit.embeddings.position_embeddings),
        (fresh.decoder_positions.weight, theirs.decoder.decoder_pos_embed),
    ):
        assert torch.allclose(ours, table[0], atol=1e-6, rtol=0)
    with torch.no_grad():
        theirs.decoder.decoder_pos_embed += 1.0
    theirs.save_pretrained(tmp_path)
    _, read, _ = read_folder(tmp_path)
    assert torch.equal(read.decoder_positions.weight, theirs.decoder.decoder_pos_embed[0])
    assert "decoder_positions.weight" not in dict(read.named_parameters())


# ------------------------------------------------------------------------------------------------------------- counts


@pytest.mark.parametrize("size", family("vit").sizes, ids=lambda size: size.name)
def test_published_sizes_have_their_count(size: Any) -> None:
    config = size.config
    named = {"hidden_size": config.embed_dim, "num_hidden_layers": config.num_layers, "patch_size": config.patch_size}
    named |= {"num_attention_heads": config.num_heads, "intermediate_size": config.mlp_dim, "num_labels": 1000}
    with torch.device("meta"):
        theirs = transformers.ViTForImageClassification(transformers.ViTConfig(**named))
    counted = count_parameters(Vit, config)
    assert counted == sum(parameter.numel() for parameter in theirs.parameters())
    printed = int(size.paper.removesuffix(" M"))
    assert abs(counted / 1e6 - printed) / printed < 0.01
    without = count_parameters(Vit, replace(config, num_classes=0))
    assert f"{without / 1e6:.1f} M" in size.note


@pytest.mark.parametrize("size", family("mae").sizes, ids=lambda size: size.name)
def test_mae_sizes_have_their_count(size: Any) -> None:
    config = size.config
    named = {"hidden_size": config.embed_dim, "num_hidden_layers": config.num_layers, "patch_size": config.patch_size}
    named |= {"num_attention_heads": config.num_heads, "intermediate_size": config.mlp_dim}
    with torch.device("meta"):
        theirs = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**named))
    assert count_parameters(Mae, config) == sum(p.numel() for p in theirs.parameters() if p.requires_grad)


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv_bias": False}, "qkv_bias is False; only True"),
        ({"patch_size": [6, 5]}, "patches of 6 × 5; only square"),
        ({"patch_size": "6"}, "patch_size is 6, neither a number nor"),
        ({"image_size": [30]}, r"image_size is \[30\], neither"),
        ({"pooler_act": "relu"}, "pooler_act is 'relu'"),
        ({"pooler_output_size": 5}, "pooler_output_size is 5"),
        ({"hidden_act": "swish9"}, "hidden_act is 'swish9'"),
        ({"architectures": ["ViTForMaskedImageModeling"]}, "architecture 'ViTForMaskedImageModeling'"),
        ({"image_size": 3}, "patch_size is 6 in images of 3 × 3"),
        ({"image_size": 60}, "of another shape: 'positions.weight'"),
        ({"image_size": 70_000}, r"image_size is \(70000, 70000\); give 1 to 65,536"),
        ({"image_size": 60_000}, "the config describes"),
        ({"num_channels": 4}, "has shape"),
    ],
)
def test_settings_that_are_not_ours_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    vit().save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(RegardError, match=message) as caught:
        read_folder(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_table_of_sines_that_the_file_does_not_bear_out_takes_no_memory(tmp_path: Path) -> None:
    mae().save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "image_size": 60_000}))
    with pytest.raises(CheckpointError, match="the config describes"):
        read_folder(tmp_path)


ODD = (None, [], {}, "x", -1, 0, 10**30, 1.5, True, [[]], [6, 6, 6])


@pytest.mark.parametrize("make", [lambda: vit("ViTForImageClassification"), mae], ids=["vit", "mae"])
def test_any_odd_setting_is_refused_in_one_line_or_means_nothing(make: Any, tmp_path: Path) -> None:
    make().save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    told: list[str] = []
    for key in values:
        for odd in ODD:
            (tmp_path / "config.json").write_text(json.dumps({**values, key: odd}))
            try:
                read_folder(tmp_path)
            except RegardError as error:
                told.append(str(error))
    assert len(told) > 80
    assert not any("\n" in line for line in told)


# --------------------------------------------------------------------------------------------------- forms of folders


def timm_folder(folder: Path, config: VitConfig) -> Vit:
    folder.mkdir()
    model = Vit(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    write_folder(folder, "vit", model, form="timm")
    return model.eval()


TIMM = {
    "class token": VitConfig((12, 12), 3, 5, 4, 16, 2, 2, 24),
    "mean, norm behind": VitConfig((12, 8), 1, 5, 4, 16, 2, 4, 36, pooling="mean", norm_pooled=True, drop_path=0.1),
    "mean, norm before": VitConfig((8, 8), 3, 0, 4, 16, 1, 2, 24, pooling="mean", activation="gelu-tanh"),
    "no class token": VitConfig((8, 8), 3, 3, 4, 16, 1, 2, 24, class_token=False, pooling="mean", norm_pooled=True),
}


@pytest.mark.parametrize("name", TIMM)
def test_timm_folders_there_and_back(name: str, tmp_path: Path) -> None:
    model = timm_folder(tmp_path / "timm", TIMM[name])
    said = json.loads((tmp_path / "timm" / "config.json").read_text())
    assert "model_type" not in said
    assert said["architecture"] == "vit_base_patch16_224"
    names = list_tensors(tmp_path / "timm" / "model.safetensors")
    assert {"pos_embed", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.bias"} <= {*names}
    assert ("fc_norm.weight" in names) == model.config.norm_pooled
    attention, tensors = model.blocks[0].self_attn, read_tensors(tmp_path / "timm" / "model.safetensors")
    parts = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    assert torch.equal(tensors["blocks.0.attn.qkv.weight"], parts)
    assert tensors["patch_embed.proj.weight"].shape == (16, model.config.num_channels, 4, 4)
    known, back, warnings = read_folder(tmp_path / "timm")
    assert (known, warnings) == ("vit", [])
    assert back.config == replace(model.config, drop_path=0.0)
    assert all(torch.equal(tensor, model.state_dict()[key]) for key, tensor in back.state_dict().items())
    assert regard.convert(tmp_path / "timm", tmp_path / "mine", to="regard").family == "vit"
    regard.convert(tmp_path / "mine", tmp_path / "again", to="timm")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "timm/model.safetensors").read_bytes()
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == said


def test_timm_folders_as_the_hub_has_them(tmp_path: Path) -> None:
    """An architecture's sizes are known by its name; ``model_args`` change them, and the rest is refused."""
    folder = tmp_path / "timm"
    model = timm_folder(folder, VitConfig((16, 16), 3, 5, 16, 192, 12, 3, 768))
    values = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 5,
        "num_features": 192,
        "global_pool": "token",
        "label_names": ["a", "b", "c", "d", "e"],
        "pretrained_cfg": {
            "tag": "augreg",
            "input_size": [3, 16, 16],
            "mean": [0.5, 0.5, 0.5],
            "interpolation": "bicubic",
        },
    }
    (folder / "config.json").write_text(json.dumps(values))
    _, read, _ = read_folder(folder)
    assert read.config == model.config
    assert class_names(values) == ("a", "b", "c", "d", "e")
    regard.convert(folder, tmp_path / "mine", to="regard")
    regard.convert(tmp_path / "mine", tmp_path / "again", to="timm")
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (again["label_names"], again["pretrained_cfg"]) == (values["label_names"], values["pretrained_cfg"])
    regard.convert(folder, tmp_path / "hub", to="huggingface")
    hub = json.loads((tmp_path / "hub" / "config.json").read_text())
    assert hub["model_type"] == "vit"
    assert "architecture" not in hub
    assert "pretrained_cfg" not in hub
    for change, message in (
        ({"architecture": "vit_base_patch16_clip_224"}, "architecture 'vit_base_patch16_clip_224'"),
        ({"architecture": "resnet50"}, "model_type is 'timm/resnet50'; known: bert"),
        ({"model_args": {"init_values": 1e-5}}, "model_args has 'init_values'"),
        ({"model_args": {"qkv_bias": False}}, "qkv_bias is False"),
        ({"model_args": {"fc_norm": True}}, "fc_norm is True with global_pool 'token'"),
        ({"global_pool": "map"}, "global_pool is 'map'"),
        ({"pretrained_cfg": {"input_size": 224}}, "input_size is 224"),
        ({"pretrained_cfg": 7}, "is no mapping"),
        ({"num_classes": -1}, "num_classes is -1"),
    ):
        (folder / "config.json").write_text(json.dumps({**values, **change}))
        with pytest.raises(RegardError, match=message) as caught:
            read_folder(folder)
        assert "\n" not in str(caught.value)


def test_any_odd_setting_of_timm_s_is_refused_in_one_line_or_means_nothing(tmp_path: Path) -> None:
    timm_folder(tmp_path / "timm", TIMM["class token"])
    path = tmp_path / "timm" / "config.json"
    values = json.loads(path.read_text())
    told: list[str] = []
    for odd in (*ODD, float("inf"), float("nan"), 1e308):
        changed = [{**values, key: odd} for key in values]
        for part in ("model_args", "pretrained_cfg"):
            changed += [{**values, part: {**values[part], key: odd}} for key in values[part]]
        for one in changed:
            path.write_text(json.dumps(one))
            try:
                read_folder(tmp_path / "timm")
            except RegardError as error:
                told.append(str(error))
    assert len(told) > 100
    assert not any("\n" in line for line in told)


def test_hugging_face_folders_convert_both_ways_with_their_classes(tmp_path: Path) -> None:
    names = {0: "cat", 1: "dog", 2: "owl"}
    numbers = {name: number for number, name in names.items()}
    theirs = moved(vit("ViTForImageClassification", id2label=names, label2id=numbers))
    theirs.save_pretrained(tmp_path / "hub")
    (tmp_path / "hub" / "preprocessor_config.json").write_text('{"do_resize": true}')
    assert regard.convert(tmp_path / "hub", tmp_path / "mine", to="regard").family == "vit"
    assert plain.load_plain(tmp_path / "mine")[1].config.num_classes == 3
    regard.convert(tmp_path / "mine", tmp_path / "again", to="huggingface")
    back = read_back(theirs, tmp_path / "again")
    assert same_bytes(back, theirs)
    assert back.config.id2label == names
    assert class_names(json.loads((tmp_path / "again" / "config.json").read_text())) == ("cat", "dog", "owl")
    assert (tmp_path / "again" / "preprocessor_config.json").read_text() == '{"do_resize": true}'
    theirs = moved(mae())
    theirs.save_pretrained(tmp_path / "mae")
    assert regard.convert(tmp_path / "mae", tmp_path / "mine-mae", to="regard").family == "mae"
    regard.convert(tmp_path / "mine-mae", tmp_path / "mae-again", to="huggingface")
    assert same_bytes(read_back(theirs, tmp_path / "mae-again"), theirs)
    with pytest.raises(DataError, match="a 'mae' has no public layout in timm's form"):
        regard.convert(tmp_path / "mine-mae", tmp_path / "no", to="timm")


def test_settings_without_a_public_form_are_not_written(tmp_path: Path) -> None:
    sizes = ((8, 8), 1, 3, 4, 16, 1, 2, 20)
    for form, change, why in (
        ("huggingface", {"pooling": "mean"}, "vit: takes the class token's vector"),
        ("huggingface", {"pooler": True}, "vit: has a pooler or a head, not both"),
        ("timm", {"pooler": True}, "timm/vit: has no pooler"),
        ("timm", {"norm_eps": 1e-12}, "timm/vit: norms have the epsilon 1e-06"),
    ):
        with pytest.raises(DataError, match=f"no public layout.*{why}"):
            write_folder(tmp_path, "vit", Vit(VitConfig(*sizes, **change)), form=form)
    assert list(tmp_path.iterdir()) == []


def test_a_json_that_names_nothing_is_refused(tmp_path: Path) -> None:
    for values in ({}, {"architecture": 7}, {"model_type": None}):
        (tmp_path / "config.json").write_text(json.dumps(values))
        with pytest.raises(FormatError, match="model_type is 'None'; known: bert"):
            read_folder(tmp_path)
