"""Pages: what a model looked at, and what a training reached. One file each, which loads nothing.

look_page(maps)       alignment, every layer and head, rollout
report_page(report)   scores beside baselines, curves, samples, pictures, all that repeats the run
"""

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np

from regard.looking.heat import MAX_TOKENS, heat_map, mask_image, scale_legend
from regard.looking.maps import AttentionMap, Maps, Weights
from regard.looking.report import ByLength, Report, Sample, Score, Table, flatten
from regard.looking.rollout import rollout
from regard.looking.svg import Bar, Series, bar_chart, grouped_bars, line_chart
from regard.looking.text import Json, decimals_for, duration_text, escape, script_json, token_label, visible

CSP = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
LONG_TOKENS = 34  # from here on a matrix needs the whole width of the page
_HOW = "A row is a token that attends, a column one that is attended to. Point at a cell, or use the arrow keys."
_WIDE_PX, _NARROW_PX = 660, 340
_HALF_PX = 530
_MARK = (
    '<svg viewBox="0 0 18 18" aria-hidden="true"><path d="M0 0h5v5H0zM6.5 6.5h5v5h-5zM13 13h5v5h-5z"/>'
    '<path opacity=".28" d="M6.5 0h5v5h-5zM13 0h5v5h-5zM0 6.5h5v5H0zM13 6.5h5v5h-5zM0 13h5v5H0zM6.5 13h5v5h-5z"/></svg>'
)
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 18 18' fill='%234a7fc4'%3E"
    "%3Cpath d='M0 0h5v5H0zM6.5 6.5h5v5h-5zM13 13h5v5h-5z'/%3E%3C/svg%3E"
)


@dataclass(frozen=True)
class _Group:
    """Maps of one stack: the same kind, the same tokens, the same name but for numbers."""

    title: str
    about: str
    maps: list[AttentionMap]


def look_page(maps: Maps) -> str:
    """Draw what a model looked at: one large matrix, its tokens, and a picture of every layer and head to choose from.

    Args:
        maps: The weights.

    Returns:
        A whole HTML document.

    Raises:
        UsageError: More tokens than a picture can hold.
    """
    groups = _groups(maps)
    main = maps.main()
    first = next(g for g, group in enumerate(groups) if any(one.layer == main.layer for one in group.maps))
    shown: list[str] = []
    lines: list[str] = []
    grids: list[str] = []
    entries: list[Json] = []
    for g, group in enumerate(groups):
        one = main if g == first else group.maps[-1].mean()
        hidden = "" if g == first else " hidden"
        picture = heat_map(one.weights_HTS[0], one.query_tokens, one.key_tokens, label=_mean_title(group.maps[-1]))
        shown.append(f'<div class="map scroll"{hidden}>{picture}</div>')
        lines.append(_token_lines(one, hidden))
        grids.append(_heads(group, g, entries, main.layer if g == first else ""))
    chosen = next(one for one in groups[first].maps if one.layer == main.layer)
    title = ("Alignment: " if chosen.kind == "cross" else "") + _mean_title(chosen)
    longest = max(len(side) for one in maps.maps for side in (one.query_tokens, one.key_tokens))
    store = script_json(
        {
            "groups": [
                {
                    "queries": [token_label(t) for t in group.maps[0].query_tokens],
                    "keys": [token_label(t) for t in group.maps[0].key_tokens],
                }
                for group in groups
            ],
            "maps": entries,
        }
    )
    pair = [f'<dt>Source</dt><dd class="text" dir="auto">{escape(maps.source)}</dd>']
    if maps.output:
        pair.append(f'<dt>Output</dt><dd class="text" dir="auto">{escape(maps.output)}</dd>')
    many = len(entries) > 1
    body = f"""
<h1>{escape(maps.title)}</h1>
<dl class="pair">{"".join(pair)}</dl>
<div class="looking{" long" if longest > LONG_TOKENS or not many else ""}">
<figure class="shown">
<figcaption><h2>{escape(title[0].upper() + title[1:])}</h2><p class="about mono">{escape(chosen.layer)}</p></figcaption>
{"".join(shown)}
<output aria-live="polite">{_HOW}</output>
{scale_legend()}
{"".join(lines)}
</figure>
<div{"" if many else " hidden"}>{"".join(grids)}</div>
</div>
{_section("Details", "", _pairs(maps.details.items())) if maps.details else ""}"""
    return _document(maps.title, "Attention", body, store, kind="look")


def _mean_title(one: AttentionMap) -> str:
    num_heads = len(one.weights_HTS)
    kind = "cross-attention" if one.kind == "cross" else "self-attention"
    return f"{kind}, mean of {num_heads} heads" if num_heads > 1 else kind


def _groups(maps: Maps) -> list[_Group]:
    """Sort maps into stacks, those that align first. A name's numbers count layers, the rest of it names the stack."""
    stacks: dict[tuple[object, ...], list[AttentionMap]] = {}
    for one in maps.maps:
        stack = re.sub(r"\d+", "*", one.layer)
        stacks.setdefault((one.kind == "self", stack, one.query_tokens, one.key_tokens), []).append(one)
    found = []
    for (_, stack, *_), members in sorted(stacks.items(), key=lambda item: bool(item[0][0])):
        found.append(_Group(_stack_title(members[0], maps), str(stack), members))
    return found


def _stack_title(one: AttentionMap, maps: Maps) -> str:
    if one.kind == "cross":
        return "Cross-attention, output to source"
    cross = next((other for other in maps.maps if other.kind == "cross"), None)
    if cross is None or cross.query_tokens == cross.key_tokens:
        return "Self-attention"
    return f"Self-attention of the {'source' if one.query_tokens == cross.key_tokens else 'output'}"


def _heads(group: _Group, g: int, entries: list[Json], chosen: str) -> str:
    """Draw the thumbnails of a stack: a row a layer, a column a head, their mean first."""
    most = max(len(one.weights_HTS) for one in group.maps)
    columns = most + 1 if most > 1 else 1
    cells = ["<span></span>"]
    cells += [f'<span class="col">{name}</span>' for name in (["mean", *range(most)] if most > 1 else [""])]
    kind = "cross-attention" if group.maps[0].kind == "cross" else "self-attention"
    for one in group.maps:
        number = " ".join(re.findall(r"\d+", one.layer)) or token_label(one.layer, 14)
        cells.append(f'<span class="row">{escape(number)}</span>')
        pictures: list[tuple[str, Weights]] = [(_mean_title(one), one.mean().weights_HTS[0])]
        if len(one.weights_HTS) > 1:
            pictures += [(f"{kind}, head {h}", weights) for h, weights in enumerate(one.weights_HTS)]
        for h, (title, weights) in enumerate(pictures):
            cells.append(_tile(title, one.layer, weights, g, entries, pressed=h == 0 and one.layer == chosen))
        cells += ["<span></span>"] * (columns - len(pictures))
    if group.maps[0].kind == "self" and len(group.maps) > 1:
        through = rollout(group.maps).astype(np.float32)
        title = f"rollout through {len(group.maps)} layers, residual connections included"
        cells.append('<span class="row">all</span>' + _tile(title, group.about, through, g, entries))
    grid = f'<div class="heads" style="--n:{columns}" data-wide="{columns}">{"".join(cells)}</div>'
    grid = grid.replace('tabindex="-1"', 'tabindex="0"', 1) if 'tabindex="0"' not in grid else grid
    told = "; all: rollout through the layers" if ">all<" in grid else ""
    about = f'<p class="about"><span class="mono">{escape(group.about)}</span>{told}</p>'
    return f'<div class="group"><h2>{group.title}</h2>{about}<div class="scroll">{grid}</div></div>'


def _tile(
    title: str,
    layer: str,
    weights_TS: Weights,
    g: int,
    entries: list[Json],
    *,
    pressed: bool = False,
    mean: bool = False,
) -> str:
    entries.append(
        {
            "group": g,
            "title": title[0].upper() + title[1:],
            "layer": visible(layer),
            "weights": base64.b64encode(weights_TS.astype("<f4").tobytes()).decode("ascii"),
        }
    )
    num_queries, num_keys = weights_TS.shape
    ratio = min(max(num_keys / num_queries, 0.5), 2.0)
    name = escape(f"{title}, {layer}")
    look = f"aspect-ratio:{ratio:.3f};--m:url({mask_image(weights_TS)})"
    state = f'aria-pressed="{"true" if pressed else "false"}" tabindex="{0 if pressed else -1}"'
    return (
        f'<button type="button" class="tile" data-map="{len(entries) - 1}" {state} title="{name}" aria-label="{name}"'
        f' style="{look}"><i></i></button>'
    )


def _token_lines(one: AttentionMap, hidden: str) -> str:
    def line(side: str, name: str, tokens: Sequence[str]) -> str:
        chips = "".join(f'<span class="tok">{escape(token_label(t, 40))}</span>' for t in tokens)
        return f'<dt class="soft">{name}</dt><dd data-side="{side}" dir="auto">{chips}</dd>'

    queries, keys = line("q", "attends", one.query_tokens), line("k", "is attended to", one.key_tokens)
    return f'<dl class="tokens"{hidden}>{queries}{keys}</dl>'


def report_page(report: Report) -> str:
    """Lay out a training report.

    Args:
        report: What to tell.

    Returns:
        A whole HTML document.
    """
    lead = f'<p class="lead">{escape(report.lead)}</p>' if report.lead else ""
    facts = [("Started", report.started), ("Took", duration_text(report.seconds)), ("On", report.hardware)]
    told = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    parts = [f'<div class="head"><h1>{escape(report.title)}</h1>{lead}<dl class="facts">{told}</dl></div>']
    if report.scores:
        metrics = dict.fromkeys(score.metric for score in report.scores)
        results = "".join(_result(report, metric) for metric in metrics)
        parts.append(_section("Result", "On the test set.", results))
    parts += [_section(escape(one.title), escape(one.about), _table(one)) for one in report.tables]
    if report.by_length:
        about = "Examples of the test set in groups by the length of their source."
        parts.append(_section("By source length", about, "".join(_by_length(one) for one in report.by_length)))
    if report.curves:
        charts = dict.fromkeys(curve.chart for curve in report.curves)
        figures = "".join(_curves(report, chart) for chart in charts)
        parts.append(
            _section("Learning curves", "", f'<div class="{"columns" if len(charts) > 1 else ""}">{figures}</div>')
        )
    if report.samples:
        parts.append(
            _section("Samples", "Chosen by their position in the test set, not by quality.", _samples(report.samples))
        )
    if report.maps:
        about = "Each row is an output token; the stronger a shade, the more it attends to the source token above."
        pictures = f'<div class="columns">{"".join(_alignment(maps) for maps in report.maps)}</div>{scale_legend()}'
        parts.append(_section("What it looked at", about, pictures))
    if report.data:
        parts.append(_section("Data", "", _pairs(report.data.items())))
    command = "\n".join(escape(line) for line in report.command.splitlines())
    parts.append(_section("Repeat it", "", f"<pre>{command}</pre>"))
    if report.settings:
        rows = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in flatten(report.settings))
        parts.append(_section("Settings", "All of them, as they were resolved.", f'<dl class="many">{rows}</dl>'))
    if report.notes:
        parts.append(
            _section("Notes", "", f'<ul class="notes">{"".join(f"<li>{escape(n)}</li>" for n in report.notes)}</ul>')
        )
    return _document(report.title, "Training report", "\n".join(parts), "", kind="report")


def _result(report: Report, metric: str) -> str:
    ours = [score for score in report.scores if score.metric == metric]
    theirs = [score for score in report.baselines if score.metric == metric]
    head, every = ours[0], ours + theirs
    digits = decimals_for([score.value for score in every])
    unit = f"<small>{escape(head.unit)}</small>" if head.unit else ""
    note = "lower is better" if head.better == "lower" else "higher is better"
    big = f'<h3>{escape(metric)}</h3><p class="big">{head.value:.{digits}f}{unit}</p>'
    big += f'<p class="soft">{escape(head.system)}; {note}</p>'
    if theirs:
        big += f'<p class="soft">{escape(_against(head, theirs, digits))}</p>'
    order = sorted(every, key=lambda score: score.value, reverse=head.better == "higher")
    bars = [Bar(score.system, score.value, ours=score in ours) for score in order]
    chart = _responsive(lambda width: bar_chart(bars, label=metric, unit=head.unit, width=width))
    signatures = dict.fromkeys(score.signature for score in every if score.signature)
    # A baseline's signature is the beginning of the model's: it has no beam and no seed, and says nothing more.
    whole = [s for s in signatures if not any(other != s and other.startswith(s) for other in signatures)]
    signed = "".join(f'<p class="signature mono">{escape(s)}</p>' for s in whole)
    return f'<div class="result"><div>{big}</div><figure>{chart}{signed}</figure></div>'


def _against(head: Score, others: Sequence[Score], digits: int) -> str:
    sign = -1 if head.better == "lower" else 1
    best = max(others, key=lambda score: sign * score.value)
    gap = head.value - best.value
    unit = " points" if head.unit == "%" else f" {head.unit}" if head.unit else ""
    amount = f"{abs(gap):.{digits}f}"
    if float(amount) == 0:
        return f"equal to {best.system}, the best baseline"
    side = "above" if gap > 0 else "below"
    return f"{amount}{unit} {side} {best.system}, the best baseline"


def _by_length(one: ByLength) -> str:
    bins = [f"{name} ({count})" for name, count in zip(one.bins, one.counts, strict=True)]
    values = list(one.scores.items())
    wide = grouped_bars(bins, values, x_label="source length (examples)", y_label=one.metric, width=1040)
    narrow = grouped_bars(one.bins, values, x_label="source length", y_label=one.metric, width=_NARROW_PX)
    both = f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'
    return f"<figure>{both}<output>Point at a bar to read it.</output></figure>"


def _curves(report: Report, chart: str) -> str:
    series = [Series(curve.name, curve.steps, curve.values) for curve in report.curves if curve.chart == chart]
    picture = _responsive(lambda width: line_chart(series, x_label="step", y_label=chart, width=width), wide=_HALF_PX)
    return f"<figure>{picture}<output>Point at the chart to read it.</output></figure>"


def _samples(samples: Sequence[Sample]) -> str:
    verdicts = {"right": "✓ right", "wrong": "✗ wrong", "": "–"}
    judged = any(one.mark for one in samples)
    rows = []
    for one in samples:
        texts = (("Source", one.source), ("Reference", one.reference), ("Output", one.output))
        verdict = f'<td class="verdict {one.mark}" data-name="Verdict">{verdicts[one.mark]}</td>' if judged else ""
        told = "".join(f'<td data-name="{name}" dir="auto">{escape(text)}</td>' for name, text in texts)
        rows.append(f"<tr>{verdict}{told}</tr>")
    head = f"<tr>{'<th>Verdict</th>' if judged else ''}<th>Source</th><th>Reference</th><th>Output</th></tr>"
    kind = "samples judged" if judged else "samples"
    return f'<table class="{kind}"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'


def _table(one: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in one.head)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in one.rows)
    return (
        f'<div class="scroll"><table class="figures"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _alignment(maps: Maps) -> str:
    one = maps.main()
    pair = f'<p class="soft"><bdi>{escape(maps.source)}</bdi> → <bdi>{escape(maps.output)}</bdi></p>'
    caption = f"<figcaption><h3>{escape(maps.title)}</h3>{pair}</figcaption>"
    if max(len(one.query_tokens), len(one.key_tokens)) > MAX_TOKENS:
        return f"<figure>{caption}<p class='soft'>Over {MAX_TOKENS} tokens: too long to draw.</p></figure>"
    picture = heat_map(one.weights_HTS[0], one.query_tokens, one.key_tokens, label=maps.title)
    return f'<figure>{caption}<div class="scroll">{picture}</div><output>{escape(one.layer)}</output></figure>'


def _responsive(draw: Callable[[int], str], wide: int = _WIDE_PX) -> str:
    """Draw a chart twice: letters that shrink with a picture cannot be read on a telephone."""
    return f'<div class="wide">{draw(wide)}</div><div class="narrow">{draw(_NARROW_PX)}</div>'


def _section(title: str, about: str, body: str) -> str:
    told = f'<p class="about">{about}</p>' if about else ""
    return f"<section><h2>{title}</h2>{told}{body}</section>"


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return f'<dl class="pairs">{"".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs)}</dl>'


def _document(title: str, kicker: str, body: str, store: str, *, kind: str) -> str:
    folder = resources.files("regard.looking")
    css, script = (folder.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    data = f'<script type="application/json" id="maps">{store}</script>\n' if store else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{CSP}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)} · regard</title>
<link rel="icon" href="{_ICON}">
<style>
{css}</style>
</head>
<body class="{kind}">
<header class="masthead"><span class="mark">{_MARK}regard</span><span>{kicker}</span></header>
<main>{body}
</main>
<footer>This page is one file and loads nothing.</footer>
{data}<script>
{script}</script>
</body>
</html>
"""
