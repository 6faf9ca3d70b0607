import io
import os
import select
import struct

import pytest

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


def test_plain_line_per_log_with_time_left(file, clock):
    progress = Progress(1000, steps_per_epoch=40, file=file, clock=clock)
    clock.now += 25
    progress.log(
        {
            "train/loss": 0.51234,
            "train/lr": 0.0025,
            "time/images_per_s": 32.04,
            "comm/fp16_overflows": 1,
        },
        50,
    )
    # 2 steps/s, and 950 steps are left
    expected = "step   50/1000  epoch  1.25  loss 0.5123  lr 0.0025  32.0 img/s  ETA 7:55\n"
    assert file.getvalue() == expected


def test_a_line_after_the_first_step_and_after_each_silence(file, clock):
    done = [0]
    progress = Progress(100, step=lambda: done[0], steps_per_epoch=100, file=file, clock=clock)
    beats = [
        (0, True, ["reading: 0:12 so far"]),
        (1, False, ["step   1/100  epoch 0.01  ETA 3:18"]),  # 2 s a step
        (2, False, []),
        (3, True, ["step   3/100  epoch 0.03  ETA 3:14"]),
        (3, True, ["step 4: 0:12 so far"]),
    ]
    for step, silent, lines in beats:
        clock.now += 2 * (step - done[0])
        done[0] = step
        progress.beat("step 4" if step else "reading", 12.0, silent)
        assert file.getvalue().splitlines() == lines
        file.truncate(0), file.seek(0)
    progress.log({"train/loss": 1.0}, 4)
    assert "step   4/100  epoch 0.04  loss 1.0000" in file.getvalue()


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

    monkeypatch.setattr("retina_dist.tracking.console.SILENCE_S", 0.1)
    monkeypatch.setattr(
        "retina_dist.tracking.console.redacted", lambda text: lines.append(text) or text
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
        progress = Progress(20, step=lambda: 5, steps_per_epoch=10, file=file)
        progress.beat("", 0.0, silent=False)
        progress.log({"train/loss": 0.25, "train/lr": 0.01}, 10)
        progress.log({"coco/AP": 0.5}, 10)
        progress.write("image 7 is truncated")
        progress.close()
        file.flush()
        sent = ""
        while select.select([reader], [], [], 0.2)[0]:  # a busy machine hands it over in pieces
            sent += os.read(reader, 100_000).decode()
    os.close(reader)
    assert "step  5/20  epoch 0.50 |##### " in sent
    assert "step 10/20  epoch 1.00 |##########          | loss 0.2500  lr 0.01  ETA 0:00" in sent
    assert "\r\x1b[Kstep 10/20  epoch 1.00  validation: AP 0.500\r\n" in sent
    assert "image 7 is truncated\r\n" in sent
    assert sent.rstrip().split(ERASE)[-1].startswith("step 10/20  epoch 1.00 |")
