"""Language models of ours in EleutherAI's evaluation harness (``pip install 'regard[lm-eval]'``).

The harness's own command, with one more model, ``regard``::

    python -m regard.lm_eval --model regard --model_args path=runs/book --tasks lambada_openai

and from Python::

    lm_eval.simple_evaluate(adapter("runs/book"), tasks=["lambada_openai"])

Texts become tokens as in the harness's own ``hf`` model, and what is longer than the context loses its beginning.
Two differences: a start token comes before a text once and never twice, and a batch is tokens, with nothing padded.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.api import load
from regard.decoding import DecodeOptions
from regard.errors import ContextError, ResourceError, UsageError
from regard.tasks.generator import Generator, begun

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM

# What a task may ask of generation, by the harness's names and ours; the others have the same name.
_OPTIONS = {"max_gen_toks": "max_extra_tokens", "do_sample": "sample", "until": "stop", "seed": "seed"}
_SAME = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_log = logging.getLogger(__name__)


def adapter(model: Generator | str | Path, **how: Any) -> TemplateLM:
    """Make what the harness evaluates out of a language model.

    Args:
        model: A loaded model, or its path.
        **how: As the harness gives it: ``device`` of a path, ``batch_tokens`` read together at most (4096), and
            ``prefix_token_id``, the token before texts that have nothing before them; without it the model's start
            token, or its end where it has no start. ``batch_size`` and ``max_batch_size``, which the harness always
            gives, change nothing.

    Returns:
        The model, as the harness takes it.

    Raises:
        ResourceError: The ``lm-eval`` package is missing.
        UsageError: The model goes on from no texts, or knows neither start nor end and no token is given.
    """
    return _adapter_class()(model, **how)


def options(asked: dict[str, Any]) -> DecodeOptions:
    """Read how a task wants its texts written.

    Args:
        asked: The harness's settings of generation, normalized.

    Returns:
        Ours.

    Raises:
        UsageError: Something is asked for that is not done here, or a number is out of range.
    """
    known = {**_OPTIONS, **{name: name for name in _SAME}}
    if unknown := sorted(set(asked) - set(known)):
        mend = f"known: {', '.join(known)}"
        raise UsageError(f"{unknown[0]!r} is not known here", where="generation_kwargs", mend=mend)
    values = {known[name]: value for name, value in asked.items()}
    values["stop"] = tuple(one for one in values["stop"] if one)
    if not values["sample"]:
        values.pop("temperature", None)
    return DecodeOptions(length_penalty=0.0, **values)


@cache
def _adapter_class() -> type[TemplateLM]:
    """Make the class when it is first wanted: the harness takes seconds to import, and nothing else here needs it."""
    try:
        from lm_eval.api.model import TemplateLM
        from lm_eval.models.utils import normalize_gen_kwargs
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    except ImportError as error:
        what = f"the harness cannot be imported ({error})"
        raise ResourceError(what, mend="pip install 'regard[lm-eval]'") from error

    class RegardLM(TemplateLM):
        """See :func:`adapter`; requests are the harness's."""

        def __init__(
            self,
            path: Generator | str | Path,
            device: str = "cpu",
            batch_tokens: int = 4096,
            prefix_token_id: int | None = None,
            batch_size: int | str | None = None,
            max_batch_size: int | None = None,
        ) -> None:
            super().__init__()
            loaded = path if isinstance(path, Generator) else load(path, device or "cpu")
            if not isinstance(loaded, Generator):
                raise UsageError("this model does not go on from texts", mend="give a causal language model")
            self.generator, self.batch_tokens = loaded, batch_tokens
            before = [one for one in (prefix_token_id, loaded.start_id, *loaded.end_ids) if one is not None]
            if not before:
                raise UsageError("the model knows neither start nor end", mend="give prefix_token_id")
            self._prefix = before[0]
            self._device = loaded.device

        @property
        def eot_token_id(self) -> int:
            return self.generator.end_ids[0] if self.generator.end_ids else self._prefix

        @property
        def prefix_token_id(self) -> int:
            return self._prefix

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
            tokenizer = self.generator.tokenizer
            return tokenizer.encode(string) if add_special_tokens is False else begun(tokenizer, string)

        def _loglikelihood_tokens(
            self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
        ) -> list[tuple[float, bool]]:
            most = self.generator.max_tokens + 1  # the last token is predicted, not read
            rows: list[np.ndarray] = []
            counts, cut = list[int](), 0
            for _, before, after in requests:
                if len(after) >= most:
                    what = f"a continuation of {len(after)} tokens; the context is {most - 1}"
                    raise ContextError(what, mend="leave the task out")
                rows.append(np.array([*before, *after][-most:], np.int64))
                counts.append(len(after))
                cut += len(before) + len(after) > most
            if cut:
                _log.warning("%d of %d texts are over the context and lose their beginnings", cut, len(rows))
            found = self.generator.foresee(rows, counts, batch_tokens=self.batch_tokens)
            for (asked, *_), one in zip(requests, found, strict=True):
                if asked is not None:
                    self.cache_hook.add_partial("loglikelihood", asked, one)
            return found

        def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
            most, totals, texts = self.generator.max_tokens, [0.0] * len(requests), list[int]()
            windows: list[tuple[None, list[int], list[int]]] = []
            for number, request in enumerate(requests):
                tokens = self.tok_encode(request.args[0], add_special_tokens=False)
                for window in get_rolling_token_windows(tokens, self._prefix, most, 1):
                    windows.append((None, *make_disjoint_window(window)))
                    texts.append(number)
            for number, (logprob, _) in zip(texts, self._loglikelihood_tokens(windows), strict=True):
                totals[number] += logprob
            for request, total in zip(requests, totals, strict=True):
                self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
            return totals

        def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
            texts, alike = [""] * len(requests), dict[DecodeOptions, list[int]]()
            for number, request in enumerate(requests):
                alike.setdefault(options(normalize_gen_kwargs(request.args[1])), []).append(number)
            for how, numbers in alike.items():
                prompts = [requests[number].args[0] for number in numbers]
                found = self.generator.generate(prompts, how, on_full="slide", batch_tokens=self.batch_tokens)
                for number, one in zip(numbers, found, strict=True):
                    texts[number] = one.text
                    self.cache_hook.add_partial("generate_until", requests[number].args, one.text)
            return texts

    return RegardLM


def main() -> None:
    """Run the harness's command with our models among its own."""
    made = _adapter_class()
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.registry import register_model

    register_model("regard")(made)
    cli_evaluate()


if __name__ == "__main__":
    main()
