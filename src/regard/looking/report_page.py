"""The page of a run: scores beside baselines, curves, samples, pictures, all that repeats it."""

from collections.abc import Sequence

from regard.looking.heat import MAX_TOKENS, heat_map, scale_legend
from regard.looking.maps import Maps
from regard.looking.overlay import ramp, shades, sharp, strongest, summaries
from regard.looking.page import document, pairs, responsive, section
from regard.looking.png import address, png_size
from regard.looking.report import ByLength, Figure, Report, Sample, Score, Table, flatten
from regard.looking.stacks import stacks_of
from regard.looking.svg import Bar, Series, bar_chart, grouped_bars, line_chart
from regard.looking.text import decimals_for, duration_text, escape

_WIDE_PX, _NARROW_PX = 660, 340
_HALF_PX = 530


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
        parts.append(section("Result", "On the test set.", results))
    parts += [section(escape(one.title), escape(one.about), _table(one)) for one in report.tables]
    if report.by_length:
        about = "Examples of the test set in groups by the length of their source."
        parts.append(section("By source length", about, "".join(_by_length(one) for one in report.by_length)))
    if report.curves:
        charts = dict.fromkeys(curve.chart for curve in report.curves)
        figures = "".join(_curves(report, chart) for chart in charts)
        parts.append(
            section("Learning curves", "", f'<div class="{"columns" if len(charts) > 1 else ""}">{figures}</div>')
        )
    if report.figures:
        parts.append(section("Pictures", "", "".join(map(_figure, report.figures))))
    if report.samples:
        parts.append(
            section("Samples", "Chosen by their position in the test set, not by quality.", _samples(report.samples))
        )
    texts, pictures = ([maps for maps in report.maps if bool(maps.pictures) == on] for on in (False, True))
    if texts:
        about = "Each row is an output token; the stronger a shade, the more it attends to the source token above."
        drawn = f'<div class="columns">{"".join(map(_alignment, texts))}</div>{scale_legend()}'
        parts.append(section("What it looked at", about, drawn))
    if pictures:
        about = "The stronger a shade, the more the class token, or the mean of all places, attends to it."
        parts.append(section("Where it looked", about, "".join(map(_looked, pictures))))
    if report.data:
        parts.append(section("Data", "", pairs(report.data.items())))
    command = "\n".join(escape(line) for line in report.command.splitlines())
    parts.append(section("Repeat it", "", f"<pre>{command}</pre>"))
    if report.settings:
        rows = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in flatten(report.settings))
        parts.append(section("Settings", "All of them, as they were resolved.", f'<dl class="many">{rows}</dl>'))
    if report.notes:
        parts.append(
            section("Notes", "", f'<ul class="notes">{"".join(f"<li>{escape(n)}</li>" for n in report.notes)}</ul>')
        )
    return document(report.title, "Training report", "\n".join(parts), kind="report")


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
    chart = responsive(lambda width: bar_chart(bars, label=metric, unit=head.unit, width=width), _WIDE_PX, _NARROW_PX)
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
    picture = responsive(
        lambda width: line_chart(series, x_label="step", y_label=chart, width=width), _HALF_PX, _NARROW_PX
    )
    return f"<figure>{picture}<output>Point at the chart to read it.</output></figure>"


def _samples(samples: Sequence[Sample]) -> str:
    verdicts = {"right": "✓ right", "wrong": "✗ wrong", "": "–"}
    judged, pictured = any(one.mark for one in samples), any(one.picture for one in samples)
    rows = []
    for one in samples:
        texts = (("Source", one.source), ("Reference", one.reference), ("Output", one.output))
        verdict = f'<td class="verdict {one.mark}" data-name="Verdict">{verdicts[one.mark]}</td>' if judged else ""
        told = "".join(f'<td data-name="{name}" dir="auto">{escape(text)}</td>' for name, text in texts)
        seen = f'<td data-name="Picture">{_thumbnail(one)}</td>' if pictured else ""
        rows.append(f"<tr>{verdict}{seen}{told}</tr>")
    names = [*(["Verdict"] if judged else []), *(["Picture"] if pictured else []), "Source", "Reference", "Output"]
    head = f"<tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>"
    kind = f"samples{' judged' if judged else ''}{' pictured' if pictured else ''}"
    return f'<table class="{kind}"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'


def _thumbnail(one: Sample) -> str:
    if one.picture is None:
        return ""
    return f'<img class="thumb {sharp(one.picture)}" src="{address(one.picture)}" alt="{escape(one.source)}">'


def _table(one: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in one.head)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in one.rows)
    return (
        f'<div class="scroll"><table class="figures"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _figure(one: Figure) -> str:
    about = f'<p class="soft">{escape(one.about)}</p>' if one.about else ""
    height, width = png_size(one.png)
    image = f'<img src="{address(one.png)}" width="{width}" height="{height}" alt="{escape(one.alt or one.title)}">'
    caption = f"<figcaption><h3>{escape(one.title)}</h3>{about}</figcaption>"
    return f'<figure class="sheet">{caption}<div class="scroll">{image}</div></figure>'


def _looked(maps: Maps) -> str:
    """Draw a picture as it is, and beside it where a model looked."""
    cards = []
    for one in maps.pictures:
        height, width = png_size(one.png)
        look = f'class="plain {sharp(one.png)}" style="aspect-ratio:{width}/{height}"'
        image = f'<img {look} src="{address(one.png)}" alt="{escape(one.name)}">'
        cards.append(f'<div class="card">{image}<p class="soft">as it is</p></div>')
    for stack in stacks_of(maps):
        if stack.picture is None or stack.maps[0].kind != "self":
            continue
        for title, laid_YX in summaries(stack):
            told = f'<p class="soft">{escape(title)}</p>{ramp(strongest(laid_YX))}'
            cards.append(f'<div class="card">{shades(stack.picture, laid_YX, title)}{told}</div>')
    answer = f'<p class="soft">→ <bdi>{escape(maps.output)}</bdi></p>' if maps.output else ""
    caption = f"<figcaption><h3><bdi>{escape(maps.source)}</bdi></h3>{answer}</figcaption>"
    return f'<figure class="looked">{caption}<div class="cards">{"".join(cards)}</div></figure>'


def _alignment(maps: Maps) -> str:
    one = maps.main()
    pair = f'<p class="soft"><bdi>{escape(maps.source)}</bdi> → <bdi>{escape(maps.output)}</bdi></p>'
    caption = f"<figcaption><h3>{escape(maps.title)}</h3>{pair}</figcaption>"
    if max(len(one.query_tokens), len(one.key_tokens)) > MAX_TOKENS:
        return f"<figure>{caption}<p class='soft'>Over {MAX_TOKENS} tokens: too long to draw.</p></figure>"
    picture = heat_map(one.weights_HTS[0], one.query_tokens, one.key_tokens, label=maps.title)
    return f'<figure>{caption}<div class="scroll">{picture}</div><output>{escape(one.layer)}</output></figure>'
