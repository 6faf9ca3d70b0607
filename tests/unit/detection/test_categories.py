"""Labels of category ids, and back."""

from __future__ import annotations

import json

import pytest

from retina_dist.base.errors import CheckpointError, DataError
from retina_dist.detection.readers.categories import Categories

ENTRIES = [
    {"id": 18, "name": "dog"},
    {"id": 1, "name": "person"},
]  # neither in order nor without a gap


def test_categories_survive_a_checkpoint():
    categories = Categories.from_coco(ENTRIES).padded(3)
    restored = Categories.from_state(json.loads(json.dumps(categories.state())))
    assert restored == categories
    assert restored.label_of[18] == 1
    assert restored != Categories.from_coco(ENTRIES)
    with pytest.raises(CheckpointError, match="categories cannot be read"):
        Categories.from_state({"ids": [1, 2], "names": ["a"]})


def test_unknown_categories_and_labels():
    categories = Categories.from_coco(ENTRIES)
    assert categories.label_of == {1: 0, 18: 1}
    # -1 marks a label without a category; it is not a category
    assert categories.padded(3).label_of == {1: 0, 18: 1}


OURS = Categories.from_coco([*ENTRIES, {"id": 2, "name": "traffic light"}])


def entries(**ids: int) -> list[dict[str, object]]:
    return [{"id": i, "name": name.replace("_", " ")} for name, i in ids.items()]


def test_names_decide_and_ids_are_those_of_the_other_file():
    found = OURS.matched(entries(dog=1, person=2, traffic_light=3), "val.json")
    assert (found.ids, found.names) == ((2, 3, 1), OURS.names)
    assert found.label_of == {2: 0, 3: 1, 1: 2}
    fewer = OURS.matched(entries(dog=7), "val.json")  # as of a validation set that has no other
    assert (fewer.ids, fewer.names) == ((-1, -1, 7), OURS.names)
    assert Categories.from_coco(ENTRIES).matched(entries(dog=0, person=5), "val.json").ids == (5, 0)
    assert OURS.padded(5).matched(entries(dog=3), "val.json").ids == (-1, -1, 3, -1, -1)


def test_names_that_do_not_agree_are_listed():
    theirs = [
        {"id": 1, "name": "Person"},
        {"id": 2, "name": "traffic  _light"},
        {"id": 3, "name": "tree"},
    ]
    near = r"'Person' \(a label is 'person'\), 'traffic  _light' \(a label is .*, 'tree'; .*"
    message = f"val.json: 3 category names .*{near}"
    with pytest.raises(
        DataError, match=message + "rename the categories in the file, or remove them"
    ):
        OURS.matched(theirs, "val.json")
    with pytest.raises(DataError, match=r"'dog' \(2 categories here, 1 label\)"):
        OURS.matched([*entries(dog=3), *entries(dog=4)], "val.json")


def test_a_name_twice_is_taken_where_the_ids_agree():
    twice = Categories.from_coco(
        [{"id": 0, "name": "cell"}, {"id": 4, "name": "cell"}, {"id": 5, "name": "dog"}]
    )
    assert twice.distinct_names == ["cell (0)", "cell (4)", "dog"]
    same = [{"id": 4, "name": "cell"}, {"id": 0, "name": "cell"}, {"id": 9, "name": "dog"}]
    assert twice.matched(same, "val.json").ids == (0, 4, 9)
    for other in (
        [{"id": 1, "name": "cell"}],
        [{"id": 0, "name": "cell"}, {"id": 5, "name": "cell"}],
        same[:1],
    ):
        with pytest.raises(
            DataError,
            match=r"val.json: 1 category name .*'cell' \([12] categories here, 2 labels\)",
        ):
            twice.matched(other, "val.json")
