"""Displaced patch parallelism (DistriFusion, arXiv:2402.19481) on diffusers' U-Net, in one process. It computes, step by step,
the results of N ranks that share the rows of a picture. Each rank is a thread that runs the model's forward over its rows; this
module inserts the other ranks' rows at every convolution, group norm and self-attention."""
import threading

import torch
import torch.nn.functional as F

MODES = ["full_sync", "sync_gn", "corrected_async_gn", "stale_gn", "separate_gn", "no_sync"]


def cut(units, ranks):
    """Returns (first, count) of each rank's units; the parts are whole and as even as possible, larger ones first."""
    sizes = [units // ranks + (rank < units % ranks) for rank in range(ranks)]
    return [(sum(sizes[:rank]), size) for rank, size in enumerate(sizes)]


class Oracle:
    """Runs `unet` as N ranks would. All steps go through step(), after which `unet` is as before."""

    def __init__(self, unet, height, width, ranks, mode, warmup_steps):
        self.unet, self.ranks, self.mode, self.warmup = unet, ranks, mode, warmup_steps
        self.levels = len(unet.config.block_out_channels)
        unit = 2 ** (self.levels - 1)
        self.bands_of = {}  # height of a level -> rows of each rank
        self.widths = {}
        rows = height
        for level in range(self.levels):
            scale = unit >> level
            self.bands_of[rows] = [(first * scale, min((first + count) * scale, rows))
                                   for first, count in cut(-(-height // unit), ranks)]
            self.widths[rows] = width
            rows, width = (rows + 1) // 2, (width + 1) // 2
        assert len(self.bands_of) == self.levels, "levels are distinguished by their heights"
        self.index = 0
        self.before, self.now = {}, {}  # (module, rank) -> its value there, one step ago and in this step
        self.barrier = threading.Barrier(ranks)
        self.local = threading.local()
        self.names = {module: name for name, module in unet.named_modules()}

    def step(self, latents, forward):
        """Returns the model's output for the whole latents; `forward(latents of some rows)` calls the model."""
        self.fresh = self.mode == "full_sync" or self.index < self.warmup
        bands = self.bands_of[latents.shape[2]]
        outputs, failures = [None] * self.ranks, []

        def run(rank):
            self.local.rank = rank
            try:
                with torch.no_grad():
                    outputs[rank] = forward(latents[:, :, bands[rank][0]:bands[rank][1]])
            except Exception as error:  # pylint: disable=broad-except
                failures.append(error)
                self.barrier.abort()

        with Patched(self):
            threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self.ranks)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if failures:
            raise failures[0]
        self.index += 1
        if not (self.mode == "no_sync" and not self.fresh):
            self.before = self.now
        self.now = {}
        return torch.cat(outputs, 2)

    # The following functions run on the thread of a rank.

    def exchange(self, module, value, fresh):
        """Returns every rank's value at this module: the current one if `fresh`, else that of one step ago (None before it)."""
        rank = self.local.rank
        self.now[module, rank] = value
        if fresh:
            self.barrier.wait()
            values = [self.now[module, other] for other in range(self.ranks)]
            self.barrier.wait()
            return values
        return [self.before.get((module, other)) for other in range(self.ranks)]

    def convolve(self, module, x, heights):
        """Computes this rank's rows of a k x k convolution; the whole picture has `heights` rows at this level."""
        rank, kernel, stride, padding = self.local.rank, module.kernel_size[0], module.stride[0], module.padding[0]
        bands = self.bands_of[heights]
        values = self.exchange(module, x, self.fresh or self.names[module] == "conv_in")
        whole = torch.zeros(x.shape[0], x.shape[1], heights + 2 * padding, x.shape[3], dtype=x.dtype)
        for other, value in enumerate(values):
            begin, end = bands[other]
            if other == rank:
                value = x
            if value is not None:
                whole[:, :, begin + padding:end + padding] = value
        out = bands if stride == 1 else self.bands_of[(heights + 1) // 2]
        first, last = out[rank]
        rows = whole[:, :, first * stride:(last - 1) * stride + kernel]
        return F.conv2d(rows, module.weight, module.bias, stride, (0, module.padding[1]))

    def normalise(self, module, x):
        rank = self.local.rank
        groups = x.reshape(x.shape[0], module.num_groups, -1).double()
        local = torch.stack([groups.mean(-1), (groups ** 2).mean(-1)])
        values = self.exchange(module, (local, x.shape[2]), self.fresh or self.mode == "sync_gn")
        if self.fresh or self.mode == "sync_gn":
            mean, square = self.joined(values)
        elif self.mode in ("separate_gn", "no_sync") or values[rank] is None:
            mean, square = local
        else:
            share = 1 if self.mode == "corrected_async_gn" else x.shape[2] / sum(rows for _, rows in values)
            mean, square = self.joined(values) + share * (local - values[rank][0])
        variance = square - mean ** 2
        variance = torch.where(variance < 0, local[1] - local[0] ** 2, variance)
        y = (groups - mean.unsqueeze(-1)) / torch.sqrt(variance + module.eps).unsqueeze(-1)
        y = y.reshape(x.shape).to(x.dtype)
        return y * module.weight.view(1, -1, 1, 1) + module.bias.view(1, -1, 1, 1)

    @staticmethod
    def joined(values):
        rows = sum(count for _, count in values)
        return sum(moments * (count / rows) for moments, count in values)

    def attend(self, module, x):
        local = (module.to_k(x), module.to_v(x))
        values = self.exchange(module, local, self.fresh)
        seen = [local if other == self.local.rank else value for other, value in enumerate(values)]
        seen = [value for value in seen if value is not None]
        key, value = (torch.cat([pair[i] for pair in seen], 1) for i in range(2))
        query = module.to_q(x)

        def heads(tensor):
            return tensor.unflatten(2, (module.heads, -1)).transpose(1, 2)
        attended = F.scaled_dot_product_attention(heads(query), heads(key), heads(value))
        return module.to_out[0](attended.transpose(1, 2).flatten(2))


class Patched:
    """Makes the model's modules call the oracle within its `with` block."""

    def __init__(self, oracle):
        self.oracle, self.undo = oracle, []

    def replace(self, module, forward):
        self.undo.append((module, module.forward))
        module.forward = forward

    def __enter__(self):
        oracle = self.oracle
        for name, module in oracle.unet.named_modules():
            if isinstance(module, torch.nn.Conv2d) and module.kernel_size[0] > 1:
                self.replace(module, lambda x, m=module: oracle.convolve(m, x, self.height(x)))
            elif isinstance(module, torch.nn.GroupNorm):
                self.replace(module, lambda x, m=module: oracle.normalise(m, x))
            elif name.endswith("attn1"):
                self.replace(module, lambda x, encoder_hidden_states=None, attention_mask=None, m=module, **_: oracle.attend(m, x))
        return self

    def height(self, x):
        """Returns the whole picture's height at the level of `x`: the level at which this rank has as many rows."""
        rank = self.oracle.local.rank
        fitting = [height for height, bands in self.oracle.bands_of.items()
                   if bands[rank][1] - bands[rank][0] == x.shape[2]]
        if len(fitting) > 1:  # levels with equal rows on this rank differ in width
            fitting = [height for height in fitting if self.oracle.widths[height] == x.shape[3]]
        return fitting[0]

    def __exit__(self, *_):
        for module, forward in self.undo:
            module.forward = forward
