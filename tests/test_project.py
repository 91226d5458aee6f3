"""Rules that the project keeps about itself: no unsafe call, readable files, promises kept."""

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import regard
from regard import errors

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "regard"
SOURCE_FILES = sorted(SOURCE.rglob("*.py"))
MAX_LINES = 450

# ------------------------------------------------------------------------------------------------------- unsafe calls

# Each either runs code found in a file or writes a file that runs code when it is read.
FORBIDDEN_MODULES = {"pickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS = {
    *("eval", "exec", "__import__", "builtins.eval", "builtins.exec", "os.system", "os.popen"),
    *("torch.load", "torch.save", "torch.hub.load"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all"),
}
FORBIDDEN_KEYWORDS = {"allow_pickle", "trust_remote_code", "shell"}


def forbidden_uses(source: str) -> list[str]:
    """Line and name of every forbidden import, call or keyword; names are followed through `import … as …`."""
    tree = ast.parse(source)
    full_name: dict[str, str] = {}
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = [(alias.asname or alias.name.split(".")[0], alias.name, alias.asname) for alias in node.names]
            full_name.update({bound: name if asname else bound for bound, name, asname in imported})
            modules = [name for _, name, _ in imported]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            full_name.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        found += [(node.lineno, name) for name in modules if name.split(".")[0] in FORBIDDEN_MODULES]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):  # a mention is enough: `read = torch.load` is a call put off
            head, _, rest = ast.unparse(node).partition(".")
            name = ".".join(filter(None, (full_name.get(head, head), rest)))
            if name in FORBIDDEN_CALLS:
                found.append((node.lineno, name))
        elif isinstance(node, ast.keyword) and node.arg in FORBIDDEN_KEYWORDS and ast.unparse(node.value) != "False":
            found.append((node.value.lineno, node.arg))
    return [f"{line}: {name}" for line, name in sorted(set(found))]


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "def f():\n    import dill",
        "import torch\ntorch.load('x')",
        "import torch as t\nt.load('x')",
        "from torch import load as read\nread('x')",
        "import torch\nread = torch.load",
        "import torch\ntorch.save({}, 'x')",
        "import yaml\nyaml.load(text)",
        "from yaml import unsafe_load\nunsafe_load(text)",
        "eval('1')",
        "exec('1')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import subprocess\nsubprocess.run('x', shell=True)",
    ],
)
def test_forbidden_use_is_found(source: str) -> None:
    assert forbidden_uses(source)


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "import yaml\nyaml.safe_load(text)",
        "import regard\nregard.load('run')",
        "from safetensors.torch import load\nload(data)",
        "import numpy as np\nnp.load('x', allow_pickle=False)",
    ],
)
def test_allowed_use_is_not_found(source: str) -> None:
    assert forbidden_uses(source) == []


def test_source_runs_no_code_from_files() -> None:
    found = {path.relative_to(ROOT).as_posix(): forbidden_uses(path.read_text()) for path in SOURCE_FILES}
    assert {path: uses for path, uses in found.items() if uses} == {}


# ------------------------------------------------------------------------------------------------------------- sources


def test_files_read_in_one_sitting() -> None:
    lines = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in SOURCE_FILES}
    assert lines, "no source found"
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}


def imported_names(path: Path) -> Iterator[str]:
    """Full name of everything that a file imports, relative imports resolved, at any depth of the code."""
    package = ["regard", *path.relative_to(SOURCE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base += [node.module] if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


def test_attention_imports_torch_and_errors_only() -> None:
    allowed = re.compile(r"(torch|regard\.attention|regard\.errors)(\.|$)")
    files = sorted((SOURCE / "attention").rglob("*.py"))
    assert files, "no attention package found"
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in files
        for name in imported_names(path)
        if not allowed.match(name) and name.split(".")[0] not in sys.stdlib_module_names
    }
    assert found == set()


def test_errors_imports_nothing() -> None:
    assert list(imported_names(SOURCE / "errors.py")) == []


def test_no_registry_is_addressed() -> None:
    """Data comes through the ordinary package clients as the user has set them up, so no host is written down."""
    names = ["pypi", "pythonhosted", "npmjs", "yarnpkg", "debian", "ubuntu"]
    host = re.compile(rf"https?://[\w.-]*\b({'|'.join(names)})\.(org|com|net)\b")
    folders = [ROOT / name for name in ("src", "tests", "docs", "tools", "benchmarks", "web", ".ci")]
    files = [path for path in ROOT.iterdir() if path.is_file()]
    files += [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    text = {path: path.read_bytes().decode(errors="replace") for path in files if "node_modules" not in path.parts}
    assert ROOT / "pyproject.toml" in text
    found = [f"{path.relative_to(ROOT)}: {match[0]}" for path, body in text.items() for match in host.finditer(body)]
    assert found == []


# ------------------------------------------------------------------------------------------------------ public surface


def test_public_names_can_be_imported() -> None:
    assert regard.__all__
    assert len(set(regard.__all__)) == len(regard.__all__)
    missing = [name for name in regard.__all__ if not hasattr(regard, name)]
    assert missing == []
    assert set(regard.__all__) <= set(dir(regard))


def test_import_does_not_wait_for_torch() -> None:
    """`regard --help` answers at once because neither the package nor its errors load torch."""
    code = "import sys, regard, regard.errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def documented_tree(docstring: str) -> dict[str, tuple[str | None, int, int]]:
    """Parent, exit code and HTTP status of each class, read from the tree drawn in the docstring."""
    lines = docstring.splitlines()
    start = next(index for index, line in enumerate(lines) if line.strip() == "RegardError")
    margin = len(lines[start]) - len(lines[start].lstrip())
    tree: dict[str, tuple[str | None, int, int]] = {
        "RegardError": (None, errors.RegardError.exit_code, errors.RegardError.http_status)
    }
    ancestors = ["RegardError"]
    for line in lines[start + 1 :]:
        entry = re.match(r"([│ ]*)[├└]── (\w+) +(\d+) +(\d+) ", line[margin:])
        if entry is None:
            break
        depth = len(entry[1]) // 4
        del ancestors[depth + 1 :]
        tree[entry[2]] = (ancestors[depth], int(entry[3]), int(entry[4]))
        ancestors.append(entry[2])
    return tree


def test_error_tree_is_as_documented() -> None:
    real = {
        name: (cls.__base__.__name__ if cls is not errors.RegardError else None, cls.exit_code, cls.http_status)
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, errors.RegardError)
    }
    assert documented_tree(errors.__doc__ or "") == real


@pytest.mark.parametrize(("signal_number", "exit_code"), [(2, 130), (15, 143)])
def test_a_signal_gives_the_shell_its_code(signal_number: int, exit_code: int) -> None:
    assert errors.Interrupted("stopped", signal_number=signal_number).exit_code == exit_code


# -------------------------------------------------------------------------------------------------------------- wheel


@pytest.mark.slow
def test_wheel_holds_every_source_and_recipe(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("regard-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    recipes = {f"regard/recipes/{path.name}" for path in (SOURCE / "recipes").glob("*.yaml")}
    sources = {f"regard/{path.relative_to(SOURCE).as_posix()}" for path in SOURCE_FILES}
    assert recipes, "no recipe found"
    assert {"regard/py.typed"} | recipes | sources <= packed
    assert {name.split("/")[0] for name in packed} == {"regard"}
