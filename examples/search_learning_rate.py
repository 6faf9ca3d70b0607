"""Train with several learning rates and print which was best.

    python examples/search_learning_rate.py /data/mine 1e-4 1e-3 1e-2
    torchrun --nproc-per-node 2 examples/search_learning_rate.py /data/mine 1e-4 1e-3 1e-2

Started again, it takes finished rates from their run folders and continues an interrupted one.
docs/python.md has a search with Optuna; on the command line, `-m optimizer.lr=0.0001,0.001,0.01`
does the same as this script.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import retina_dist as rd


def main(folder: str, *rates: str, max_duration: str = "2epochs", **settings: object) -> str:
    """Train once for each rate, and return the rate of the highest AP; `settings` are arguments of
    `DetectionData`.
    """
    scores = {}
    for rate in rates:
        run = Path("runs") / "search" / rate
        trainer = rd.Trainer(
            data=rd.DetectionData(root=folder, **{"batch_size": 8, **settings}),
            model=rd.ModelConfig(backbone="resnet10_half", fpn_channels=64),
            optimizer=rd.OptimizerConfig(name="adamw", lr=float(rate)),
            max_duration=max_duration,
            logging=rd.LoggingConfig(plots=False, tensorboard=False),
            output_dir=str(run),
            resume="auto",
        )
        try:
            scores[rate] = trainer.fit()["coco/AP"]
        except rd.Preempted:
            raise
        except rd.UserError as error:  # such as a training that diverges
            print(f"{rate}: {error}")

    for rate, score in sorted(scores.items(), key=lambda item: -item[1]):
        print(f"{rate}: AP {score:.3f}")
    best = max(scores, key=lambda rate: scores[rate])
    Path("runs/search/best.json").write_text(json.dumps({"lr": best, "AP": scores[best]}))
    return best


if __name__ == "__main__":
    main(*sys.argv[1:])
