"""What every entry of the catalogue makes: three parts, and words about where they are from."""

from collections.abc import Sequence
from dataclasses import dataclass

from regard.data.packages import PackageFile

PARTS = ("train", "dev", "test")
SPLIT = "dev and test are each the smaller of 2,000 and 5 % of the groups, by a seeded hash of the group's key"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a data set.

    Args:
        data: Its file.
        num_items: How many pairs, texts or pictures it holds.
        num_groups: Of how many groups.
    """

    data: bytes
    num_items: int
    num_groups: int


@dataclass(frozen=True, slots=True)
class Made:
    """A data set, ready to be written.

    Args:
        parts: Of :data:`PARTS`.
        notes: What was kept and left out, with counts, a sentence an item.
    """

    parts: list[Part]
    notes: list[str]


def source_lines(files: Sequence[PackageFile], kind: str, citation: str, licence: str) -> str:
    """Say where data are from.

    Args:
        files: The packages' files.
        kind: What the citation is of.
        citation: Who made it.
        licence: Its licence.

    Returns:
        A list in Markdown.
    """
    lines: list[str] = []
    for file in files:
        lines.append(f"- Source: {file.registry} package {file.package}, version {file.version}, file {file.member}")
        lines.append(f"- SHA-256 of that file: {file.sha256}")
    return "\n".join([*lines, f"- {kind}: {citation}", f"- Licence: {licence}"])
