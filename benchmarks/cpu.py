"""The parts of the suite on a CPU, in the order in which they run."""

from __future__ import annotations

from benchmarks import decode, encode, growth, looking, pictures, sharing, starting, training
from benchmarks.suite import Part

PARTS: dict[str, Part] = {
    "decode": decode.rows,
    "translate": decode.translation,
    "encode": encode.rows,
    "train": training.rows,
    "small": training.small,
    "optimizer": training.optimizer,
    "images": encode.images,
    "start": starting.rows,
    "recording": looking.rows,
    "sharing": sharing.rows,
    "precision": decode.precision,
    "batching": decode.batching,
    "loss": training.loss,
    "pictures": pictures.rows,
    "growth": growth.rows,
}
