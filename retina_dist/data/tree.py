"""One walk of a data set's folder: its files, the split that each is of, what each holds, and the
image that a written name means.
"""

from __future__ import annotations

import csv
import io
import json
import os
import posixpath
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree

import msgspec

from retina_dist.base.errors import DataError, UserError
from retina_dist.base.files import PathOrUrl, Url, open_regular
from retina_dist.data.images import is_image
from retina_dist.data.parsing import delimiter_of, reading
from retina_dist.data.settings import SPLITS

SPLIT_OF_WORD: dict[str, str] = {}
for _split, _words in SPLITS.items():
    SPLIT_OF_WORD.update(dict.fromkeys(_words, _split))
# words beside a split's in the name of its folder, as in training_set or train-images
NEUTRAL = frozenset(
    (
        *("annotations", "data", "dataset", "folder", "images", "image", "imgs", "img"),
        *("labels", "mltable", "obj", "set", "split"),
    )
)
JUNK = frozenset(("__macosx", "thumbs.db", "desktop.ini"))
# folders of pictures that are annotations themselves
NO_IMAGES = frozenset(("masks", "mask", "labels", "segmentationclass", "segmentationobject"))
BESIDE = ("", "images", "data", "img", "JPEGImages")  # where images lie, from an annotation file
MANY = 1000  # files of a folder; of more, the first ones are looked into
SAMPLE = 20
HEAD_BYTES = 2**16  # of a table or a text

WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
# before the path in a URL of a datastore or a bucket
STORE = re.compile(r"azureml://.*?/paths/|[\w+.-]+://[^/]*/")


def words_of(name: str) -> list[str]:
    """The words of a file's name.

    >>> words_of("instances_Train2017"), words_of("TRAIN"), words_of("trainSet")
    (['instances', 'train'], ['train'], ['train', 'set'])
    """
    return list(map(str.lower, WORDS.findall(name)))


def split_of(path: str, by_word: bool = False) -> str | None:
    """The split that the last of a file's folders names; None for none.

    With `by_word`, of a file about many images, a word in its own name comes before its folders.

    >>> split_of("Training_set/a.jpg"), split_of("test_tubes/a.jpg"), split_of("b_train.csv", True)
    ('train', None, 'train')
    """
    *folders, name = path.split("/")
    if by_word:
        for word in words_of(name.rpartition(".")[0] or name):
            if word in SPLIT_OF_WORD:
                return SPLIT_OF_WORD[word]
    for folder in reversed(folders):
        words = set(words_of(folder)) - NEUTRAL
        if len(words) == 1 and words <= SPLIT_OF_WORD.keys():
            return SPLIT_OF_WORD[words.pop()]
    return None


def split_of_cell(text: str) -> str | None:
    """The split that a cell of a table names, as fastai's is_valid does; None for none.

    >>> split_of_cell("Validation"), split_of_cell("TRUE"), split_of_cell("0"), split_of_cell("b")
    ('val', 'val', 'train', None)
    """
    is_valid = {"true": "val", "1": "val", "false": "train", "0": "train"}
    return is_valid.get(text.lower()) or split_of(text, by_word=True)


def split_of_folder(folder: str) -> str | None:
    """The split that a folder or, of a path, the last of its folders names; None for none."""
    return split_of(f"{folder}/")


class Head(NamedTuple):
    """What the beginning of a file shows, parsed.

    Args:
        kind: "object" or "list" of json, "lines" of json, "xml", "table" or "text"; "empty" of a
            table or lines without content.
        keys: of the object, or of the first one in the list or lines; the root element; the
            cells of the first row; the words of the first line.
        inner: the keys of the object's first value; the cells or words of the second row.
        error: why the file cannot be read.
    """

    kind: str = ""
    keys: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    error: DataError | None = None

    def has(self, *keys: str) -> bool:
        """Whether all of these are among the keys."""
        return set(keys) <= set(self.keys)


class Tree:
    """The files below a folder, local or behind a URL, without hidden ones.

    Args:
        root: the folder.
        files: their paths from there; by default all, in the order of their parts.
    """

    def __init__(self, root: PathOrUrl, files: Sequence[str] | None = None) -> None:
        self.root = root
        self.is_whole = files is None
        if files is None:
            files = sorted(_walk(root), key=lambda file: file.replace("/", "\0"))
        self.files = files
        self._heads: dict[str, Head] = {}

    @classmethod
    def at(cls, place: PathOrUrl) -> Tree:
        """The tree of a folder, or of one file."""
        is_file = isinstance(place, Url) and "." in place.name
        if not is_file and place.is_dir():
            return cls(place)
        return cls(place.parent, (place.name,))

    @cached_property
    def listed(self) -> frozenset[str]:
        """The files, to be asked for one."""
        return frozenset(self.files)

    @cached_property
    def images(self) -> list[str]:
        """The image files, without those in folders of masks."""
        return [file for file in self._pictures if posixpath.dirname(file) in self._folders]

    @cached_property
    def _pictures(self) -> list[str]:
        return list(filter(is_image, self.files))

    @cached_property
    def _folders(self) -> dict[str, None]:
        """The folders of the pictures that are images, not masks, in their order."""
        folders = dict.fromkeys(map(posixpath.dirname, self._pictures))
        for folder in list(folders):
            if not NO_IMAGES.isdisjoint(folder.lower().split("/")):
                del folders[folder]
        return folders

    def without(self, used: Iterable[str]) -> list[str]:
        """The images that are not among these."""
        known = set(used)
        return [file for file in self.images if file not in known]

    def ending(self, *endings: str) -> list[str]:
        """The files whose names end so, whatever their case."""
        found = []
        for file in self._no_images:
            if file.partition("?")[0].lower().endswith(endings):
                found.append(file)
        return found

    @cached_property
    def _no_images(self) -> list[str]:
        pictures = set(self._pictures)
        return [file for file in self.files if file not in pictures]

    def head(self, file: str) -> Head:
        """What the beginning of a file shows."""
        if file not in self._heads:
            self._heads[file] = self._look(file)
        return self._heads[file]

    def _look(self, file: str) -> Head:
        place = self.root / file
        parse = HEADS.get(_ending(file), _text_head)
        try:
            with reading(place, "an annotation", "restore or remove it", "check its path"):
                if isinstance(place, Url):
                    return parse(place.read_bytes())
                with open_regular(place) as content:
                    if parse is _lines_head:
                        return parse(next(filter(bytes.strip, content), b""))
                    return parse(content.read(-1 if parse is _json_head else HEAD_BYTES))
        except DataError as error:
            return Head(error=error)

    def select(self, endings: Sequence[str], matches: Callable[[Head], bool]) -> list[str]:
        """The files of these endings whose heads match, and the damaged ones if any file matches.

        In a folder with many files only the first ones are looked into; the others are taken to
        be like them.
        """
        found = []
        is_any = False
        for files in grouped(self.ending(*endings), posixpath.dirname).values():
            looked = files[:SAMPLE] if len(files) > MANY else files
            chosen = [file for file in looked if self._may_match(file, matches)]
            is_any = is_any or any(self.head(file).error is None for file in chosen)
            if len(files) > MANY and len(chosen) == SAMPLE:
                chosen = files
            found += chosen
        if not is_any:
            return []
        return found

    def _may_match(self, file: str, matches: Callable[[Head], bool]) -> bool:
        head = self.head(file)
        return head.error is not None or matches(head)

    def raise_damage(self) -> None:
        """Raise DataError for the first of the files looked into that is damaged or empty."""
        for file, head in self._heads.items():
            if head.error is not None:
                raise head.error
            self.check_content(file)

    def check_content(self, file: str) -> None:
        """Raise DataError for a table or JSON lines without content."""
        if self.head(file).kind == "empty":
            raise DataError(f"{self.root / file} is empty; restore or remove it.")

    @cached_property
    def _by_stem(self) -> Mapping[str, list[str]]:
        return grouped(self.images, _stem)

    def find(self, written: str, near: str = "", split: str | None = None) -> str | None:
        """The image that an annotation file names; None where there is none.

        Looks beside the annotation file and in the usual folders of images, then for the image
        whose path shares the most folders with the end of the written one. That image may have
        another ending.

        Args:
            written: the name, perhaps another machine's path or a URL.
            near: the annotation file, if it is in this tree.
            split: the split to read; images in folders of other splits are ignored.

        Raises DataError for two candidates.
        """
        name = local_part(written)
        for base in self._bases(posixpath.dirname(near)):
            place = posixpath.normpath(f"{base}{name.lstrip('/')}")
            if place in self.listed:
                return place
        found = self._longest(name, near, split)
        if found is None and "%" in name:
            found = self._longest(unquote(name), near, split)
        return found

    def _bases(self, folder: str) -> Iterator[str]:
        for start in dict.fromkeys((folder, "")):
            for name in BESIDE:
                base = posixpath.join(start, name)
                yield f"{base}/" if base else ""

    def _longest(self, name: str, near: str, split: str | None) -> str | None:
        """The image that shares most of the end of a path."""
        name = unicodedata.normalize("NFC", name)
        alike = self._by_stem.get(_stem(name), [])
        nearest = alike
        if len(alike) > SAMPLE:  # frames of many videos: first those in a folder of this name
            end = "/".join(f"/{name}".split("/")[-2:])
            nearest = [file for file in alike if f"/{file}".endswith(f"/{end}")]
        candidates = _of_split(nearest, split) or _of_split(alike, split)
        if not candidates:
            return None
        folder = posixpath.dirname(near)

        def rank(file: str) -> tuple[int, int, bool]:
            base = _base(file)
            is_same = (base == _base(name)) + (base.casefold() == _base(name).casefold())
            return is_same, _shared_end(file, name), posixpath.dirname(file) == folder

        best, *others = sorted(candidates, key=rank, reverse=True)
        if others and rank(others[0]) == rank(best):
            raise DataError(
                f"{self.root}: the image {name[:200]!r} may be {best} or {others[0]}; "
                "remove one, or write its folder into the annotations."
            )
        return best

    @cached_property
    def _image_folders(self) -> list[str]:
        """The folders of images and those above, each once."""
        folders = dict(self._folders)
        for folder in self._folders:
            while "/" in folder:
                folder = posixpath.dirname(folder)
                folders[folder] = None
        return list(filter(None, folders))

    def folder_of(self, names: Sequence[str], near: str, split: str | None) -> str:
        """The folder, "" or with a slash at its end, in which most of the first of these images
        are.
        """
        sample = names[:SAMPLE]
        bases = list(self._bases(posixpath.dirname(near)))
        for folder in self._image_folders:
            if split is None or split_of_folder(folder) in (split, None):
                bases.append(f"{folder}/")

        def found_in(base: str) -> int:
            return sum(f"{base}{name}" in self.listed for name in sample)

        best = max(dict.fromkeys(bases), key=found_in)
        if not found_in(best):
            return ""
        return best


def local_part(written: str) -> str:
    """A written path with slashes, without the store of a URL and what follows a question mark.

    >>> local_part("C:\\\\me\\\\a.jpg"), local_part("azureml://x/datastores/y/paths/z/a.jpg")
    ('C:/me/a.jpg', 'z/a.jpg')
    """
    name = written.replace("\\", "/")
    if "?d=" in name:  # Label Studio's local files
        return name.partition("?d=")[2]
    store = STORE.match(name)
    if store is None:
        return name.removeprefix("./")
    return name[store.end() :].partition("?")[0]


def _ending(file: str) -> str:
    return posixpath.splitext(file.partition("?")[0])[1].lower()  # a URL may hold a key


def grouped(files: Iterable[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    """Files by a key of each, such as its folder."""
    found = defaultdict(list)
    for file in files:
        found[key(file)].append(file)
    return found


def _stem(file: str) -> str:
    return posixpath.splitext(_base(file))[0].casefold()


def _base(file: str) -> str:
    return unicodedata.normalize("NFC", posixpath.basename(file))


def _of_split(files: list[str], split: str | None) -> list[str]:
    """Those in folders of the split, or else in folders of none; all without a `split`."""
    if split is None:
        return files
    of_split = [file for file in files if split_of(file) == split]
    return of_split or [file for file in files if split_of(file) is None]


def _shared_end(file: str, name: str) -> int:
    """How many folders before the file's name are the same."""
    from_end = [path.split("/")[-2::-1] for path in (unicodedata.normalize("NFC", file), name)]
    return len(posixpath.commonprefix(from_end))


def _is_kept(name: str) -> bool:
    return not name.startswith(".") and name.lower() not in JUNK


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder.

    A folder with the name of an annotation file, such as `a.json`, counts as a file: reading it
    then raises an error.
    """
    try:
        return entry.is_dir() and not entry.name.lower().endswith((*HEADS, ".txt"))
    except OSError:  # a link to itself
        return False


def _walk(root: PathOrUrl) -> Iterator[str]:
    if isinstance(root, Url):
        for file in root.all_files():
            if all(map(_is_kept, file.split("/"))):
                yield file
        return
    seen: set[tuple[int, int]] = set()
    folders = [""]
    links: list[str] = []  # followed last, and each folder once
    while folders or links:
        below = (folders or links).pop(0)
        for entry in _entries(root / below, seen):
            path = f"{below}/{entry.name}".lstrip("/")
            if not _is_folder(entry):
                yield path
            elif entry.is_symlink() and split_of_folder(entry.name) is None:
                links.append(path)
            else:
                folders.append(path)


def _entries(folder: Path, seen: set[tuple[int, int]]) -> list[os.DirEntry[str]]:
    """What is in a folder, links last; nothing of one that was seen. Raises UserError."""
    try:
        facts = os.stat(folder)
        place = (facts.st_dev, facts.st_ino)
        if place in seen:
            return []
        seen.add(place)
        kept = [entry for entry in os.scandir(folder) if _is_kept(entry.name)]
        return sorted(kept, key=os.DirEntry.is_symlink)
    except OSError as error:
        remedy = "give a folder that you have, and have the right to read"
        if "*" in folder.name:
            remedy = f"give {folder.parent}, whose images are all found"
        raise UserError(f"{folder} cannot be listed ({error}); {remedy}.") from error


def _keys(value: object) -> tuple[str, ...]:
    if isinstance(value, msgspec.Raw):
        try:
            value = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        except msgspec.MsgspecError:
            return ()
    return tuple(value) if isinstance(value, dict) else ()


def _json_head(data: bytes) -> Head:
    try:  # the values are passed over
        content = msgspec.json.decode(data, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
    except msgspec.MsgspecError:
        content = json.loads(data)  # which takes NaN, and says where a file is damaged
    if isinstance(content, dict):
        return Head("object", tuple(content), _keys(next(iter(content.values()), None)))
    if isinstance(content, list):
        return Head("list", _keys(next(iter(content), None)))
    return Head()


def _lines_head(data: bytes) -> Head:
    text = data.decode("utf-8-sig", "ignore").lstrip()
    if not text:
        return Head("empty")
    return Head("lines", _keys(json.loads(text.partition("\n")[0])))


def _xml_head(data: bytes) -> Head:
    _, element = next(ElementTree.iterparse(io.BytesIO(data), ("start",)))
    return Head("xml", (element.tag,))


def _table_head(data: bytes) -> Head:
    text = data.decode("utf-8-sig", "ignore")
    if not text.strip():
        return Head("empty")
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(text))
    first, second = [*islice(filter(None, rows), 2), [], []][:2]
    return Head("table", tuple(map(str.strip, first)), tuple(map(str.strip, second)))


def _text_head(data: bytes) -> Head:
    lines = data.decode("utf-8-sig", "ignore").split("\n")
    first, second = [*islice(filter(str.strip, lines), 2), "", ""][:2]
    return Head("text", tuple(first.split()), tuple(second.split()))


HEADS = {
    ".json": _json_head,
    ".jsonl": _lines_head,
    ".ndjson": _lines_head,
    ".manifest": _lines_head,
    ".xml": _xml_head,
    ".csv": _table_head,
    ".tsv": _table_head,
}
