"""Trains the demo model: two processes of one thread each, gradients averaged every step.

Writes checkpoints and `log.jsonl` into the run folder and goes on from the newest checkpoint.
"""

import argparse
import json
import math
import os
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from demo_training import optimizer
from demo_training.batches import batches
from demo_training.drill import drills
from demo_training.model import DemoModel
from demo_training.shape import ModelShape

NUM_PROCESSES = 2
LOG_EVERY = 10
SAVE_EVERY = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the result, given the code."""

    seed: int = 7
    num_steps: int = 1450
    batch_tokens: int = 2048
    muon_lr: float = 0.02
    adam_lr: float = 8e-3
    warmup_steps: int = 20
    only_drill_steps: int = 80
    drill_every: int = 10
    short_sinkhorn_steps: int = 4
    decay_from: float = 0.45
    second_stage: int = 750
    sparse_from: int = 1100
    far_share: tuple[float, float] = (0.0, 0.4)
    drill_lengths: tuple[tuple[int, ...], tuple[int, ...]] = (
        (64, 128, 256, 512),
        (256, 512, 1024, 2048),
    )
    balance_rate: float = 2e-3

    def is_drill(self, step: int) -> bool:
        """Whether the step trains on drills: the first ones all do, later one in `drill_every`."""
        return step < self.only_drill_steps or step % self.drill_every == 0

    def lr_scale(self, step: int) -> float:
        """Warm up, hold, then fall linearly to two percent."""
        warmup = min(1.0, (step + 1) / self.warmup_steps)
        left = (1 - step / self.num_steps) / (1 - self.decay_from)
        return warmup * max(0.02, min(1.0, left))


class Trainer:
    """One process's share of the run."""

    def __init__(self, recipe: Recipe, folder: Path, rank: int) -> None:
        self.recipe, self.folder, self.rank = recipe, folder, rank
        torch.manual_seed(recipe.seed)
        self.model = DemoModel(ModelShape())
        self.model.train()
        self.optimizers = optimizer.build(
            self.model, muon_lr=recipe.muon_lr, adam_lr=recipe.adam_lr
        )
        self.base_lrs = [group["lr"] for o in self.optimizers for group in o.param_groups]
        self.step = self.num_tokens = 0
        self.cpu_s = 0.0
        self._resume()
        self._enter_stage()

    def run(self) -> None:
        recent: list[Tensor] = []
        cpu_before, start, start_step = time.process_time(), time.monotonic(), self.step
        cpu_resumed = self.cpu_s
        while self.step < self.recipe.num_steps:
            recent.append(self._train_step())
            self.step += 1
            self.cpu_s = cpu_resumed + time.process_time() - cpu_before
            if self.step % LOG_EVERY == 0:
                rate = (time.monotonic() - start) / (self.step - start_step)
                self._log(torch.stack(recent).nanmean(0), rate)
                recent.clear()
            if self.step % SAVE_EVERY == 0 or self.step == self.recipe.num_steps:
                self._save()

    def _train_step(self) -> Tensor:
        """One optimizer step.

        Returns the losses on answers, context, drills (NaN where the step has none) and of the
        indexer.
        """
        recipe = self.recipe
        if self.step == recipe.second_stage:
            self._enter_stage()
        self.model.is_sparse = self.step >= recipe.sparse_from
        ids, weights = next(self.drills if recipe.is_drill(self.step) else self.batches)
        hidden, indexer_loss = self.model(ids[:, :-1])
        labels, weights = ids[:, 1:].flatten(), weights[:, 1:].flatten()
        kept = weights > 0
        losses = F.cross_entropy(self.model.logits(hidden[kept]), labels[kept], reduction="none")
        weights = weights[kept]
        loss = (losses * weights).sum() / weights.sum()
        for each in self.optimizers:
            each.zero_grad(set_to_none=False)
        (loss + indexer_loss).backward()
        self._average_gradients()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        scale = recipe.lr_scale(self.step)
        groups = [group for each in self.optimizers for group in each.param_groups]
        for group, lr in zip(groups, self.base_lrs, strict=True):
            group["lr"] = lr * scale
        for each in self.optimizers:
            each.step()
        for router in self.model.routers():
            dist.all_reduce(router.counts)
            router.balance(recipe.balance_rate * scale)
        self.num_tokens += len(weights) * NUM_PROCESSES
        is_answer = weights == 1
        answer, context = losses[is_answer].mean(), losses[~is_answer].mean()
        drill = answer.new_tensor(torch.nan)
        if recipe.is_drill(self.step):
            answer, context, drill = drill, drill, answer
        parts = (answer, context, drill, indexer_loss)
        return torch.stack([part.detach() for part in parts])

    def _enter_stage(self) -> None:
        """Set the model for the stage this step is in, and open data no earlier step has seen.

        Few Sinkhorn steps and near recall first. Then all Sinkhorn steps, and not too late, as
        the model has to find a mix of streams that they leave as it is; and far recall.
        """
        recipe, stage = self.recipe, int(self.step >= self.recipe.second_stage)
        served_steps = self.model.shape.sinkhorn_steps
        self.model.sinkhorn_steps = served_steps if stage == 1 else recipe.short_sinkhorn_steps
        seed = recipe.seed + 1000 * self.rank + 10_000_000 * self.step
        torch.manual_seed(seed)
        self.batches = batches(seed, recipe.batch_tokens, far_share=recipe.far_share[stage])
        self.drills = drills(seed, recipe.batch_tokens, recipe.drill_lengths[stage])

    def _average_gradients(self) -> None:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= NUM_PROCESSES
        start = 0
        for gradient in gradients:
            end = start + gradient.numel()
            gradient.copy_(flat[start:end].view_as(gradient))
            start = end

    def _log(self, losses: Tensor, seconds_a_step: float) -> None:
        if self.rank:
            return
        names = ("answer_loss", "context_loss", "drill_loss", "indexer_loss")
        known = zip(names, losses.tolist(), strict=True)
        cpu_min = self.cpu_s * NUM_PROCESSES / 60
        entry = {
            "step": self.step,
            "tokens": self.num_tokens,
            "cpu_min": round(cpu_min, 2),
        }
        entry |= {name: round(value, 4) for name, value in known if not math.isnan(value)}
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")
        left = (self.recipe.num_steps - self.step) * seconds_a_step / 60
        total_cpu = cpu_min / self.step * self.recipe.num_steps
        print(f"{entry} left {left:.0f} min, {total_cpu:.0f} CPU-min in all", flush=True)  # noqa: T201

    def _save(self) -> None:
        if self.rank:
            return
        state = {
            "recipe": asdict(self.recipe),
            "model": self.model.state_dict(),
            "optimizers": [each.state_dict() for each in self.optimizers],
            "step": self.step,
            "num_tokens": self.num_tokens,
            "cpu_s": self.cpu_s,
        }
        partial = self.folder / "partial.pt"
        torch.save(state, partial)
        os.replace(partial, self.folder / f"step-{self.step:05d}.pt")
        for old in sorted(self.folder.glob("step-*.pt"))[:-6]:
            old.unlink()

    def _resume(self) -> None:
        saved = sorted(self.folder.glob("step-*.pt"))
        if not saved:
            return
        state: dict[str, Any] = torch.load(saved[-1], weights_only=True)
        self.model.load_state_dict(state["model"])
        for each, part in zip(self.optimizers, state["optimizers"], strict=True):
            each.load_state_dict(part)
        self.step, self.num_tokens = state["step"], state["num_tokens"]
        self.cpu_s = state["cpu_s"]
        if not self.rank:
            self._cut_log()

    def _cut_log(self) -> None:
        """Forget what was logged after the checkpoint."""
        path = self.folder / "log.jsonl"
        lines = path.read_text("utf-8").splitlines(keepends=True)
        path.write_text("".join(ln for ln in lines if json.loads(ln)["step"] <= self.step), "utf-8")


def _work(rank: int, recipe: Recipe, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder.resolve()}/rendezvous-{os.getppid()}",
        rank=rank,
        world_size=NUM_PROCESSES,
        timeout=timedelta(hours=2),
    )
    Trainer(recipe, folder, rank).run()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder for checkpoints and log")
    parser.add_argument("--steps", type=int, default=Recipe().num_steps)
    arguments = parser.parse_args()
    arguments.run.mkdir(parents=True, exist_ok=True)
    recipe = Recipe(num_steps=arguments.steps)
    spawn(_work, args=(recipe, arguments.run), nprocs=NUM_PROCESSES)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
