"""Settings: a closed schema, in which a mistake is one line that says where it is."""

from dataclasses import asdict, dataclass, field
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard.errors import ConfigError
from regard.settings import build, override, plain, read_yaml, write_yaml


@dataclass(frozen=True)
class Inner:
    rate: float = 1e-9
    kind: Literal["adam", "adamw"] = "adam"


@dataclass(frozen=True)
class Outer:
    name: str
    steps: int = 3
    fast: bool = False
    dev: str | None = None
    widths: tuple[int, ...] = ()
    inner: Inner = field(default_factory=Inner)
    model: dict = field(default_factory=dict)


def refused(text: str, kind: type = Outer) -> str:
    with pytest.raises(ConfigError) as caught:
        build(kind, read_yaml(text, "r.yaml"), "r.yaml")
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 300
    return line


def test_everything_given() -> None:
    text = "{name: x, steps: 7, fast: true, dev: d.tsv, widths: [1, 2], inner: {rate: 2, kind: adamw}, model: {a: b}}"
    wanted = Outer("x", 7, True, "d.tsv", (1, 2), Inner(2.0, "adamw"), {"a": "b"})
    got = build(Outer, read_yaml(text, "r.yaml"), "r.yaml")
    assert got == wanted
    assert type(got.inner.rate) is float
    assert build(Outer, {"name": "x", "dev": None}, "r.yaml") == Outer("x")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{name: x, step: 7}", "r.yaml: unknown key 'step'; did you mean steps?"),
        ("{name: x, inner: {rat: 7}}", "r.yaml.inner: unknown key 'rat'; did you mean rate?"),
        ("{name: x, inner: {zzz: 7}}", "r.yaml.inner: unknown key 'zzz'; known: rate, kind"),
        ("{name: x, 7: 7}", "r.yaml: unknown key 7; known: name, steps, fast, dev, widths, inner, model"),
        ("{steps: 7}", "r.yaml: the key 'name' is missing"),
        ("{name: 7}", "r.yaml.name: expected str, got 7"),
        ("{name: x, steps: 7.0}", "r.yaml.steps: expected int, got 7.0"),
        ("{name: x, steps: true}", "r.yaml.steps: expected int, got True"),
        ("{name: x, steps: null}", "r.yaml.steps: expected int, got None"),
        ("{name: x, steps: '7'}", "r.yaml.steps: expected int, got '7'"),
        ("{name: x, fast: 1}", "r.yaml.fast: expected bool, got 1"),
        ("{name: x, dev: 1}", "r.yaml.dev: expected str, got 1"),
        ("{name: x, widths: [1, a]}", "r.yaml.widths[1]: expected int, got 'a'"),
        ("{name: x, widths: 12}", "r.yaml.widths: expected tuple, got 12"),
        ("{name: x, inner: [1]}", "r.yaml.inner: expected settings, got list; write key: value lines"),
        ("{name: x, model: [1]}", "r.yaml.model: expected dict, got [1]"),
        ("{name: x, inner: {kind: sgd}}", "r.yaml.inner.kind: 'sgd' is not allowed; choose from adam, adamw"),
        ("{name: x, inner: {kind: [adam]}}", "r.yaml.inner.kind: ['adam'] is not allowed; choose from adam, adamw"),
        ("{name: x, inner: {rate: fast}}", "r.yaml.inner.rate: expected float, got 'fast'"),
        ("{name: x, inner: {rate: true}}", "r.yaml.inner.rate: expected float, got True"),
        ("[1, 2]", "r.yaml: not a mapping of settings; write key: value lines"),
        ("", "r.yaml: not a mapping of settings; write key: value lines"),
        ("{name: x", "r.yaml: line 1: not YAML: expected ',' or '}', but got '<stream end>'"),
        ("name: x\nsteps: 1\nsteps 7", "r.yaml: line 3: not YAML: could not find expected ':'"),
        (
            "name: !!python/object/apply:os.system [id]",
            "r.yaml: line 1: not YAML: could not determine a constructor for the tag",
        ),
        ("name: 2020-13-45", "r.yaml: not YAML: not readable"),
    ],
)
def test_a_mistake_is_one_line(text: str, line: str) -> None:
    assert refused(text).startswith(line)


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf", "nan", "inf", "1e999", "1" + "0" * 400])
def test_what_is_not_finite_is_refused(value: str) -> None:
    assert refused(f"{{name: x, inner: {{rate: {value}}}}}").startswith("r.yaml.inner.rate: expected float, got ")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{a: " * 100_000,
        "- " * 100_000,
        f"name: {'x' * 100_000}\nsteps: {'[' * 90}1{']' * 90}",
        f"name: x\nsteps: {[*range(10_000)]}",
        f"name: x\nfast: 0x{'f' * 5000}",
        f"name: x\nsteps: 1{'0' * 5000}",
        f"? {'k' * 10_000}\n: 1",
        "name: \x00",
        "a: &a [1]\nb: *c",
    ],
    ids=["lists", "mappings", "dashes", "nested", "long", "hex", "digits", "long key", "NUL", "alias"],
)
def test_hostile_settings_are_refused_in_one_line(text: str) -> None:
    refused(text)


@pytest.mark.parametrize("text", ["1e-9", "1E-9", "1.0e-9", "0.000000001", "'1e-9'"])
def test_floats_as_people_write_them(text: str) -> None:
    assert build(Inner, read_yaml(f"rate: {text}", "r.yaml"), "r.yaml").rate == 1e-9
    assert build(Inner, override({}, [f"rate={text}"]), "r.yaml").rate == 1e-9


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
floats = st.floats(allow_nan=False, allow_infinity=False)


@example(Outer("\x85", dev="\u2028"))
@example(Outer("a\x85b \u2028\u2029\ufeff", dev="1e-9", model={"null": "~", "a: b": " x\n "}))
@settings(max_examples=60)
@given(
    st.builds(
        Outer,
        names,
        st.integers(),
        st.booleans(),
        st.none() | names,
        st.lists(st.integers(), max_size=3).map(tuple),
        st.builds(Inner, floats, st.sampled_from(["adam", "adamw"])),
        st.dictionaries(names, st.integers() | names | floats | st.none() | st.booleans(), max_size=3),
    )
)
def test_settings_come_back(written: Outer) -> None:
    assert build(Outer, plain(written), "here") == written
    assert build(Outer, read_yaml(write_yaml(written), "here"), "here") == written
    assert plain(written) == {**asdict(written), "widths": list(written.widths)}


# ------------------------------------------------------------------------------------------------------------ overrides


def test_overrides_go_down_by_dots_and_leave_the_recipe() -> None:
    recipe = {"name": "x", "inner": {"rate": 1.0}, "widths": [1]}
    changed = override(
        recipe, ["inner.rate=1e-3", "inner.kind=adamw", "model.a.b=[1, 2]", "dev=", "name=a=b", "widths=[2]"]
    )
    inner, model = {"rate": "1e-3", "kind": "adamw"}, {"a": {"b": [1, 2]}}
    assert changed == {"name": "a=b", "inner": inner, "widths": [2], "model": model, "dev": None}
    assert recipe == {"name": "x", "inner": {"rate": 1.0}, "widths": [1]}
    assert build(Outer, changed, "r.yaml").inner == Inner(1e-3, "adamw")
    assert override({"steps": 1}, ["steps=2", "steps=3"]) == {"steps": 3}


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        ("steps", "--set: cannot read 'steps'; write section.key=value"),
        ("=3", "--set: cannot read '=3'; write section.key=value"),
        ("", "--set: cannot read ''; write section.key=value"),
        ("name.first=3", "--set name.first: 'name' is no section"),
        ("steps=[1", "--set steps: line 1: not YAML: "),
        ("steps=2020-13-45", "--set steps: not YAML: not readable"),
        ("steps=" + "[" * 100_000, "--set steps: not YAML: not readable"),
        ("steps=1" + "0" * 5000, "--set steps: not YAML: not readable"),
        ("steps=!!python/name:os.system x", "--set steps: line 1: not YAML: "),
    ],
)
def test_an_override_that_cannot_be_read_is_one_line(assignment: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override({"name": "x"}, [assignment])
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", ("line 3", "'a'", "twice")),
        ("x:\n  k: 1\n  k: 2\n", ("line 3", "'k'", "twice")),
        ("a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]\n", ("alias",)),
        ("a: &a [*a]\n", ("alias",)),
    ],
)
def test_a_key_given_twice_and_aliases_are_refused(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        read_yaml(text, "x.yaml")
    assert all(word in str(error.value) for word in words), error.value
