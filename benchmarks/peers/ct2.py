"""CTranslate2: takes weights from a transformers model through its model-spec API."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import torch
from ctranslate2.converters import transformers as loaders
from torch import Tensor

from benchmarks.peers import hf

CPU = torch.device("cpu")


def write_gpt2(folder: Path, public: Path) -> None:
    """Write a public GPT-2 in CTranslate2's form.

    Args:
        folder: Where; it is empty.
        public: The public folder.
    """
    model = hf.load("GPT2LMHeadModel", public, CPU)
    spec = loaders.GPT2Loader().get_model_spec(model)
    spec.register_vocabulary(_words(model.config.vocab_size))
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = "<0>"
    spec.validate()
    spec.save(str(folder))


def write_marian(folder: Path, public: Path) -> None:
    """Write a public Marian in CTranslate2's form."""
    model = hf.load("MarianMTModel", public, CPU)
    spec = loaders.MarianMTLoader().get_model_spec(model)
    words = _words(model.config.vocab_size - 1)  # without the padding, which the loader takes out
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.eos_token = spec.config.unk_token = spec.config.decoder_start_token = "<0>"
    spec.validate()
    spec.save(str(folder))


def _words(count: int) -> list[str]:
    return ["<0>", *(f"w{n}" for n in range(1, count))]


def generator(folder: Path, precision: str) -> Any:
    """Open a language model.

    Args:
        folder: From :func:`write_gpt2`.
        precision: ``float32``, ``int8`` or ``bfloat16``.

    Returns:
        The generator, of as many threads as torch has.
    """
    threads = torch.get_num_threads()
    return ctranslate2.Generator(str(folder), "cpu", compute_type=precision, inter_threads=1, intra_threads=threads)


def translator(folder: Path, precision: str) -> Any:
    """Open an encoder–decoder."""
    threads = torch.get_num_threads()
    return ctranslate2.Translator(str(folder), "cpu", compute_type=precision, inter_threads=1, intra_threads=threads)


def greedy(model: Any, prompts_BT: Tensor, count: int) -> Callable[[], list[list[int]]]:
    """Give a round of writing a number of tokens behind each prompt."""
    prompts = [[_word(n) for n in row] for row in prompts_BT.tolist()]

    def run() -> list[list[int]]:
        found = model.generate_batch(
            prompts,
            max_length=count,
            min_length=count,
            sampling_topk=1,
            beam_size=1,
            include_prompt_in_result=False,
            max_batch_size=len(prompts),
        )
        return [one.sequences_ids[0] for one in found]

    return run


def prefill(model: Any, prompts_BT: Tensor) -> Callable[[], object]:
    """Give a round of reading prompts and writing one token."""
    return greedy(model, prompts_BT, 1)


def beam(model: Any, sources_BT: Tensor, count: int, beams: int) -> Callable[[], object]:
    """Give a round of beam search."""
    sources = [[_word(n) for n in row] for row in sources_BT.tolist()]

    def run() -> object:
        found = model.translate_batch(
            sources,
            beam_size=beams,
            max_decoding_length=count,
            min_decoding_length=count,
            length_penalty=0.0,
            max_batch_size=len(sources),
        )
        return [one.hypotheses[0] for one in found]

    return run


def _word(number: int) -> str:
    return f"w{number}" if number else "<0>"
