import io
import os
import select
import struct

import pytest
import torch

from retina_dist.classification import metrics
from retina_dist.classification.task import ClassificationTask
from retina_dist.config.compose import load_config
from retina_dist.engine.train_step import TrainStep
from retina_dist.run.assemble import train
from retina_dist.tracking.progress import ERASE, Progress
from tests.commands import wait_for


class Clock:
    """A clock that a test moves by hand."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def file():
    return io.StringIO()


def loss_of(value):
    return {"train/loss": torch.tensor(value)}


def test_plain_line_per_log_with_time_left(file, clock):
    progress = Progress(1000, steps_per_epoch=40, peak_gib=lambda: 1.24, file=file, clock=clock)
    clock.now += 100  # the first step starts data workers: it does not count in the time left
    progress.on_step(1, {})
    clock.now += 24.5
    progress.on_log(
        {
            "train/loss": 0.51234,
            "train/lr": 0.0025,
            "time/images_per_s": 32.04,
            "comm/fp16_overflows": 1,
        },
        50,
    )
    # 2 steps/s, and 950 steps are left
    expected = "step   50/1000  epoch  1.25  loss 0.5123  lr 0.0025  32.0 img/s  1.2 GiB"
    assert file.getvalue() == f"{expected}  2:04 elapsed  ETA 7:55\n"


ESTIMATE, UNCOUNTED = "about 3:20 an epoch", "validations not counted"


@pytest.mark.parametrize("initial", [0, 40])
def test_an_epoch_is_estimated_once_and_early(file, clock, initial):
    """By a second of steps or more, without the first one, which starts data workers."""
    progress = Progress(1000, initial, steps_per_epoch=500, file=file, clock=clock)
    clock.now += 60
    for step in range(initial + 1, initial + 9):
        progress.on_step(step, {})
        clock.now += 0.4
    left = {0: "6:38", 40: "6:22"}[initial]
    expected = f"about 3:20 an epoch by the first 4 steps, {left} to step 1000, {UNCOUNTED}\n"
    assert file.getvalue() == expected


def test_no_validation_counts_as_steps(file, clock):
    progress = Progress(100, steps_per_epoch=10, file=file, clock=clock)
    progress.on_step(1, {})
    clock.now += 60
    progress.on_validation({"coco/AP": 0.5}, 1)
    progress.on_step(2, {})
    assert "an epoch" not in file.getvalue()


def test_a_resume_that_validates_first_is_estimated(file, clock):
    progress = Progress(100, 10, steps_per_epoch=10, file=file, clock=clock)
    clock.now += 60
    progress.on_validation({"coco/AP": 0.5}, 10)
    for step in (11, 12, 13):
        clock.now += 1
        progress.on_step(step, {})
    assert "about 0:10 an epoch by the first 2 steps, 1:28 to step 100" in file.getvalue()


def test_nothing_is_estimated_at_the_end(file, clock):
    progress = Progress(2, steps_per_epoch=2, file=file, clock=clock)
    for step in (1, 2):
        clock.now += 60
        progress.on_step(step, {})
    assert file.getvalue() == ""


def test_a_line_after_the_first_step_and_after_each_silence(file, clock):
    progress = Progress(100, steps_per_epoch=100, images_per_step=8, file=file, clock=clock)
    beats = [
        (0, True, ["reading: 0:12 so far"]),
        (1, False, ["step   1/100  epoch 0.01  loss 1.0000  4.0 img/s  0:02 elapsed"]),
        (2, False, [f"{ESTIMATE} by the first 2 steps, 3:16 to step 100, {UNCOUNTED}"]),
        (3, True, ["step   3/100  epoch 0.03  loss 3.0000  4.0 img/s  0:06 elapsed"]),
        (3, True, ["step 4: 0:12 so far"]),
    ]
    done = 0
    for step, silent, lines in beats:
        clock.now += 2 * (step - done)
        done = step
        if step:
            progress.on_step(step, loss_of(float(step)))
        progress.beat("step 4" if step else "reading", 12.0, silent)
        assert file.getvalue().splitlines() == lines
        file.truncate(0), file.seek(0)
    progress.on_log({"train/loss": 1.0}, 4)
    assert "step   4/100  epoch 0.04  loss 1.0000" in file.getvalue()


def test_a_loss_of_one_process_of_several_is_named(file, clock):
    progress = Progress(100, steps_per_epoch=100, processes=2, file=file, clock=clock)
    clock.now += 10
    progress.on_step(5, loss_of(2.5))
    progress.beat("step 6", 1.0, silent=True)
    assert "  loss of rank 0 2.5000  " in file.getvalue()
    progress.on_log({"train/loss": 2.0}, 10)
    assert "  loss 2.0000  " in file.getvalue()


def test_lines_between_two_rows_show_the_last_step(file, clock):
    """Loss and rate of the row before them would look frozen."""
    progress = Progress(100, steps_per_epoch=100, images_per_step=8, file=file, clock=clock)
    clock.now += 1
    progress.on_log({"train/loss": 9.0, "train/lr": 0.1, "time/images_per_s": 8.0}, 20)
    clock.now += 10
    progress.on_step(25, loss_of(2.5))
    progress.beat("step 26", 1.0, silent=True)
    assert (
        file.getvalue()
        .splitlines()[-1]
        .startswith("step  25/100  epoch 0.25  loss 2.5000  4.0 img/s  0:11 elapsed")
    )


def test_the_time_left_comes_from_the_tenth_step_on(file, clock):
    progress = Progress(100, steps_per_epoch=100, file=file, clock=clock)
    for step in range(1, 12):
        clock.now += 50 if step == 1 else 1
        progress.on_step(step, loss_of(1.0))
        progress.on_log({"train/loss": 1.0}, step)
    lines = [line for line in file.getvalue().splitlines() if line.startswith("step")]
    assert ["ETA" in line for line in lines] == [False] * 9 + [True] * 2
    assert lines[9].endswith("ETA 1:30")


def test_no_part_of_a_training_is_silent(tmp_path, monkeypatch):
    """Reading, the first step and a validation that end when a line has come."""
    lines = []

    def slow(owner, name, line):
        function = getattr(owner, name)

        def waits(*args, **named):
            result = function(*args, **named)
            wait_for(lambda: any(shown.startswith(line) for shown in lines))
            return result

        monkeypatch.setattr(owner, name, waits)

    monkeypatch.setattr("retina_dist.base.console.SILENCE_S", 0.1)
    monkeypatch.setattr(
        "retina_dist.base.console.redacted", lambda text: lines.append(text) or text
    )
    slow(ClassificationTask, "prepare", "reading the data: 0:0")
    slow(TrainStep, "__call__", "step 1: 0:0")
    slow(metrics, "rows_of", "validation, 6 images: 0:0")
    settings = [
        "task=classification",
        f"data.root={tmp_path}/data",
        f"output_dir={tmp_path}/run",
        "data.num_workers=0",
    ]
    settings += [
        "data.drawn={num_train: 8, num_val: 6, image_size: 32, seed: 0}",
        "data.image_size=32",
    ]
    settings += ["data.val_resize=32", "data.batch_size=4", "trainer.max_duration=4steps"]
    settings += [
        "model.architecture=shufflenet_v2_x0_5",
        "logging.plots=false",
        "logging.tensorboard=false",
    ]
    train(load_config("train", settings))


def test_bar_on_a_terminal_with_lines_above_it():
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    with os.fdopen(writer, "w", encoding="utf-8") as file:
        progress = Progress(20, steps_per_epoch=10, file=file)
        progress.on_step(5, loss_of(1.0))
        progress.beat("", 0.0, silent=False)
        progress.on_log({"train/loss": 0.25, "train/lr": 0.01}, 10)
        progress.on_validation({"coco/AP": 0.5}, 10)
        progress.write("image 7 is truncated")
        progress.on_end()
        file.flush()
        sent = ""
        while select.select([reader], [], [], 0.2)[0]:  # a busy machine hands it over in pieces
            sent += os.read(reader, 100_000).decode()
    os.close(reader)
    assert "step  5/20  epoch 0.50 |##### " in sent
    assert (
        "step 10/20  epoch 1.00 |##########          | loss 0.2500  lr 0.01  0:00 elapsed" in sent
    )
    assert "\r\x1b[Kstep 10/20  epoch 1.00  validation: AP 0.500\r\n" in sent
    assert "image 7 is truncated\r\n" in sent
    assert sent.rstrip().split(ERASE)[-1].startswith("step 10/20  epoch 1.00 |")
