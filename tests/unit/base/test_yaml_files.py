from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retina_dist.base import yaml_files

BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(24)
)


@pytest.fixture(params=["C", "Python"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With libyaml, and as in a wheel that was built without it."""
    with monkeypatch.context() as patch:
        if request.param == "Python":
            patch.delattr("yaml.CSafeLoader")
        importlib.reload(yaml_files)
        yield
    importlib.reload(yaml_files)


@pytest.mark.usefixtures("loader")
def test_values_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "lr: 1e-3\nmore: 2.5E+4\nbig: 1.0e-05\nwhole: 17\nnone: ~\nflag: true\nday: 2024-01-31\n"
        "names: [a, 'b: c']\n0: zero\nempty: {}\n"
    )
    expected = {"lr": 1e-3, "more": 2.5e4, "big": 1e-5, "whole": 17, "none": None, "flag": True}
    expected |= {"day": "2024-01-31", "names": ["a", "b: c"], 0: "zero", "empty": {}}
    assert yaml_files.load_yaml(file) == expected
    assert yaml_files.load_yaml(b"") is None
    assert yaml_files.load_yaml("a: \xe9") == {"a": "\xe9"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, r"line 2: the alias \*a is not supported, write its value out"),
        ("names: &n [a]\ntrain: *n\n", r"line 2: the alias \*n"),
        ("a: &a [*a]", r"the alias \*a"),
        ("base: &b {x: 1}\nmore:\n  <<: *b\n", r"line 3: the alias \*b"),
        ("[" * 5000, "line 1: values are more than 20|line 1: exceeded maximum nesting depth"),
        ("{a: " * 5000, "more than 20 deep"),
        ("- " * 5000, "more than 20 deep"),
        ("? " * 5000, "more than 20 deep"),
        ("\n".join(" " * i + f"k{i}:" for i in range(5000)), "line 21: values are more than 20"),
        ("nc: " + "1:" * 60_000 + "1", "line 1: a value has more than 100,000 characters"),
        ("a: 1\na: 2\n", "line 2: the key 'a' is given twice"),
        ("[a]: 1\n", "line 1: a key must be a text or number"),
        ("a: [1\nb: 2", "line 2: "),
        ("a: !!python/object/apply:os.system [ls]", "line 1: the tag tag:yaml.org,2002:python/obj"),
        ("a: !!timestamp x", "the tag .*timestamp is not supported"),
        ("a: !!omap [x: 1]", "the tag .*omap is not supported"),
        ("a: !mine b", "the tag !mine is not supported"),
        ("<<: 3", "line 1: expected a mapping or list of mappings"),
        ("a: 1" + "0" * 5000, "Exceeds the limit"),
        ("a: \x00", "unacceptable character #x0000"),
        ("a: 1\n---\nb: 2\n", "line 2: but found another document"),
        (b"a: \xff\xfe\x00", "unacceptable character #x00ff|invalid start byte"),
    ],
)
@pytest.mark.usefixtures("loader")
def test_what_is_refused_is_one_line(text: str | bytes, message: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=message) as caught:
        yaml_files.load_yaml(text)
    assert "\n" not in str(caught.value)
    assert time.process_time() - started < 1


def test_a_long_list_of_names_takes_a_moment() -> None:
    names = [f"class {i}" for i in range(100_000)]
    text = "names:\n" + "".join(f"  - {name}\n" for name in names)
    started = time.process_time()
    assert yaml_files.load_yaml(text) == {"names": names}
    assert time.process_time() - started < 8
