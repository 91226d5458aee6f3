"""The verb ``regard look``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from regard.cli.options import Device, check_model_path
from regard.errors import UsageError
from regard.typed import check_typed

if TYPE_CHECKING:
    from regard.looking import Maps

_SUFFIXES = (".html", ".json")


def look(
    model: Annotated[str | None, Parameter(help="A run's folder, the model folder in it, or a public one.")] = None,
    *inputs: Annotated[
        str, Parameter(help="What to look at: a text, or an image file; two to compare.", allow_leading_hyphen=True)
    ],
    out: Annotated[
        Path | None,
        Parameter(name=("--out", "-o"), help="Write the page (.html) or the weights (.json), and open nothing."),
    ] = None,
    against: Annotated[str | None, Parameter(help="Another model, to compare.")] = None,
    target: Annotated[str | None, Parameter(help="An output to look at; left out, the model writes one.")] = None,
    layers: Annotated[
        list[str] | None, Parameter(negative="", help="Names or patterns of layers; left out, all. Repeatable.")
    ] = None,
    language: Annotated[str, Parameter(help="Of the text, for a model that is told it.")] = "",
    lecture: Annotated[
        bool, Parameter(negative="", help="Draw the pictures of lectures on attention; no model is needed.")
    ] = False,
    host: Annotated[
        str, Parameter(help="Address that the page is served on; a token guards any but this machine's.")
    ] = ("127.0.0.1"),
    port: Annotated[int, Parameter(help="Its port; 0 is any free one.")] = 0,
    allow_host: Annotated[
        list[str] | None, Parameter(negative="", help="A further name that the page is opened under. Repeatable.")
    ] = None,
    browser: Annotated[bool, Parameter(help="Open the page in the browser.")] = True,
    save_to: Annotated[Path, Parameter(help="Folder in which the page saves masked models.")] = Path("runs"),
    device: Device = "auto",
) -> None:
    """See what a model attends to: a page in the browser, or one self-contained file."""
    if out is not None and out.suffix not in _SUFFIXES:
        raise UsageError(
            f"cannot write {out.suffix or 'a file without an ending'}", where=str(out), mend="give .html or .json"
        )
    if lecture:
        _lecture(out, model, browser)
        return
    if model is None:
        raise UsageError("no model", where="look", mend="give a folder, or --lecture")
    models = [check_model_path(one) for one in (model, against) if one is not None]
    for text in inputs:
        check_typed(text, "text")
    if target:
        check_typed(target, "target")
    if target is not None and not target.strip():
        raise UsageError("an empty text", where="--target", mend="give some words, or leave it out")
    if len(inputs) * len(models) > 2:
        raise UsageError("more than two to compare", where="look", mend="give two inputs, or one with --against")
    if out is not None:
        if not inputs:
            raise UsageError("nothing to look at", where=str(out), mend="give a text or an image file")
        if len(inputs) * len(models) > 1 and out.suffix != ".html":
            raise UsageError("two runs in one .json", where=str(out), mend="write them one by one, or give .html")
        _write(out, models, inputs, target, layers, language, device)
    else:
        _serve(models, inputs, target, layers, language, device, (host, port, allow_host or [], browser, save_to))


def _write(
    out: Path,
    models: list[str],
    inputs: tuple[str, ...],
    target: str | None,
    layers: list[str] | None,
    language: str,
    device: str,
) -> None:
    import regard
    from regard.looking.reading import look as maps_of

    found: list[Maps] = []
    for path in models:
        product = regard.load(path, device)
        found += [maps_of(product, text, target, layers, language) for text in inputs]
    if len(found) == 1:
        found[0].save(out)
    else:
        from regard.files import write_aside
        from regard.looking.look_page import look_page

        write_aside(out, look_page(*found))
    for one in found:
        if one.output:
            print(one.output)
    print(f"page: {out.resolve()}")


def _serve(
    models: list[str],
    inputs: tuple[str, ...],
    target: str | None,
    layers: list[str] | None,
    language: str,
    device: str,
    place: tuple[str, int, list[str], bool, Path],
) -> None:
    host, port, also, browser, save_to = place
    from regard.serving.listening import is_loopback, listen, names, new_token, serve

    taken = listen(host, port)  # before models are loaded: a port that is taken is told at once
    import regard
    from regard.serving.look import look_app, opened
    from regard.serving.runs import Runs

    runs = Runs([opened(path, regard.load(path, device)) for path in models], save_to)
    begin = [
        runs.show(number, text, target=target, layers=layers, language=language)
        for number in range(len(models))
        for text in inputs
    ]
    port = taken.getsockname()[1]
    token = None if is_loopback(host) else new_token()
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
    app = look_app(runs, begin, names(host, port, also), token)
    serve(app, taken, lambda: print(f"page: {address}  (Ctrl-C ends it)", flush=True), address if browser else None)


def _lecture(out: Path | None, model: str | None, browser: bool) -> None:
    if model is not None:
        raise UsageError("a model with --lecture", where="look", mend="leave it out")
    if out is not None and out.suffix != ".html":
        raise UsageError(f"cannot write {out.suffix}", where=str(out), mend="give .html")
    import tempfile
    import webbrowser

    from regard.files import write_aside
    from regard.looking.lecture import lecture_page

    path = Path(tempfile.mkdtemp(prefix="regard-lecture-")) / "lecture.html" if out is None else out
    write_aside(path, lecture_page())
    print(f"page: {path.resolve()}")
    if out is None and browser:
        webbrowser.open(path.resolve().as_uri())
