"""The optimiser Muon for matrices and convolutions, a moving average of weights, and learning rates."""

from __future__ import annotations

import copy
import math

import torch


def has_bfloat16(device: torch.device) -> bool:
    """Returns whether the device has instructions for bfloat16. Without them it takes 6.5 times as long as float32."""
    return device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()


def orthogonalise(grad: torch.Tensor) -> torch.Tensor:
    """Approximates the nearest (semi-)orthogonal matrices of [.., rows, columns] by Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = grad.bfloat16() if has_bfloat16(grad.device) else grad
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(grad.dtype)


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonalised momentum of each matrix; a convolution counts as [out, in * k * k]."""

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for alike in self.together(group["params"]):
                grads = [p.grad for p in alike]
                for p in alike:
                    if "buffer" not in self.state[p]:
                        self.state[p]["buffer"] = torch.zeros_like(p)
                buffers = [self.state[p]["buffer"] for p in alike]
                torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
                updates = torch._foreach_lerp(grads, buffers, group["momentum"])
                updates = orthogonalise(torch.stack([update.flatten(1) for update in updates]))
                scale = max(1.0, updates.shape[-2] / updates.shape[-1]) ** 0.5
                torch._foreach_mul_(alike, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(alike, [u.view_as(p) for u, p in zip(updates, alike)], alpha=-group["lr"] * scale)

    @staticmethod
    def together(parameters) -> list[list[torch.Tensor]]:
        """Returns the parameters one by one, or on a GPU those of one shape together, because each kernel is short."""
        alike = {}
        for p in parameters:
            alike.setdefault(tuple(p.shape) if p.is_cuda else id(p), []).append(p)
        return list(alike.values())


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
