"""Pages of lectures: the printed lines run, what is drawn is what they compute, the page in a browser."""

import ast
import html
import importlib
import inspect
import math
import pkgutil
import platform
import re
import textwrap
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import Tensor

from regard.looking.lecture import costs, lecture_page, numbers
from regard.looking.lecture.layout import Picture, laid_out
from regard.looking.lecture.listing import listing
from regard.looking.lecture.numbers import heads, masking, permuting, positions, recurrent
from regard.looking.matrix import number_text
from regard.looking.page import CSP


def printed_functions():
    """Every function of the numbers, as the page prints it."""
    modules = [
        importlib.import_module(f"{numbers.__name__}.{one.name}") for one in pkgutil.iter_modules(numbers.__path__)
    ]
    return [
        function
        for module in modules
        for function in vars(module).values()
        if inspect.isfunction(function) and function.__module__ == module.__name__
    ]


@pytest.fixture(scope="module")
def page():
    return lecture_page(cost=False)


# ------------------------------------------------------------------------------------------------- the printed lines


def same(a, b):
    """Tell whether two results are equal to the last bit."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Tensor):
        return torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) and torch.equal(a.isnan(), b.isnan())
    return a == b


def run_lines(lines, function):
    """Run printed lines in a fresh namespace, and collect what the function returns from its variables."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    returned = ast.unparse(tree.body[0].body[-1].value)
    namespace: dict[str, object] = {"__name__": "a_reader"}
    exec(f"{lines}\nresult = {returned}\n", namespace)  # noqa: S102 - what a reader does
    return namespace["result"]


def printed(page):
    return [html.unescape(one) for one in re.findall(r'<pre class="lines">(.*?)</pre>', page, re.DOTALL)]


def test_every_picture_prints_the_lines_that_give_its_numbers(page):
    found = printed(page)
    expected = [function for function in printed_functions() if function is not numbers.costs.costs]
    assert len(found) == len(expected)
    for function in expected:
        (lines,) = (one for one in found if one == listing(function).rstrip("\n"))
        assert same(run_lines(lines, function), function()), function.__name__


def test_the_printed_lines_of_the_costs_measure_them():
    lines = listing(numbers.costs.costs)
    told = "lengths = (64, 128, 256, 512, 1024, 2048, 4096)\n"
    assert told in lines
    seconds, peak_bytes = run_lines(lines.replace(told, "lengths = (3, 5)\n"), numbers.costs.costs)
    assert same(peak_bytes, numbers.costs.costs(lengths=(3, 5))[1])
    assert all(bool((one > 0).all()) for one in seconds.values())


def test_lines_are_a_script_of_their_own():
    assert listing(positions.sinusoids) == (
        "import torch\n"
        "from regard.attention.positions import sinusoidal\n\n"
        "encoding_ND = sinusoidal(torch.arange(50), dim=64)\n"
    )


# --------------------------------------------------------------------------------------------------------------- page


def test_measured_costs_are_drawn():
    rest = torch.tensor([math.nan])
    seconds, peak_bytes = (
        {name: torch.cat([one, rest]) for name, one in told.items()}
        for told in numbers.costs.costs(width=8, lengths=(3, 7))
    )
    text = html.unescape(laid_out(costs.measured(seconds, peak_bytes, 8, (3, 7, 11))))
    assert "Not measured, for time: 11." in text
    assert f"d = 8, 4 heads, k = 3, float32, on {platform.system()}" in text
    assert f"torch {torch.__version__}" in text
    titles = re.findall(r"<title>length n, tokens 7  ·  (.*?)</title>", text)
    for title, told, scale in zip(titles[::2], (seconds, peak_bytes), (1e3, 1.0), strict=True):  # wide, narrow
        assert title == "  ·  ".join(f"{name} {scale * one[1].item():.5g}" for name, one in told.items())


def matrices(page):
    """The numbers written in each matrix of the page, under the name that is heard."""
    found: dict[str, list[list[str]]] = {}
    for svg in re.findall(r'<svg class="matrix".*?</svg>', page):
        root = ET.fromstring(svg)
        texts = [e.text for e in root.iter("text") if e.get("class") == "figure"]
        found.setdefault(root.get("aria-label"), []).append(texts)
    return found


def test_what_is_drawn_is_what_was_computed(page):
    drawn = matrices(page)
    x, w_q, w_k, w_v, w_o, q, k, v, scores, scaled, masked, weights, results, joined, y, *_ = heads.head_steps()
    order = permuting.permutation()
    step = recurrent.decoder_step()
    _, zeros, _ = masking.sees_nothing()
    expected = {
        "WQ": [w_q],
        "WK": [w_k],
        "WV": [w_v],
        "WO": [w_o],
        "Y": [y],
        "heads": [joined],
        "X": [order[0], x, x, x],
        "P": [order[1]],
        "P X": [order[1] @ order[0]],
        "Attn(X)": [order[2]],
        "P Attn(X)": [order[1] @ order[2]],
        "Attn(P X)": [order[3]],
        "A(X)": [order[4]],
        "A(P X)": [order[5]],
        "E": [order[7]],
        "P Attn(X + E)": [order[1] @ order[8]],
        "Attn(P X + E)": [order[9]],
        "Attn": [zeros],
        "M3": [positions.sinusoid_shift()[0]],
        "h": [step[0], step[0]],
        "s": [step[1]],
        "Ws s": [step[2]],
        "Wh h": [step[3]],
        "tanh(Ws s + Wh h)": [step[4]],
        "v": [step[5]],
        "e": [step[6]],
        "a": [step[7]],
        "c": [step[8]],
    }
    cross = heads.cross_attention()
    for h in (0, 1):
        expected[f"Q{h}"], expected[f"K{h}T"], expected[f"V{h}"] = [q[:, h]], [k[:, h].T], [v[:, h]]
        expected[f"E{h}"], expected[f"E{h} / √K"] = [scores[h], scores[h]], [scaled[h]]
        expected[f"A{h}"] = [weights[h], weights[h], cross[h]]
    expected["masked"] = [masked[0], masked[1], masked[0], masked[1]]
    for name, projected in (("Q", q), ("K", k), ("V", v)):
        expected[f"{name}, head 0"], expected[f"{name}, head 1"] = [projected[:, 0]], [projected[:, 1]]
    for name, tensors in expected.items():
        decimals = 0 if name == "P" else 2
        told = [[number_text(number, decimals) for number in one.detach().flatten().tolist()] for one in tensors]
        assert drawn[name] == told, name
    biases = positions.alibi()
    for h in (0, 1):  # ALiBi's heads of the same names have shades alone, and a table of their own
        shown = [result for result in drawn[f"head {h}"] if result]
        assert shown == [[number_text(number) for number in results[:, h].detach().flatten().tolist()]]
    assert number_text(float(biases[0, 0, 7]), 3) in page


def test_masks_are_drawn_as_they_are(page):
    names = ["none", "causal", "window", "causal and window", "prefix", "packed documents", "documents and causal"]
    names += ["blocks", "shifted blocks"]
    for name, allowed_TS in zip(names, masking.mask_matrices().values(), strict=True):
        (svg,) = re.findall(rf'<svg class="matrix"[^>]*aria-label="{name}">.*?</svg>', page)
        shades = [e.get("fill-opacity") for e in ET.fromstring(svg).iter("rect") if e.get("class") == "plus"]
        assert shades == [f"{allowed:.3f}" for allowed in allowed_TS.flatten().tolist()], name


def test_the_page_is_the_same_each_time_and_leaves_the_seed_alone(page):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    assert lecture_page(cost=False) == page
    assert torch.equal(torch.get_rng_state(), before)


def test_a_page_without_costs_says_so(page):
    assert "Time and memory were not measured for this page." in page
    assert "What is measured, here and now" not in page


def test_the_page_loads_nothing_and_its_pictures_are_well_formed(page):
    assert CSP in page
    assert all(address.startswith(("#", "data:image/")) for address in re.findall(r'(?:src|href)="([^"]*)"', page))
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page.partition("<script>")[0])
    svgs = re.findall(r'<svg [^>]*role="img".*?</svg>', page)
    assert len(svgs) > 80
    for svg in svgs:
        assert ET.fromstring(svg).get("aria-label")
    anchors = re.findall(r'<section id="([^"]*)"', page)
    assert anchors == re.findall(r'<a href="#([^"]*)"', page)
    assert len(set(anchors)) == 7
    assert page.count("<figure") == page.count("<figcaption><h3>") == page.count('<p class="source">')


def test_a_picture_escapes_what_it_is_told():
    drawn = laid_out(Picture("<b>", ("`x < y` & z",), ("a_{i} < b^{2}",), '"&"', "<i></i>", None))
    assert "<h3>&lt;b&gt;</h3>" in drawn
    assert '<span class="math"><i>x</i> &lt; <i>y</i></span> &amp; z' in drawn
    assert "<div><i>a</i><sub><i>i</i></sub> &lt; <i>b</i><sup>2</sup></div>" in drawn
    assert '<p class="source">&quot;&amp;&quot;</p>' in drawn


@pytest.mark.slow
def test_a_browser_shows_every_section(watched, page, tmp_path):
    path = tmp_path / "lecture.html"
    path.write_text(page, "utf-8")
    watched.open(path)
    assert watched.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert watched.page.locator("section:visible").count() == 7
    first = watched.page.locator("details", has_text="In Python").first
    first.locator("summary").click()
    assert first.locator("pre").text_content() == listing(positions.sinusoids).rstrip("\n")
    watched.page.locator('a[href="#cost"]').click()
    assert watched.page.url.endswith("lecture.html#cost")
    watched.check_quiet(path)
