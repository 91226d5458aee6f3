"""The tasks: what each is trained with. A task is one file; its line here enrols it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from regard.tasks.crosslingual import CrosslingualConfig, CrosslingualTask
from regard.tasks.images.classify import ImageClassesConfig, ImageClassesTask
from regard.tasks.images.contrast import ContrastConfig, ContrastTask
from regard.tasks.images.generate import GenerateImagesConfig, GenerateImagesTask
from regard.tasks.images.reconstruct import ReconstructConfig, ReconstructTask
from regard.tasks.instruct import InstructConfig, InstructTask
from regard.tasks.labelled import LabelledConfig, LabelledTask
from regard.tasks.labeller import Classes, Numbers
from regard.tasks.language import LanguageConfig, LanguageTask
from regard.tasks.masked import MaskedConfig, MaskedTask
from regard.tasks.permuted import PermutedConfig, PermutedTask
from regard.tasks.tagged import TaggedConfig, TaggedTask
from regard.tasks.translate import TranslateConfig, TranslateTask


@dataclass(frozen=True)
class Kind:
    """A task.

    Attributes:
        config: Its settings.
        prepare: From (settings, seed, the run's folder, whether it is new) to the task with its data.
    """

    config: type
    prepare: Callable[..., Any]


TASKS: dict[str, Kind] = {
    "translate": Kind(TranslateConfig, TranslateTask.prepare),
    "lm": Kind(LanguageConfig, LanguageTask.prepare),
    "mlm": Kind(MaskedConfig, MaskedTask.prepare),
    "xlm": Kind(CrosslingualConfig, CrosslingualTask.prepare),
    "plm": Kind(PermutedConfig, PermutedTask.prepare),
    "instruct": Kind(InstructConfig, InstructTask.prepare),
    "classify": Kind(LabelledConfig, partial(LabelledTask.prepare, Classes)),
    "tag": Kind(TaggedConfig, TaggedTask.prepare),
    "classify-images": Kind(ImageClassesConfig, ImageClassesTask.prepare),
    "reconstruct": Kind(ReconstructConfig, ReconstructTask.prepare),
    "contrast": Kind(ContrastConfig, ContrastTask.prepare),
    "generate-images": Kind(GenerateImagesConfig, GenerateImagesTask.prepare),
    "regress": Kind(LabelledConfig, partial(LabelledTask.prepare, Numbers)),
}
