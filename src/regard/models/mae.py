"""MAE: an encoder sees a quarter of an image's patches, a light decoder rebuilds the others.

Paper: He et al. 2021, "Masked Autoencoders Are Scalable Vision Learners". The encoder is the ViT, on the visible tokens
alone. Ours differs in: images of any size, with both tables of positions stretched in two dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.errors import ConfigError, UsageError
from regard.layers.block import Block
from regard.layers.patches import GridPositions, patchify, unpatchify
from regard.models.reconstructor import ImageReconstructor, Reconstruction
from regard.models.vit import Vit, VitConfig, grid_for

# Added to a patch's variance, as released.
_VARIANCE_EPS = 1e-6


@dataclass(frozen=True)
class MaeConfig:
    """Settings of an MAE.

    Attributes:
        image_size: Height and width in pixels of the images that positions are made for.
        num_channels: Channels of the images.
        patch_size: Side of a patch in pixels.
        embed_dim: Width D of the encoder.
        num_layers: Blocks of the encoder.
        num_heads: Heads of the encoder.
        mlp_dim: Inner width of the encoder's MLPs.
        decoder_dim: Width of the decoder.
        decoder_layers: Blocks of the decoder.
        decoder_heads: Heads of the decoder.
        decoder_mlp_dim: Inner width of the decoder's MLPs.
        mask_ratio: Part of the patches that is hidden.
        normalize_pixels: Each patch is rebuilt less its mean, over its deviation.
        activation: Of the MLPs.
        dropout: On embeddings, each sublayer's result and the MLPs' inner activations.
        attention_dropout: On attention weights.
        norm_eps: Of layer norms.
    """

    image_size: tuple[int, ...] = (224, 224)
    num_channels: int = 3
    patch_size: int = 16
    embed_dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    mlp_dim: int = 3072
    decoder_dim: int = 512
    decoder_layers: int = 8
    decoder_heads: int = 16
    decoder_mlp_dim: int = 2048
    mask_ratio: float = 0.75
    normalize_pixels: bool = True
    activation: str = "gelu"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    norm_eps: float = 1e-6

    def encoder(self) -> VitConfig:
        """Give the settings of the encoder alone."""
        return VitConfig(
            image_size=self.image_size,
            num_channels=self.num_channels,
            patch_size=self.patch_size,
            embed_dim=self.embed_dim,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            mlp_dim=self.mlp_dim,
            positions="sincos",
            activation=self.activation,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            norm_eps=self.norm_eps,
        )


class Mae(ImageReconstructor):
    """z = ViT(visible patches); patches = W · decoder([z; mask tokens] + positions), each at its place.

    Args:
        config: The settings.

    Raises:
        ConfigError: The size of images is no height and width, or smaller than a patch; or the part that is hidden is
            not between 0 and 1.
        UsageError: Heads do not divide a width, or a width is no multiple of 4.

    Source: He et al. 2021, §3 and appendix A.1.
    """

    encoder: Vit

    def __init__(self, config: MaeConfig) -> None:
        super().__init__()
        c = self.config = config
        if not 0 < c.mask_ratio < 1:
            raise ConfigError(f"mask_ratio is {c.mask_ratio}", mend="give a number between 0 and 1")
        self.encoder = Vit(c.encoder())
        self.decoder_embed = nn.Linear(c.embed_dim, c.decoder_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, c.decoder_dim))
        grid = grid_for(c.image_size, c.patch_size)
        self.decoder_positions = GridPositions(grid, c.decoder_dim, num_extra=1, kind="sincos")
        self.decoder = nn.ModuleList(
            Block(
                c.decoder_dim,
                c.decoder_heads,
                c.decoder_mlp_dim,
                norm="pre",
                activation=c.activation,
                dropout_p=c.dropout,
                attention_dropout_p=c.attention_dropout,
                mlp_dropout_p=c.dropout,
                norm_eps=c.norm_eps,
            )
            for _ in range(c.decoder_layers)
        )
        self.decoder_norm = nn.LayerNorm(c.decoder_dim, c.norm_eps)
        self.output = nn.Linear(c.decoder_dim, c.patch_size**2 * c.num_channels)
        for layer in (self.encoder.patches.proj, self.decoder_embed, self.output):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        for token in (self.encoder.class_token, self.mask_token):
            if token is not None:
                nn.init.normal_(token, std=0.02)

    def patches(self, pixels_BCYX: Tensor) -> tuple[int, int]:
        """Say how many patches images have."""
        return self.encoder.patches.grid(pixels_BCYX)

    def choose(self, noise_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the patches that are seen: those with the smallest numbers.

        Args:
            noise_BT: A number for each patch.

        Returns:
            visible_BT, int64, the places of those that are seen, smallest number first; and masked_BT, bool, which are
            hidden.

        Raises:
            UsageError: There are so few patches that none would be seen, or none hidden.

        Source: He et al. 2021, §3, as released: the number seen is rounded down.
        """
        total = noise_BT.shape[1]
        kept = int(total * (1 - self.config.mask_ratio))
        if not 0 < kept < total:
            what = f"of {total} patches {total - kept} are hidden"
            raise UsageError(what, where="Mae", mend="give larger images, smaller patches or another mask_ratio")
        visible_BT = noise_BT.argsort(dim=1, stable=True)[:, :kept]
        hidden_BT = torch.ones_like(noise_BT, dtype=torch.bool)
        return visible_BT, hidden_BT.scatter(1, visible_BT, False)

    def forward(self, pixels_BCYX: Tensor, noise_BT: Tensor | None = None) -> Reconstruction:
        """Hide patches and rebuild all of them from the others; see the base class.

        Args:
            pixels_BCYX: Floats, normalized.
            noise_BT: A number for each patch; those with the smallest are kept. None draws them.

        Returns:
            What was rebuilt.

        Raises:
            UsageError: The noise is not a number a patch.
        """
        grid, count = self.patches(pixels_BCYX), len(pixels_BCYX)
        total = grid[0] * grid[1]
        if noise_BT is None:
            noise_BT = torch.rand(count, total, device=pixels_BCYX.device)
        if noise_BT.shape != (count, total):
            raise UsageError(f"noise of shape {tuple(noise_BT.shape)}", where="Mae", mend=f"give {(count, total)}")
        visible_BT, masked_BT = self.choose(noise_BT)
        seen_ND = self.decoder_embed(self.encoder(pixels_BCYX, visible_BT).hidden_ND)
        seen_BTD = seen_ND.unflatten(0, (count, -1))
        places_BTD = visible_BT[..., None].expand(-1, -1, seen_BTD.shape[2])
        mask_BTD = self.mask_token.to(seen_BTD.dtype).expand(count, total, -1)
        extra_ED, table_ND = self.decoder_positions(grid)
        x_BTD = torch.cat([seen_BTD[:, :1], mask_BTD.scatter(1, places_BTD, seen_BTD[:, 1:])], 1)
        x_ND = (x_BTD + torch.cat([extra_ED, table_ND])).flatten(0, 1)
        segments = Segments.uniform(count, total + 1, x_ND.device)
        for block in self.decoder:
            x_ND = block(x_ND, segments)
        x_BTD = self.decoder_norm(x_ND).unflatten(0, (count, -1))
        return Reconstruction(self.output(x_BTD[:, 1:]), masked_BT, grid)

    def loss(self, pixels_BCYX: Tensor, rebuilt: Reconstruction) -> tuple[Tensor, Tensor]:
        """Sum the mean squared error of each hidden patch.

        Source: He et al. 2021, §3, "Reconstruction target".
        """
        patches_BTF, mean_BT1, deviation_BT1 = self._targets(pixels_BCYX)
        target_BTF = (patches_BTF - mean_BT1) / deviation_BT1
        errors_BT = (rebuilt.predicted_BTF.to(target_BTF.dtype) - target_BTF).square().mean(2)
        return errors_BT[rebuilt.masked_BT].sum(), rebuilt.masked_BT.sum()

    def pictures(self, pixels_BCYX: Tensor, rebuilt: Reconstruction) -> tuple[Tensor, Tensor]:
        """Give what was rebuilt in the images' own units: times each patch's deviation, plus its mean."""
        patches_BTF, mean_BT1, deviation_BT1 = self._targets(pixels_BCYX)
        pixels_BTF = rebuilt.predicted_BTF.to(patches_BTF.dtype) * deviation_BT1 + mean_BT1
        patch_size = self.config.patch_size
        masked_BTF = rebuilt.masked_BT[..., None].expand(-1, -1, patch_size**2)
        pixels_BCYX = unpatchify(pixels_BTF, rebuilt.grid, patch_size)
        return pixels_BCYX, unpatchify(masked_BTF, rebuilt.grid, patch_size)

    def _targets(self, pixels_BCYX: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Patches in float32 at least, and each one's mean and deviation; 0 and 1 where pixels are not normalized."""
        patches_BTF = patchify(pixels_BCYX, self.config.patch_size)
        patches_BTF = patches_BTF.to(torch.promote_types(patches_BTF.dtype, torch.float32))
        if not self.config.normalize_pixels:
            return patches_BTF, patches_BTF.new_zeros(1, 1, 1), patches_BTF.new_ones(1, 1, 1)
        variance_BT1 = patches_BTF.var(2, keepdim=True)
        return patches_BTF, patches_BTF.mean(2, keepdim=True), (variance_BT1 + _VARIANCE_EPS).sqrt()

    def take_encoder(self, num_classes: int = 0, **change: Any) -> Vit:
        """Take the encoder out for fine-tuning, as released: a mean of the patches, a norm behind it.

        Positions are trained from then on.

        Args:
            num_classes: Of a new head; 0 for none.
            **change: Other settings than these: ``image_size``, ``drop_path``; for a linear probe
                ``pooling="cls", norm_pooled=False``.

        Returns:
            A ViT of its own, with copies of the weights; its norm is new where it stands behind the mean.

        Source: He et al. 2021, appendix A.1.
        """
        usual = {"positions": "learned", "pooling": "mean", "norm_pooled": True}
        return self.encoder.adapted(**{**usual, "num_classes": num_classes, **change})
