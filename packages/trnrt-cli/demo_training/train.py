"""Trains the demo model: two processes of one thread each, gradients averaged every step.

Writes checkpoints and `log.jsonl` into the run folder and goes on from the newest checkpoint.
"""

import argparse
import json
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
from demo_training.dialogue import BROAD, COPYING
from demo_training.model import DemoModel
from demo_training.shape import ModelShape

NUM_PROCESSES = 2
LOG_EVERY = 10
SAVE_EVERY = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the result, given the code."""

    seed: int = 7
    num_steps: int = 1550
    batch_tokens: int = 2048
    muon_lr: float = 0.02
    adam_lr: float = 4e-3
    warmup_steps: int = 40
    short_sinkhorn_steps: int = 4
    second_stage_from: float = 0.42
    balance_rate: float = 2e-3

    @property
    def second_stage(self) -> int:
        """First step of the second stage."""
        return round(self.num_steps * self.second_stage_from)

    def lr_scale(self, step: int) -> float:
        """Warm up, hold during the first stage, then fall linearly to two percent."""
        warmup = min(1.0, (step + 1) / self.warmup_steps)
        left = (1 - step / self.num_steps) / (1 - self.second_stage_from)
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
                self._log(torch.stack(recent).mean(0), rate)
                recent.clear()
            if self.step % SAVE_EVERY == 0 or self.step == self.recipe.num_steps:
                self._save()

    def _train_step(self) -> Tensor:
        """One optimizer step; returns (answer loss, context loss, indexer loss)."""
        recipe = self.recipe
        if self.step == recipe.second_stage:
            self._enter_stage()
        ids, weights = next(self.batches)
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
        parts = (losses[is_answer].mean(), losses[~is_answer].mean(), indexer_loss)
        return torch.stack([part.detach() for part in parts])

    def _enter_stage(self) -> None:
        """Open the data of the stage this step is in, and set the model for it.

        The first stage has dense attention and few Sinkhorn steps; in the second the model runs
        as it is served, and the dialogues hold more copying.
        """
        is_second = self.step >= self.recipe.second_stage
        self.model.is_sparse = is_second
        served_steps = self.model.shape.sinkhorn_steps
        self.model.sinkhorn_steps = served_steps if is_second else self.recipe.short_sinkhorn_steps
        seed = self.recipe.seed + 1000 * self.rank + 10_000_000 * self.step
        torch.manual_seed(seed)
        self.batches = batches(seed, self.recipe.batch_tokens, COPYING if is_second else BROAD)

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
        answer, context, indexer = (round(value, 4) for value in losses.tolist())
        cpu_min = self.cpu_s * NUM_PROCESSES / 60
        entry = {
            "step": self.step,
            "tokens": self.num_tokens,
            "cpu_min": round(cpu_min, 2),
            "answer_loss": answer,
            "context_loss": context,
            "indexer_loss": indexer,
        }
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
