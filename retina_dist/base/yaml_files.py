"""The package's reader of YAML files: bounded in depth and size, and without aliases.

An alias lets 400 bytes stand for 10^9 values, which a reader of the result would visit one by one.
"""

import re
from collections.abc import Hashable
from typing import Any, ClassVar

import yaml

from retina_dist.base.errors import first_line
from retina_dist.base.files import PathOrUrl, read_bytes

MAX_DEPTH = 20
MAX_TEXT = 100_000  # characters of one value
TAGS = (None, "!", "tag:yaml.org,2002:str")  # those that a value may be given

# libyaml reads 8 times as fast as the parser in Python, but a wheel may have been built without it.
_FastLoader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# YAML 1.2 takes 1e-3 for a number as OmegaConf does; PyYAML, which follows 1.1, asks for 1.0e-3.
_NUMBER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$")


class _Loader(_FastLoader):  # type: ignore[valid-type, misc]
    """Strings, numbers, lists and dictionaries: no dates, and no key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError(f"line {key.start_mark.line + 1}: a key must be a text or number")
            if key.value in keys:
                raise ValueError(
                    f"line {key.start_mark.line + 1}: the key {key.value!r} is given twice"
                )
            keys.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {}
for _first, _resolvers in _FastLoader.yaml_implicit_resolvers.items():
    _kept = [(tag, pattern) for tag, pattern in _resolvers if not tag.endswith(":timestamp")]
    _Loader.yaml_implicit_resolvers[_first] = _kept
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789"))


class _TextLoader(_Loader):
    """Every value is the text that was written, `no` and `010` too."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


def load_yaml(source: PathOrUrl | bytes | str, *, as_texts: bool = False) -> Any:
    """The content of a YAML file, or of its text, as plain values.

    With `as_texts`, numbers and the like are as they are written.

    Raises OSError where the file cannot be read, and ValueError, whose text is one line, for
    anything that is not YAML, for an alias, and for what is more than `MAX_DEPTH` deep.
    """
    text = source if isinstance(source, bytes | str) else read_bytes(source)
    try:
        _check_events(text)
        if as_texts:
            return yaml.load(text, _TextLoader)  # noqa: S506 a safe loader
        return yaml.load(text, _Loader)  # noqa: S506 a safe loader
    except yaml.YAMLError as error:
        reason = first_line(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            reason = f"line {error.problem_mark.line + 1}: {error.problem}"
        raise ValueError(reason) from error


def _check_events(text: bytes | str) -> None:
    """Raise ValueError for what would make a small file a large result."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(
                f"line {line}: the alias *{event.anchor} is not supported, write its value out"
            )
        if getattr(event, "tag", None) not in TAGS:
            raise ValueError(f"line {line}: the tag {event.tag} is not supported")

        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_TEXT:
            raise ValueError(f"line {line}: a value has more than {MAX_TEXT:,} characters")
        if depth > MAX_DEPTH:
            raise ValueError(f"line {line}: values are more than {MAX_DEPTH} deep in each other")
