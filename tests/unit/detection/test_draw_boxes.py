import json

import numpy as np
import pytest
import torch
from PIL import Image

from retina_dist.detection import draw_boxes as draw
from retina_dist.detection.batch import Batch

NAMES = ("cat", "dog", "Müller-Ж")


def gray(height, width, value=128):
    return torch.full((3, height, width), value, dtype=torch.uint8)


def boxes(*rows):
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, 4)


def labels(*values):
    return torch.tensor(values, dtype=torch.int64)


def pixels(drawing):
    return np.asarray(drawing).astype(int)


def mask(drawing, color):
    """[h, w]: where the drawing has exactly that colour."""
    return (pixels(drawing) == color).all(axis=-1)


@pytest.fixture
def places(monkeypatch):
    """The places of the labels that are drawn in the test."""
    written = []
    original = draw._draw_label

    def record(drawing, text, place, *rest):
        written.append((text, place))
        original(drawing, text, place, *rest)

    monkeypatch.setattr(draw, "_draw_label", record)
    return written


def test_class_colors_differ_and_stay():
    colors = [draw.class_color(label) for label in range(60)]
    assert len(set(colors)) == 60
    assert colors == [draw.class_color(label) for label in range(60)]
    first = np.array(colors[:12])
    distances = np.linalg.norm(first[:, None] - first[None], axis=-1) + 999 * np.eye(12)
    assert distances.min() > 50  # of 441 from black to white


def test_image_without_boxes_is_the_image():
    image = torch.randint(0, 256, (3, 480, 640), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    drawing = draw.draw_boxes(image, boxes(), labels(), NAMES)
    assert drawing.mode == "RGB"
    assert (pixels(drawing) == image.permute(1, 2, 0).numpy()).all()


def test_box_edges_are_the_first_and_the_last_pixel_inside():
    drawing = draw.draw_boxes(gray(300, 700), boxes([100, 120, 200, 220]), labels(1), NAMES)
    column = mask(drawing, draw.class_color(1))[170]  # a row of pixels below the label
    assert column.nonzero()[0].tolist() == [100, 199]
    row = mask(drawing, draw.class_color(1))[130:, 150]
    assert (row.nonzero()[0] + 130).tolist() == [219]


def test_label_stands_on_its_color_above_the_box(places):
    drawing = draw.draw_boxes(gray(480, 640), boxes([100, 200, 300, 400]), labels(0), NAMES, torch.tensor([0.876]))
    [(text, place)] = places
    assert text == "cat 0.88"
    assert (place.x1, place.y2) == (100, 200)
    x1, y1, x2, y2 = map(int, place)
    label = pixels(drawing)[y1:y2, x1:x2]
    background = (label == draw.class_color(0)).all(axis=-1)
    assert background[0].all()
    assert background[-1].all()
    assert 0.4 < background.mean() < 0.95  # the rest is text
    assert (label == (255, 255, 255)).all(axis=-1).any()


def test_label_of_a_box_at_the_top_is_within(places):
    draw.draw_boxes(gray(480, 640), boxes([600, 0, 640, 200]), labels(0), NAMES)
    [(_, place)] = places
    assert place.y1 == 0
    assert place.x2 <= 640


def test_labels_keep_clear_of_each_other_and_within_the_image(places):
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(60, 2, generator=generator) * torch.tensor([600, 440])
    sides = torch.rand(60, 2, generator=generator) * 150 + 5
    draw.draw_boxes(gray(480, 640), torch.cat([corners, corners + sides], 1), labels(*[0] * 60), NAMES)
    assert len(places) > 45  # few are left out
    for i, (_, one) in enumerate(places):
        assert one.x1 >= 0
        assert one.y1 >= 0
        assert one.x2 <= 640
        assert one.y2 <= 480
        assert all(one.overlap(other) == 0 for _, other in places[:i])


def test_the_first_of_many_equal_boxes_gets_its_label_and_the_last_go_without(places):
    same = [300, 200, 340, 240]
    scores = torch.linspace(0.9, 0.1, 40)
    draw.draw_boxes(gray(480, 640), boxes(*[same] * 40), labels(*[0] * 40), NAMES, scores)
    assert [text for text, _ in places[:2]] == ["cat 0.90", "cat 0.88"]
    assert len(places) < 12


def test_label_does_not_hide_a_small_box(places):
    small = [300, 182, 312, 194]  # where the other's label would go
    draw.draw_boxes(gray(480, 640), boxes([295, 200, 380, 300], small), labels(0, 1), NAMES)
    text, place = places[0]
    assert text == "cat"
    assert place.overlap(draw._Rectangle(*small)) == 0


def test_small_images_are_enlarged_in_proportion_with_their_boxes():
    drawing = draw.draw_boxes(gray(48, 64), boxes([10, 20, 30, 40]), labels(0), NAMES)
    assert drawing.size == (640, 480)
    row = mask(drawing, draw.class_color(0))[300]
    assert row.nonzero()[0].tolist() in ([100, 299], [100, 101, 298, 299])
    assert draw.draw_boxes(gray(48, 64), boxes(), labels(), NAMES, min_long_side=0).size == (64, 48)
    assert draw.draw_boxes(gray(1, 1), boxes([0, 0, 1, 1]), labels(0), NAMES).size == (640, 640)


def test_lines_grow_with_the_image():
    drawing = draw.draw_boxes(gray(1200, 1600), boxes([100, 100, 500, 500]), labels(0), NAMES)
    assert mask(drawing, draw.class_color(0))[300].sum() == 8  # 1200 / 300 = 4 px on either side


def test_odd_boxes_do_no_harm(places):
    odd = boxes([-50, -50, 2000, 2000], [10, 10, 10, 10], [float("nan"), 0, 5, 5], [0, 0, float("inf"), 5])
    drawing = draw.draw_boxes(gray(480, 640), odd, labels(0, 1, 2, 2), NAMES)
    assert mask(drawing, draw.class_color(0))[479].all()  # cut at the drawing's edge
    assert mask(drawing, draw.class_color(1))[10, 10]  # without an area, still a dot
    assert [text for text, _ in places] == ["cat", "dog"]


def test_class_without_a_name_is_a_number(places):
    draw.draw_boxes(gray(480, 640), boxes([9, 99, 99, 199], [300, 99, 400, 199]), labels(7, 0), ["", "x"])
    assert [text for text, _ in places] == ["7", "0"]


def test_accents_and_cyrillic_have_glyphs():
    pytest.importorskip("matplotlib")
    font = draw._font(20)
    missing = bytes(font.getmask("\uffff"))
    assert all(bytes(font.getmask(letter)) != missing for letter in "äéñøşğđệЖΩ…")


def test_mosaic_lays_out_rows_and_columns():
    colors = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    sizes = [(40, 30), (20, 10), (50, 20)]
    sheet = draw.mosaic([Image.new("RGB", s, c) for s, c in zip(sizes, colors, strict=True)], columns=2)
    gap = draw.GAP_PX
    assert sheet.size == (50 + 20 + 3 * gap, 30 + 20 + 3 * gap)
    corners = [(gap, gap), (50 + 2 * gap, gap), (gap, 30 + 2 * gap)]
    assert [sheet.getpixel(corner) for corner in corners] == colors
    assert [mask(sheet, color).sum() for color in colors] == [1200, 200, 1000]


@pytest.mark.parametrize(("number", "columns"), [(1, 1), (2, 2), (3, 2), (4, 2), (5, 3), (9, 3), (10, 4)])
def test_mosaic_is_about_square(number, columns):
    sheet = draw.mosaic([Image.new("RGB", (10, 10))] * number)
    assert sheet.width == columns * 10 + (columns + 1) * draw.GAP_PX


def test_mosaic_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="at least one drawing"):
        draw.mosaic([])


def test_side_by_side_leaves_out_low_scores(places, monkeypatch):
    titles = []
    header = draw._with_header
    monkeypatch.setattr(draw, "_with_header", lambda p, title, *rest: titles.append(title) or header(p, title, *rest))
    found = {
        "boxes": boxes([10, 50, 90, 150], [200, 50, 300, 150]),
        "labels": labels(1, 2),
        "scores": torch.tensor([0.5, 0.49]),
    }
    sheet = draw.side_by_side(gray(480, 640), boxes([10, 50, 95, 155]), labels(1), found, NAMES, min_score=0.5)
    assert titles == ["ground truth: 1 box", "prediction: 1 box, score 0.50 and above"]
    assert [text for text, _ in places] == ["dog", "dog 0.50"]
    assert sheet.width == 2 * 640 + 3 * draw.GAP_PX
    assert mask(sheet, draw.class_color(2)).sum() == 0


def test_header_counts_classes_most_frequent_first_in_their_colors():
    drawing = draw._with_header(Image.new("RGB", (640, 100)), "title", labels(0, 1, 1), NAMES)
    assert drawing.height > 100
    header = drawing.crop((0, 0, 640, drawing.height - 100))
    dog, cat = (mask(header, draw.class_color(label)).any(axis=0).nonzero()[0] for label in (1, 0))
    assert dog.max() < cat.min()


def test_header_of_very_many_classes_stays_within_the_image():
    drawing = draw._with_header(
        Image.new("RGB", (640, 10)), "title", torch.arange(200), [f"class {k}" for k in range(200)]
    )
    assert drawing.width == 640


def test_batch_mosaic_shows_images_without_padding_and_only_true_boxes(places):
    images = torch.zeros(2, 3, 672, 704, dtype=torch.uint8)
    images[0, :, :480, :640] = 200
    images[1, :, :640, :480] = torch.tensor([10, 200, 30], dtype=torch.uint8)[:, None, None]
    padded = boxes([0, 0, 1, 1]).repeat(2, 8, 1)
    padded[0, 0] = torch.tensor([100, 100, 200, 200])
    sizes = torch.tensor([[480, 640], [640, 480]])
    batch = Batch(
        images=images,
        image_sizes=sizes,
        original_sizes=sizes,
        image_ids=torch.tensor([7, 8]),
        boxes=padded,
        labels=torch.zeros(2, 8, dtype=torch.int64),
        num_boxes=torch.tensor([1, 0]),
    )
    sheet = draw.batch_mosaic(batch, NAMES)
    assert [text for text, _ in places] == ["cat"]
    assert sheet.width == 640 + 480 + 3 * draw.GAP_PX
    assert not mask(sheet, (0, 0, 0)).any()  # the padding is black
    assert mask(sheet, (10, 200, 30)).sum() == 640 * 480


def test_real_image(real_data, places):
    folder = real_data / "bccd"
    content = json.loads((folder / "annotations" / "instances_val.json").read_text())
    entry = content["images"][3]
    rows = [a for a in content["annotations"] if a["image_id"] == entry["id"]]
    xywh = boxes(*(row["bbox"] for row in rows))
    xyxy = torch.cat([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], dim=1)
    with Image.open(folder / "val" / entry["file_name"]) as file:
        image = torch.from_numpy(np.array(file.convert("RGB"))).permute(2, 0, 1)
    drawing = draw.draw_boxes(image, xyxy, labels(*[0] * len(rows)), ["cell"])
    assert drawing.size == (entry["width"], entry["height"])
    assert len(places) == len(rows)


def test_pixels_resized_on_a_device_are_rounded():
    image = torch.tensor([-0.2, 99.5, 100.4, 255.3]).expand(3, 2, 4)
    assert np.asarray(draw.to_pil(image))[0, :, 0].tolist() == [0, 100, 100, 255]
