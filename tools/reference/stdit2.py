"""STDiT2, the transformer of Open-Sora 1.1, in plain PyTorch: an oracle for the engine's. It takes the weights under their published
names."""
import torch
import torch.nn.functional as F

from tools.reference.stdit3 import STDiT3


class STDiT2(STDiT3):
    def __init__(self, weights, config):
        super().__init__(weights, {"qk_norm_legacy": True} | config)  # version 1.1 has no other order, and no name for it

    def __call__(self, z, timesteps, texts, numbers, denoised_frames=None):
        """z [B, 4, T, h, w] -> [B, 8, T, h, w]. `texts` are projected. `numbers` [B] by name: fps, num_frames, ar, and height and
        width of the video in pixels. Of `denoised_frames` [B, T] those that are 0 have timestep 0."""
        x = self.embed(z, numbers["height"][0].item(), numbers["width"][0].item())
        size = torch.cat([self.embed_number(numbers["height"], "csize_embedder"), self.embed_number(numbers["width"], "csize_embedder"),
                          self.embed_number(numbers["ar"], "ar_embedder")], 1)
        length = self.embed_number(numbers["num_frames"], "fl_embedder") + self.embed_number(numbers["fps"], "fps_embedder")
        time, given = self.embed_number(timesteps, "t_embedder"), self.embed_number(torch.zeros_like(timesteps), "t_embedder")
        masked = None if denoised_frames is None else denoised_frames[:, :, None, None, None].bool()

        def by_frame(table, layer, added):
            """Shifts, scales and gates of the tokens: a list of [B, f or 1, 1, 1, C]."""
            def of(at):
                return self.weights[table] + self.linear(F.silu(at + added), layer).unflatten(1, (-1, self.width))

            parts = [part[:, None, None, None] for part in of(time).unbind(1)]
            if masked is None:
                return parts
            return [torch.where(masked, one, other[:, None, None, None]) for one, other in zip(parts, of(given).unbind(1))]

        def modulated(y, shift, scale):
            return F.layer_norm(y, (self.width,), eps=1e-6) * (1 + scale) + shift

        frames = torch.arange(x.shape[1])
        for i in range(self.depth):
            block = f"blocks.{i}"
            shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = by_frame(f"{block}.scale_shift_table", "t_block.1", size)
            shift_t, scale_t, gate_t = by_frame(f"{block}.scale_shift_table_temporal", "t_block_temp.1", length)
            for over, name, shift, scale, gate in (("spatial", "attn", shift_a, scale_a, gate_a),
                                                   ("temporal", "attn_temp", shift_t, scale_t, gate_t)):
                x = x + gate * self.self_attention(modulated(x, shift, scale), f"{block}.{name}", frames, over, None, 0, None)
            x = x + self.cross_attention(x, f"{block}.cross_attn", texts)
            y = F.gelu(self.linear(modulated(x, shift_m, scale_m), f"{block}.mlp.fc1"), approximate="tanh")
            x = x + gate_m * self.linear(y, f"{block}.mlp.fc2")
        y = self.modulated_head(x, time)
        if masked is not None:
            # Frames of timestep 0 are modulated once more, by their own time, to which the size has been added.
            y = torch.where(masked, y, self.modulated_head(y, given + size))
        return self.latents(y)[:, :, :, :z.shape[3], :z.shape[4]]
