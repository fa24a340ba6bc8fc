"""Makes tests/golden/noise: the results of two consecutive calls of torch.randn with seeded CPU generators."""
import pathlib

import torch
from safetensors.torch import save_file

folder = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "noise"
folder.mkdir(parents=True, exist_ok=True)
tensors = {}
for seed in (0, 7, 1 << 40):
    generator = torch.Generator().manual_seed(seed)
    # The number of elements of the second shape is no multiple of 16, so torch fills its tail in another way.
    tensors[f"{seed}.first"] = torch.randn([2, 4, 8, 6], generator=generator)
    tensors[f"{seed}.second"] = torch.randn([1, 4, 5, 7], generator=generator)
save_file(tensors, folder / "noise.safetensors")
