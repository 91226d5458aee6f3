"""What families offer that write, fill in masks, see or rebuild images: training, scoring and use need no more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.errors import ConfigError, UsageError
from regard.models.scoring import TokenScorer
from regard.models.states import Room
from regard.models.weights import fit, gather

# Which tables of vectors are one: source, target and output; target and output; or none.
Share = Literal["all", "target", "none"]


def check_share(share: str, source_vocab_size: int, target_vocab_size: int) -> None:
    """Refuse tables that cannot be shared.

    Args:
        share: Which tables are one.
        source_vocab_size: Tokens of the source vocabulary.
        target_vocab_size: Tokens of the target vocabulary.

    Raises:
        ConfigError: ``share`` is unknown, or asks for one table of two vocabularies of different size.
    """
    if share not in get_args(Share):
        raise ConfigError(f"unknown share {share!r}", mend=f"choose {', '.join(get_args(Share))}")
    if share == "all" and source_vocab_size != target_vocab_size:
        sizes = f"{source_vocab_size} source and {target_vocab_size} target tokens cannot share one table"
        raise ConfigError(sizes, mend="train one tokenizer for both, or set share: target")


def check_image_size(size: tuple[int, ...]) -> tuple[int, int]:
    """Refuse a size of images that is not a height and a width.

    Args:
        size: The setting.

    Returns:
        Height and width in pixels.

    Raises:
        ConfigError: There are not just two numbers, or one is below 1.
    """
    if len(size) != 2 or min(size) < 1:
        raise ConfigError(f"image_size is {list(size)}", mend="give height and width in pixels: [224, 224]")
    return size[0], size[1]


class TokenPredictor(TokenScorer, ABC):
    """Base of what predicts a text's next token.

    Attributes:
        config: The family's settings.
    """

    config: Any

    @abstractmethod
    def step(self, tokens_R: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read one token a row.

        Args:
            tokens_R: int64, the newest token of each row.
            state: Where decoding stands, from ``start`` or the step before; it is used up.

        Returns:
            logits_RV of the next token, and the new state.
        """


class EncoderDecoder(TokenPredictor):
    """Base of the encoder–decoder families.

    Attributes:
        config: The family's settings, with ``source_vocab_size`` and ``target_vocab_size``.
    """

    @property
    def max_target_tokens(self) -> int | None:
        """Most tokens, the end not counted, that an output can have; None where the model sets no limit."""
        return None

    @abstractmethod
    def forward(
        self, source_M: Tensor, source_segments: Segments, target_N: Tensor, target_segments: Segments
    ) -> Tensor:
        """Compute what predicts the token after each target token.

        Args:
            source_M: int64, source tokens of the batch.
            source_segments: Which belong together.
            target_N: int64, target tokens, each sequence from its start token on.
            target_segments: Which belong together.

        Returns:
            hidden_ND; :meth:`head` turns it into scores of tokens.
        """

    @abstractmethod
    def start(self, source_M: Tensor, segments: Segments, beams: int, room: Room | None = None) -> Any:
        """Encode sources and get ready to decode.

        Args:
            source_M: int64, source tokens.
            segments: Which belong together.
            beams: Rows of each source.
            room: What the batch may come to hold; None makes room as it goes.

        Returns:
            The state before the first token, a :class:`~regard.models.states.DecoderState`.
        """


class LanguageModel(TokenPredictor):
    """Base of the families that read a text from left to right and predict its next token.

    Attributes:
        config: The family's settings, with ``vocab_size``.
    """

    @property
    def max_tokens(self) -> int | None:
        """Tokens of a text at most; None where the model sets no limit."""
        return None

    @abstractmethod
    def forward(self, tokens_N: Tensor, segments: Segments) -> Tensor:
        """Compute what predicts the token after each token.

        Args:
            tokens_N: int64, tokens of the batch.
            segments: Which belong together.

        Returns:
            hidden_ND; :meth:`head` turns it into scores of tokens.
        """

    @abstractmethod
    def start(self, prompt_N: Tensor, segments: Segments, beams: int, room: Room | None = None) -> Any:
        """Read prompts and get ready to go on from them.

        Args:
            prompt_N: int64, tokens of the prompts.
            segments: Which belong together; lengths may differ.
            beams: Rows of each prompt.
            room: What the batch may come to hold; None makes room as it goes.

        Returns:
            The state after the prompts, a :class:`~regard.models.states.TextState`.
        """

    @abstractmethod
    def extend(self, tokens_N: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read several tokens a row at once.

        Args:
            tokens_N: int64, the newest tokens of each row, as many for each, one row a prompt.
            state: Where decoding stands; it is used up.

        Returns:
            logits_NV of the token after each, and the new state.
        """


class MaskFiller(TokenScorer, ABC):
    """Base of the families that can tell what stands at a place from what stands on both sides of it.

    Attributes:
        config: The family's settings, with ``vocab_size`` and ``fills``: whether it can with these settings, having the
            head for it and seeing both sides.
    """

    config: Any

    @property
    def max_tokens(self) -> int | None:
        """Tokens of a text at most; None where the model sets no limit."""
        return None

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages that a text can be told to be in; empty for a model that is told none."""
        return ()

    def number_languages(self, names: str) -> tuple[int, int] | None:
        """Find the numbers of two texts' languages; a model that is told none knows none.

        Args:
            names: ``de`` for both, or ``en,de``; empty for none.

        Returns:
            The two numbers; None for a model that is told none.

        Raises:
            UsageError: The model has to be told and is not, or does not know a name.
        """
        if names:
            raise UsageError("a language for a model that is told none", mend="leave it out")
        return None

    @abstractmethod
    def at(
        self,
        tokens_N: Tensor,
        segments: Segments,
        places_M: Tensor,
        types_N: Tensor | None = None,
        languages_B2: Tensor | None = None,
    ) -> Tensor:
        """Compute what tells the tokens at some places, each as if the others stayed masked.

        Args:
            tokens_N: int64, tokens of the batch, the mask at these places.
            segments: Which belong together.
            places_M: int64, rows of the masks, ascending.
            types_N: int64, of which of two texts each token is; None for single texts.
            languages_B2: int64, the languages of the two; None where none is told.

        Returns:
            hidden_MD; :meth:`head` turns it into scores of tokens.
        """


@dataclass(frozen=True)
class Features:
    """What an image encoder makes of a batch of images.

    Attributes:
        hidden_ND: One row a token: those before the grid, then the grid row by row; image after image.
        segments: Which rows are one image; uniform.
        grid: Height and width of the grid in tokens.
        num_extra: Tokens of each image before its grid: a class token.
    """

    hidden_ND: Tensor
    segments: Segments
    grid: tuple[int, int]
    num_extra: int = 0

    def grid_BYXD(self) -> Tensor:
        """Give the grid alone, as an image of vectors."""
        rows_BND = self.hidden_ND.unflatten(0, (len(self.segments), -1))
        return rows_BND[:, self.num_extra :].unflatten(1, self.grid)


class ImageEncoder(nn.Module, ABC):
    """Base of the families that turn images into vectors, and into classes where they have a head.

    Attributes:
        config: The family's settings, with ``image_size`` (height and width of the images that it is made for, in
            pixels), ``num_channels`` and ``num_classes`` (0 for no head).
        head: From a pooled vector to a score for each class; None without.
        width: Width D of its vectors.
        num_depths: Depths of :meth:`depth`.
    """

    config: Any
    head: nn.Linear | None
    width: int
    num_depths: int

    @abstractmethod
    def forward(self, pixels_BCYX: Tensor) -> Features:
        """Encode images.

        Args:
            pixels_BCYX: Floats, normalized as the model was trained; height and width may be others than
                ``config.image_size``.

        Returns:
            The features.

        Raises:
            UsageError: Another number of channels, or an image smaller than a patch.
        """

    @abstractmethod
    def pool(self, features: Features) -> Tensor:
        """Make one vector of each image, as the model was trained.

        Args:
            features: From :meth:`forward`.

        Returns:
            pooled_BD.
        """

    @abstractmethod
    def depth(self, name: str) -> int:
        """Say how deep a parameter stands, for learning rates that fall towards the input.

        Args:
            name: The parameter's name.

        Returns:
            0 for what reads pixels, up to ``num_depths - 1`` for what reads the last block's output.
        """

    def weights_for(self, config: Any) -> dict[str, Tensor]:
        """Give what was learnt and stays with other settings; what stands for places is brought to their grid.

        Args:
            config: The settings.

        Returns:
            Parameters and persistent buffers by name, without those that have to be learnt anew.
        """
        new = "head." if config.num_classes != self.config.num_classes else None
        return {name: one for name, one in gather(self).items() if new is None or not name.startswith(new)}

    def adapted(self, **change: Any) -> Self:
        """Make a model of other settings that begins with what this one has learnt, to be trained further.

        A head of another number of classes is new. Positions are brought to the grid of another ``image_size`` once,
        and trained there.

        Args:
            **change: Settings that differ, by name.

        Returns:
            A model of its own, with copies of the weights, on the same device and in the same precision.

        Raises:
            CheckpointError: The settings give a tensor another shape: another width, another patch.

        Source: Dosovitskiy et al. 2020, §3.2.
        """
        config, reference = replace(self.config, **change), next(self.parameters())
        model = type(self)(config).to(reference.device, reference.dtype).train(self.training)
        fresh = gather(model)
        learnt = {name: one for name, one in self.weights_for(config).items() if name in fresh}
        fit(fresh | learnt, model, where=f"{type(self).__name__}.adapted")
        return model

    def places(self, layer: str, size: tuple[int, int]) -> tuple[tuple[int, int], Sequence[Sequence[int]]] | None:
        """Say where the rows of a layer that attends in windows stand.

        Args:
            layer: The name of the module that attends.
            size: Height and width of an image in pixels.

        Returns:
            The layer's grid, height and width in tokens, and for each window of one image, in the order of the layer's
            segments, the place of each row in it (row by row from 0; -1 for none). None where a layer attends to all.
        """
        return None

    def classify(self, pixels_BCYX: Tensor) -> Tensor:
        """Score the classes of images.

        Args:
            pixels_BCYX: As :meth:`forward` takes them.

        Returns:
            logits_BV, at least float32.

        Raises:
            UsageError: The model has no head.
        """
        if self.head is None:
            raise UsageError("a model without a head", where=type(self).__name__, mend="set num_classes")
        logits_BV = self.head(self.pool(self(pixels_BCYX)))
        return logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))


class HoldsImageEncoder(ABC):
    """Base of what is trained around an image encoder and gives it away for other uses."""

    @abstractmethod
    def image_encoder(self) -> ImageEncoder:
        """Give the encoder alone."""
