"""The lines of Python behind a picture: a function's own source, as a reader can copy and run it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable


def listing(function: Callable[..., object]) -> str:
    """Print a function as a script: what it imports, what it needs of its module, its defaults, its lines.

    The docstring and the last return are left out; what is returned then stands in the names that the return names.

    Args:
        function: A function of a module whose source is there; each argument has a default.

    Returns:
        A script that leaves the function's results in its variables.
    """
    text = inspect.getsource(inspect.getmodule(function) or function)
    tree = ast.parse(text)
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    main = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function.__name__)
    used = [name for statement in main.body[1:-1] for name in _names(statement)]
    needed: list[ast.stmt] = []
    for name in used:  # grows: what a needed definition uses is needed too
        node = defined.pop(name, None)
        if node is not None:
            needed.append(node)
            used += _names(node)
    imports = [line for node in tree.body if (line := _import(node, set(used)))]
    helpers = [ast.get_source_segment(text, node) or "" for node in sorted(needed, key=lambda node: node.lineno)]
    defaults = zip(main.args.args, main.args.defaults, strict=True)
    settings = [f"{argument.arg} = {ast.unparse(value)}" for argument, value in defaults]
    told = main.body[0].end_lineno or 0
    lines = text.splitlines()[told : main.body[-1].lineno - 1]
    body = textwrap.dedent("\n".join(lines)).strip("\n")
    return "\n\n".join(part for part in ("\n".join(imports), *helpers, "\n".join(settings), body) if part) + "\n"


def _names(node: ast.AST) -> list[str]:
    return [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]


def _import(node: ast.stmt, used: set[str]) -> str:
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return ""
    names = [name for name in node.names if (name.asname or name.name.partition(".")[0]) in used]
    if not names:
        return ""
    node.names = names
    return ast.unparse(node)
