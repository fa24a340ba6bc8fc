"""The optimiser Muon for matrices and convolutions, a moving average of weights, and learning rates."""

from __future__ import annotations

import copy
import math

import torch


def orthogonalise(grad: torch.Tensor) -> torch.Tensor:
    """Approximates the nearest (semi-)orthogonal matrix by Newton-Schulz iteration in bfloat16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = grad.bfloat16()
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.T if tall else x).to(grad.dtype)


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonalised momentum of each matrix; a convolution counts as [out, in * k * k]."""

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "buffer" not in state:
                    state["buffer"] = torch.zeros_like(p)
                buffer = state["buffer"]
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(buffer, group["momentum"]).flatten(1)
                update = orthogonalise(update)
                scale = max(1.0, update.shape[0] / update.shape[1]) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update.view_as(p), alpha=-group["lr"] * scale)


class Ema:
    """Averages the weights over a window that grows with the step, so that early steps fade."""

    def __init__(self, module: torch.nn.Module, decay: float):
        self.module = copy.deepcopy(module).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, source: torch.nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        mine, theirs = list(self.module.parameters()), list(source.parameters())
        torch._foreach_lerp_(mine, [p.detach() for p in theirs], 1 - decay)


def cosine(progress: float, warm: float = 0.02) -> float:
    """Returns the learning rate's factor: a linear warm-up, then half a cosine down to zero."""
    if progress < warm:
        return (progress + 1e-3) / (warm + 1e-3)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - warm) / (1 - warm))))


def trapezoid(progress: float, warm: float = 0.01, fall: float = 0.45) -> float:
    """Returns the learning rate's factor: a short linear warm-up, a constant, then a linear fall to zero."""
    return min(1.0, (progress + 1e-4) / warm, max(0.0, (1 - progress) / fall))
