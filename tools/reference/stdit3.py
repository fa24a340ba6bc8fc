"""STDiT3, the transformer of Open-Sora 1.2, in plain PyTorch: an oracle for the engine's, and the other side of its benchmark.

It takes the weights under their published names and any block of tokens of the grid (frames, rows, columns), whose attention sees
what each layer last saw of the others. That is PipeFusion's definition (arXiv:2405.14430); with the whole grid it is the model."""
import math

import torch
import torch.nn.functional as F


def sinusoids(numbers, width=256):
    half = width // 2
    angles = numbers.float()[:, None] * torch.exp(-math.log(10000) * torch.arange(half, device=numbers.device) / half)
    return torch.cat([angles.cos(), angles.sin()], 1)


def positions(width, rows, columns, scale, base, device=None):
    """[rows, columns, width]: half of the channels for the column, half for the row."""
    half = width // 2
    frequencies = 1 / 10000 ** (torch.arange(0, half, 2, device=device).float() / half)

    def of(length):
        angles = (torch.arange(length, device=device).float() / scale * base / length)[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], 1)

    return torch.cat([of(columns)[None].expand(rows, -1, -1), of(rows)[:, None].expand(-1, columns, -1)], 2)


def rotate(x, frames):
    """Rotates pairs of neighbouring channels of x [.., frames, heads, D] by the number of the frame."""
    depth = x.shape[-1]
    angles = frames[:, None].float() / 10000 ** (torch.arange(0, depth, 2).float() / depth)
    cos, sin = angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


def rms_norm(x, weight):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def attention(q, k, v):
    """q, k, v [.., tokens, heads, D]."""
    # Only with one dimension of samples does PyTorch take its fast kernels.
    samples = q.shape[:-3]
    q, k, v = (x.reshape(-1, *x.shape[-3:]).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).unflatten(0, samples or (1,))


class Cache:
    """What a layer last saw of all tokens, and which lines of the patches' axis it has seen."""

    def __init__(self, k, v, grid, axis):
        self.k, self.v = (x.new_zeros(x.shape[0], *grid, *x.shape[-2:]) for x in (k, v))
        self.axis, self.seen = axis, torch.zeros(grid[axis], dtype=torch.bool)

    def update(self, k, v, lines):
        where = (slice(None),) * (1 + self.axis) + (lines,)
        self.k[where], self.v[where] = k, v
        self.seen[lines] = True


class STDiT3:
    def __init__(self, weights, config):
        self.weights, self.config = weights, config
        self.heads = config["num_heads"]
        self.depth, self.width = config["depth"], config["hidden_size"]
        self.dtype = weights["x_embedder.proj.weight"].dtype

    def linear(self, x, name):
        return F.linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def embed_number(self, numbers, name):
        x = sinusoids(numbers).to(self.dtype)
        return self.linear(F.silu(self.linear(x, f"{name}.mlp.0")), f"{name}.mlp.2")

    def text(self, y):
        """Projects the tokens of a prompt [L, channels]."""
        return self.linear(F.gelu(self.linear(y, "y_embedder.y_proj.fc1"), approximate="tanh"), "y_embedder.y_proj.fc2")

    def null_text(self, length):
        return self.weights["y_embedder.y_embedding"][:length]

    def self_attention(self, x, name, frames, over, cache, axis, lines):
        """x [B, f, r, w, C]. `axis` (0: frames, 1: rows) and `lines` say which part of the grid x is."""
        qkv = self.linear(x, name + ".qkv").unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.unbind(-3)
        norm = [lambda x, which: rms_norm(x, self.weights[f"{name}.{which}_norm.weight"])]
        turn = [lambda x, _: rotate(x.movedim(1, 3), frames).movedim(3, 1)] if over == "temporal" else []
        for change in turn + norm if self.config.get("qk_norm_legacy") else norm + turn:
            q, k = change(q, "q"), change(k, "k")
        if cache is not None:
            if name not in cache:
                cache[name] = Cache(k, v, cache["grid"], axis)
            cache[name].update(k, v, lines)
            # Only lines of the axis along which the attention runs may be those of others.
            if (over == "spatial") == (axis == 1):
                seen = cache[name].seen
                k, v = (part[:, seen] if axis == 0 else part[:, :, seen] for part in (cache[name].k, cache[name].v))
        if over == "temporal":
            q, k, v = (part.movedim(1, 3) for part in (q, k, v))  # [B, r, w, f, heads, D]
            y = attention(q, k, v).movedim(3, 1)
        else:
            q, k, v = (part.flatten(2, 3) for part in (q, k, v))
            y = attention(q, k, v).unflatten(2, x.shape[2:4])
        return self.linear(y, name + ".proj")

    def cross_attention(self, x, name, texts):
        q = self.linear(x, name + ".q_linear").flatten(1, 3).unflatten(-1, (self.heads, -1))
        y = []
        for one, text in zip(q, texts):
            k, v = self.linear(text, name + ".kv_linear").unflatten(-1, (2, self.heads, -1)).unbind(-3)
            y.append(attention(one, k, v)[0])
        return self.linear(torch.stack(y), name + ".proj").unflatten(1, x.shape[1:4])

    def by_frame(self, table, modulations, denoised):
        """The vectors of a table for the tokens of each frame, [B, f or 1, 1, 1, C] each: with the first modulation [B, n, C], or
        with the second where a frame is not `denoised` [B, f, 1, 1, 1]."""
        parts = [[part[:, None, None, None] for part in (self.weights[table] + one).unbind(1)] for one in modulations]
        return parts[0] if denoised is None else [torch.where(denoised, *pair) for pair in zip(*parts)]

    def half_block(self, x, name, over, times, texts, frames, cache, axis, lines):
        """`times` are the last arguments of by_frame()."""
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.by_frame(name + ".scale_shift_table", *times)

        def modulated(y, shift, scale):
            return F.layer_norm(y, (self.width,), eps=1e-6) * (1 + scale) + shift

        x = x + gate_a * self.self_attention(modulated(x, shift_a, scale_a), name + ".attn", frames, over, cache, axis, lines)
        x = x + self.cross_attention(x, name + ".cross_attn", texts)
        y = F.gelu(self.linear(modulated(x, shift_m, scale_m), name + ".mlp.fc1"), approximate="tanh")
        return x + gate_m * self.linear(y, name + ".mlp.fc2")

    def embed(self, z, height, width):
        """Latents [B, 4, T, h, w] -> tokens [B, f, r, w, C]. A last odd row or column is completed with zeros."""
        whole = F.pad(z.to(self.dtype), (0, z.shape[4] % 2, 0, z.shape[3] % 2))
        x = F.conv3d(whole, self.weights["x_embedder.proj.weight"], self.weights["x_embedder.proj.bias"], stride=(1, 2, 2)).movedim(1, 4)
        rows, columns = x.shape[2:4]
        scale = math.sqrt(height * width) / self.config["input_sq_size"]
        return x + positions(self.width, rows, columns, scale, round(math.sqrt(rows * columns))).to(self.dtype)

    def modulated_head(self, x, time):
        """The norm before the last layer, with the shift and the scale of `time` [B, C]."""
        shift, scale = (self.weights["final_layer.scale_shift_table"] + time[:, None]).chunk(2, 1)
        return F.layer_norm(x, (self.width,), eps=1e-6) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]

    def latents(self, x):
        """The last layer: tokens -> [B, 8, f, 2 r, 2 w]."""
        y = self.linear(x, "final_layer.linear").unflatten(-1, (2, 2, -1))  # [B, f, r, w, 2, 2, out]
        return y.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4).float()

    def __call__(self, z, timesteps, texts, fps, height, width, cache=None, axis=0, lines=slice(None), denoised_frames=None):
        """z [B, 4, T, h, w] of all latents, of which the given lines (of tokens) are predicted: [B, 8, T', h', w]. `texts` are
        projected; timesteps, fps [B]; height and width of the video in pixels. `cache` is a dictionary between calls. Of
        `denoised_frames` [B, T] those that are 0 have timestep 0."""
        x = self.embed(z, height, width)
        grid = x.shape[1:4]
        where = (slice(None),) * (1 + axis) + (lines,)
        x = x[where]
        frames = torch.arange(grid[0])[lines if axis == 0 else slice(None)]
        if cache is not None:
            cache["grid"] = grid

        if denoised_frames is None:
            denoised, moments = None, [timesteps]
        else:
            denoised = denoised_frames[:, lines if axis == 0 else slice(None), None, None, None].bool()
            moments = [timesteps, torch.zeros_like(timesteps)]
        times = [self.embed_number(t.to(self.dtype), "t_embedder") + self.embed_number(fps, "fps_embedder") for t in moments]
        modulations = [self.linear(F.silu(time), "t_block.1").unflatten(1, (6, -1)) for time in times]
        for i in range(self.depth):
            for over in ("spatial", "temporal"):
                x = self.half_block(x, f"{over}_blocks.{i}", over, (modulations, denoised), texts, frames, cache, axis, lines)
        y = self.modulated_head(x, times[0])
        if denoised is not None:
            # Frames of timestep 0 are modulated once more, by their own time.
            y = torch.where(denoised, y, self.modulated_head(y, times[1]))
        y = self.latents(y)
        rows = z.shape[3] if axis == 0 else min(z.shape[3], 2 * range(grid[1])[lines][-1] + 2) - 2 * range(grid[1])[lines][0]
        return y[:, :, :, :rows, :z.shape[4]]
