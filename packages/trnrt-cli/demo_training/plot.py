"""Draws the loss curves of a run: `python -m demo_training.plot RUN/log.jsonl loss.png`."""

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

CURVES = {
    "answer_loss": "assistant tokens (cross-entropy, nats)",
    "drill_loss": "drills: pieces that return (cross-entropy, nats)",
    "context_loss": "other tokens (cross-entropy, nats)",
    "indexer_loss": "indexers (KL to dense attention mass, both layers)",
}


def draw(log_path: Path, picture_path: Path) -> None:
    entries = [json.loads(line) for line in log_path.read_text("utf-8").splitlines()]
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for key, label in CURVES.items():
        points = [(entry["tokens"] / 1e6, entry[key]) for entry in entries if key in entry]
        axes.plot(*zip(*points, strict=True), label=label, linewidth=1.2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens (millions)")
    axes.set_ylabel("loss, mean of 10 steps")
    axes.set_title(f"Demo model: {entries[-1]['step']} steps, {entries[-1]['cpu_min']} CPU-minutes")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(picture_path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    draw(arguments.log, arguments.picture)


if __name__ == "__main__":
    main()
