"""digest.csv: what its rows depend on, and what they do not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from retina_dist.base.errors import DataError
from retina_dist.classification.drawn import draw_classes
from retina_dist.classification.task import ClassificationTask
from retina_dist.config.compose import load_config
from retina_dist.engine.checkpoint.store import load_checkpoint
from retina_dist.engine.replicas import LANES, _keys, keyed_sum
from retina_dist.reporting.run_files import read_result
from retina_dist.run.assemble import train
from retina_dist.run.digest_recorder import (
    counted_settings,
    metrics_digest,
    state_digests,
)
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.testing.thread_ranks import on_ranks
from retina_dist.tracking.digest import FILE, DigestRow, read_digests, sha256_of
from retina_dist.tracking.loggers import read_rows
from tests.tampering import SMALL
from tests.virtual_ranks import Data, Rows, WithIds, digest_rows


def run(folder: Path, *overrides: str) -> list[DigestRow]:
    given = [*SMALL, f"data.root={folder.parent / 'drawn'}", f"output_dir={folder}", *overrides]
    train(load_config("train", given))
    return read_digests(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight steps."""
    folder = tmp_path_factory.mktemp("digest")
    draw_classes(folder / "drawn", num_train=14, num_val=6, image_size=16, seed=0)
    run(folder / "whole")
    return folder / "whole"


def cells(rows: list[DigestRow]) -> list[DigestRow]:
    """Without what says when checkpoints were written."""
    return [replace(row, weights="", optimizer="", chain="") for row in rows]


# the sum of the gradients


def in_words(tensor: Tensor) -> int:
    """The sum of one block, computed one lane at a time."""
    content = tensor.numpy().tobytes()
    keys = _keys(torch.device("cpu"))
    total = 0
    for place in range(0, len(content), 8):
        lane = int.from_bytes(content[place : place + 8].ljust(8, b"\0"), "little", signed=True)
        total += (lane + (lane >> 31)) * keys[place // 8].item()
    return total % 2**64


@pytest.mark.parametrize("count", [1, 3, 500])
def test_a_block_is_the_sum_of_its_lanes_times_their_keys(count: int) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(0))
    assert keyed_sum([x]).item() % 2**64 == in_words(x)


def test_every_lane_of_many_blocks_counts() -> None:
    x = torch.randn(40 * LANES + 3)
    before = keyed_sum([x, x[:5]]).item()
    assert keyed_sum([x.clone(), x[:5].clone()]).item() == before
    for place in (0, 1, 2 * LANES - 1, 20 * LANES, 40 * LANES + 2):
        changed = x.clone()
        changed.view(torch.int32)[place] ^= 1
        assert keyed_sum([changed, x[:5]]).item() != before
    assert keyed_sum([x[:5], x]).item() != before


def test_two_signs_do_not_cancel_and_neither_do_two_that_change_places() -> None:
    x = torch.zeros(2 * LANES)
    flipped = x.clone()
    flipped[[1, 3]] = -0.0  # the highest bits of two lanes
    assert keyed_sum([flipped]).item() != keyed_sum([x]).item()
    flipped[[0, 2]] = -0.0  # and both numbers of two lanes
    assert keyed_sum([flipped]).item() != keyed_sum([x]).item()
    x[0] = 1.0
    assert keyed_sum([x]).item() != keyed_sum([x.roll(2)]).item()


def test_memory_counts_wherever_it_begins_and_however_it_is_read() -> None:
    base = torch.randn(4 * LANES + 1)
    assert keyed_sum([base[1:]]).item() == keyed_sum([base[1:].clone()]).item()
    image = torch.randn(2, 3, 5, 7)
    last = image.contiguous(memory_format=torch.channels_last)
    assert keyed_sum([last]).item() == keyed_sum([last.permute(0, 2, 3, 1).contiguous()]).item()


# a run


def test_a_run_has_a_row_for_its_start_and_for_each_step(whole: Path) -> None:
    start, *rows = read_digests(whole)
    assert (start.step, start.is_start) == (0, True)
    assert len(start.weights) == len(start.optimizer) == 64
    assert [row.step for row in rows] == list(range(1, 9))
    assert all(row.images and row.loss and row.gradients for row in rows)
    assert [row.step for row in rows if row.metrics] == [3, 4, 6, 8]
    assert [row.step for row in rows if row.weights and row.optimizer] == [4, 8]
    assert len({row.gradients for row in rows}) == 8
    assert rows[0].chain == replace(rows[0]).chained(start.chain).chain


def test_the_head_stands_in_checkpoints_and_in_the_result(whole: Path) -> None:
    rows = {row.step: row for row in read_digests(whole)}
    for step in (4, 8):
        content = load_checkpoint(whole / f"checkpoints/step_{step:08d}.pt")
        assert content["digest"] == rows[step].chain
        assert state_digests(content) == (rows[step].weights, rows[step].optimizer)
    assert read_result(whole).digest == rows[8].chain


def test_the_cell_of_metrics_follows_from_the_file(whole: Path) -> None:
    columns, *table = read_rows(whole / "metrics.csv")
    found: dict[int, str] = {}
    for row in table:
        values = {name: float(x) for name, x in zip(columns, row, strict=True) if x}
        step = int(values.pop("step"))
        found[step] = metrics_digest(values, found.get(step, ""))
    _, *rows = read_digests(whole)
    assert found == {row.step: row.metrics for row in rows if row.metrics}
    assert not {"time/images_per_s"} - {*columns}


def test_a_resumed_run_has_the_rows_of_one_that_was_not(whole: Path) -> None:
    """It was stopped where no row of metrics was due, and before a due validation."""
    half = whole.with_name("half")
    assert [row.step for row in run(half, "trainer.stop_after=2steps")] == [0, 1, 2]
    run(half, "trainer.stop_after=5steps", "resume=auto")
    rows = run(half, "resume=auto")
    assert cells(rows) == cells(read_digests(whole))
    assert rows[-1].weights == read_digests(whole)[-1].weights
    assert [row.step for row in rows if row.weights] == [0, 2, 4, 5, 8]


def test_a_resume_cuts_later_rows(whole: Path) -> None:
    """Those of steps that were not saved."""
    again = whole.with_name("again")
    shutil.copytree(whole, again)
    (again / "checkpoints/step_00000008.pt").unlink()
    for name in ("manifest.json", "last.pt"):
        (again / "checkpoints" / name).unlink()
    assert run(again, "resume=auto") == read_digests(whole)


def test_a_file_that_does_not_lead_to_the_checkpoint_begins_anew(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = whole.with_name("other")
    shutil.copytree(whole, again)
    lines = (again / FILE).read_text().splitlines(keepends=True)
    (again / FILE).write_text("".join([*lines[:3], *lines[4:]]).replace(lines[5][2:9], "0000000"))
    rows = run(again, f"resume={again}/checkpoints/step_00000004.pt")
    said = "".join(capsys.readouterr())
    assert f"{again / FILE} does not lead to step 4; it begins anew there." in said
    assert [row.step for row in rows] == [4, 5, 6, 7, 8]
    assert cells(rows)[1:] == cells(read_digests(whole))[5:]


def test_other_settings_of_a_resume_are_another_start(whole: Path) -> None:
    again = whole.with_name("lower")
    shutil.copytree(whole, again)
    rows = run(again, "resume=auto", "trainer.max_duration=9steps", "optimizer.lr=1e-4")
    starts = [row for row in rows if row.is_start]
    assert [row.step for row in starts] == [0, 8]
    assert starts[0].metrics != starts[1].metrics
    assert (starts[0].images, starts[0].loss) == (starts[1].images, starts[1].loss)
    assert starts[1].weights == rows[8].weights


@pytest.mark.parametrize(("virtual_ranks", "digest"), [("null", "true"), ("4", "false")])
def test_the_setting_decides(whole: Path, virtual_ranks: str, digest: str) -> None:
    """Null is on with virtual ranks only."""
    given = [f"data.root={whole.parent / 'drawn'}", f"output_dir={whole.with_name(digest)}"]
    given += [f"trainer.virtual_ranks={virtual_ranks}", f"logging.digest={digest}"]
    train(load_config("train", [*SMALL, *given, "trainer.max_duration=1steps"]))
    written = digest == "true"
    assert (whole.with_name(digest) / FILE).exists() == written
    assert ("digest" in load_checkpoint(whole.with_name(digest))) == written
    assert bool(read_result(whole.with_name(digest)).digest) == written


# what a start row rests on


def test_the_data_count_by_their_content(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole.parent / "drawn", tmp_path / "drawn")
    config = load_config("train", [*SMALL, f"data.root={tmp_path / 'drawn'}"])

    def digests() -> dict[str, str]:
        return ClassificationTask(config, SingleDeviceStrategy("cpu")).content_digests()

    first = digests()
    images = sorted((tmp_path / "drawn/train").rglob("*.png"))
    os.utime(images[3], (0, 0))
    assert digests() == first
    image = Image.open(images[3])
    image.putpixel((5, 5), tuple(255 - x for x in image.getpixel((5, 5))))
    image.save(images[3])
    changed = digests()
    assert {name for name in first if changed[name] != first[name]} == {"the image files of train"}
    val = sorted((tmp_path / "drawn/val").rglob("*.png"))
    target = next(each for each in val if each.parent != val[0].parent).parent
    val[0].rename(target / f"moved{val[0].name}")
    moved = digests()
    assert moved["the classes of val"] != first["the classes of val"]
    assert moved["the classes of train"] == first["the classes of train"]


def test_settings_of_the_layout_do_not_count() -> None:
    settings = {
        "seed": 1,
        "output_dir": "a",
        "strategy": {"name": "ddp"},
        "trainer": {"stop_after": "3steps", "virtual_ranks": 8},
    }
    assert counted_settings(settings) == {"seed": "1", "trainer.virtual_ranks": "8"}


# the file


def test_a_row_cannot_be_changed_alone(whole: Path, tmp_path: Path) -> None:
    shutil.copy(whole / FILE, tmp_path)
    header, *lines = (whole / FILE).read_text().splitlines(keepends=True)
    for wrong in (
        [*lines[:2], *lines[3:]],
        [*lines[:3], lines[2], *lines[3:]],
        [lines[1], lines[0], *lines[2:]],
        [*lines[:4], lines[4].replace("4,", "5,", 1), *lines[5:]],
        [*lines[:2], lines[2].replace(lines[2][4:8], "abcd", 1), *lines[3:]],
    ):
        (tmp_path / FILE).write_text("".join([header, *wrong]))
        with pytest.raises(DataError, match="does not follow from the rows before it"):
            read_digests(tmp_path)
        assert len(read_digests(tmp_path, check=False)) == len(wrong)


def test_a_row_that_was_cut_short_is_left_out(whole: Path, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text((whole / FILE).read_text()[:-9])
    assert read_digests(tmp_path) == read_digests(whole)[:-1]


@pytest.mark.parametrize("text", ["step,loss\n1,2\n", "", "\xff", ",".join("abcdefgh") + "\n"])
def test_what_is_no_digest_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"has no digest\.csv; train with logging\.digest=true"):
        read_digests(tmp_path)
    (tmp_path / FILE).write_bytes(text.encode("latin1"))
    with pytest.raises(
        DataError, match=r"digest\.csv(: its columns are not|: the| cannot be read)"
    ):
        read_digests(tmp_path)


def test_a_chain_is_a_sha256_of_what_was_before() -> None:
    row = DigestRow(1, "a").chained("b")
    assert row.chain == sha256_of("b", 1, "a", "", "", "", "", "")
    assert len(row.chain) == 64


# several ranks


class BadStep(WithIds):
    """The third step has an infinite loss."""

    def train_steps(self, start: int, stop: int) -> Iterator[list[Rows]]:
        for number, shards in enumerate(super().train_steps(start, stop)):
            if number == 2:
                shards[0].x[0] = torch.inf
            yield shards


@pytest.mark.parametrize("data_class", [WithIds, BadStep])
def test_any_number_of_ranks_has_the_same_rows(tmp_path: Path, data_class: type[Data]) -> None:
    found = []
    for world_size in (1, 2, 4):
        folder = tmp_path / str(world_size)
        folder.mkdir()
        of_ranks = partial(digest_rows, folder=folder, data_class=data_class)
        found.append(on_ranks(world_size, of_ranks)[0])
    assert found[0] == found[1] == found[2]
    assert len({row.images for row in found[0]}) == 8
    skipped = [row.step for row in found[0] if not row.gradients]
    assert skipped == ([3] if data_class is BadStep else [])


def test_swapped_images_and_another_gradient_are_seen(tmp_path: Path) -> None:
    class Swapped(WithIds):
        def train_steps(self, start: int, stop: int) -> Iterator[list[Rows]]:
            for number, shards in enumerate(super().train_steps(start, stop)):
                yield shards[::-1] if number == 1 else shards

    class Nudged(WithIds):
        def train_steps(self, start: int, stop: int) -> Iterator[list[Rows]]:
            for number, shards in enumerate(super().train_steps(start, stop)):
                if number == 1:
                    shards[0].x[0, 1] += 1e-4
                yield shards

    rows = {}
    for kind in (WithIds, Swapped, Nudged):
        folder = tmp_path / kind.__name__
        folder.mkdir()
        (rows[kind.__name__],) = on_ranks(1, partial(digest_rows, folder=folder, data_class=kind))
    honest, swapped, nudged = (each[2] for each in rows.values())
    assert rows["WithIds"][1] == rows["Swapped"][1] == rows["Nudged"][1]
    assert honest.images != swapped.images
    assert (honest.images, honest.step) == (nudged.images, 2)
    assert honest.gradients != nudged.gradients
