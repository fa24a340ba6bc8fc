"""A training run with a budget of processor time that continues where it was stopped."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

from tools.train.optim import Ema, has_bfloat16


_device = torch.device("cpu")


def use_device(name: str) -> None:
    """Sets the device on which this process trains."""
    global _device
    _device = torch.device(name)
    torch.backends.cudnn.benchmark = True
    # Matrices in float32 are those of small layers, whose precision matters little beside bfloat16.
    torch.set_float32_matmul_precision("high" if _device.type == "cuda" else "highest")


def device() -> torch.device:
    return _device


def autocast(enabled: bool = True) -> torch.autocast:
    return torch.autocast(_device.type, torch.bfloat16, enabled=enabled and has_bfloat16(_device))


def seconds() -> float:
    """Returns this process's time: the processor's, so that waiting for others costs nothing; on a GPU that of the clock."""
    return time.process_time() if _device.type == "cpu" else time.perf_counter()


def process_rank() -> int:
    """Returns this process's number among those that train together."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_first() -> bool:
    return process_rank() == 0


def average_gradients(module: torch.nn.Module) -> None:
    """Every process of a run calls it after its backward pass."""
    gradients = [p.grad for p in module.parameters()]
    flat = torch.cat([grad.flatten() for grad in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    torch._foreach_copy_(gradients, [part.view_as(grad) for part, grad in
                                     zip(flat.split([grad.numel() for grad in gradients]), gradients)])


class TrainingRun:
    """Keeps weights, their average, optimisers, the step and the time in one file.  Processes of one torch.distributed
    group share each step; the first one's time counts and its state is saved."""

    def __init__(self, path: str, module: torch.nn.Module, decay: float, optimisers, minutes: float):
        """`optimisers` are pairs of an optimiser and its highest learning rate."""
        self.path, self.module, self.optimisers, self.budget = path, module, optimisers, 60 * minutes
        self.ema = Ema(module, decay)
        self.step, self.spent = 0, 0.0
        if os.path.exists(path):
            state = torch.load(path, map_location=_device)
            module.load_state_dict(state["module"])
            self.ema.module.load_state_dict(state["ema"])
            for (optimiser, _), saved in zip(optimisers, state["optimisers"]):
                optimiser.load_state_dict(saved)
            self.step, self.spent = state["step"], state["spent"]
        self.last = seconds()

    @property
    def progress(self) -> float:
        return self.spent / self.budget

    @property
    def done(self) -> bool:
        return self.spent >= self.budget

    def update(self, loss: torch.Tensor, factor: float) -> None:
        """Takes a step at the given fraction of the highest learning rates."""
        loss.backward()
        if dist.is_initialized():
            average_gradients(self.module)
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        for optimiser, rate in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        self.ema.update(self.module, self.step)
        now = seconds()
        self.spent, self.last = self.spent + now - self.last, now
        if dist.is_initialized():
            spent = torch.tensor(self.spent, dtype=torch.float64)
            dist.broadcast(spent, 0)
            self.spent = spent.item()

    def save(self) -> None:
        torch.save({"module": self.module.state_dict(), "ema": self.ema.module.state_dict(),
                    "optimisers": [o.state_dict() for o, _ in self.optimisers],
                    "step": self.step, "spent": self.spent}, self.path + ".new")
        os.replace(self.path + ".new", self.path)

    def skip_time(self) -> None:
        """Leaves the time since the last step out of the budget."""
        self.last = seconds()


def save_weights(path: str, weights: dict[str, torch.Tensor]) -> None:
    """Writes a run's file from weights alone; a run that begins with it has new optimisers."""
    torch.save({"module": weights, "ema": weights, "optimisers": [], "step": 0, "spent": 0.0}, path)
