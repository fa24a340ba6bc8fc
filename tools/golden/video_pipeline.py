"""Makes tests/golden/tiny-open-sora: a whole Open-Sora 1.2 pipeline with random weights, small enough for the repository, and under
golden/ the latents and frames that tools/reference/open_sora.py generates with it. The oracle is first compared with the goldens of the public
code. The parts have the form of hpcai-tech/OpenSora-STDiT-v3 and OpenSora-VAE-v1.2; as these have no keys for the widths of the VAE,
vae_2d and vae_temporal get keys of their own, which without them are those of the published weights."""
import json
import pathlib
import shutil

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5EncoderModel

from tools.golden import video_vae as golden_video_vae
from tools.golden.tiny_pipeline import FOLDER as TINY_PIXART
from tools.golden.tiny_pipeline import randomize
from tools.reference.open_sora import OpenSora, as_reference, guided, sample, timesteps
from tools.reference.stdit3 import STDiT3
from tools.reference.video_vae import SPATIAL, TEMPORAL, TemporalVae, part, spatial_vae

PUBLIC = golden_video_vae.FOLDER
FOLDER = PUBLIC.parent / "tiny-open-sora"
SEED, WIDTH, TEXT, LENGTH = 7, 40, 24, 40
TRANSFORMER = {
    "architectures": ["STDiT3"], "caption_channels": TEXT, "class_dropout_prob": 0.1, "depth": 2, "drop_path": 0.0,
    "enable_flash_attn": True, "enable_layernorm_kernel": True, "enable_sequence_parallelism": False, "freeze_y_embedder": True,
    "hidden_size": WIDTH, "in_channels": 4, "input_size": [None, None, None], "input_sq_size": 512, "mlp_ratio": 4.0,
    "model_max_length": LENGTH, "model_type": "STDiT3", "num_heads": 4, "only_train_temporal": False, "patch_size": [1, 2, 2],
    "pred_sigma": True, "qk_norm": True, "skip_y_embedder": False, "torch_dtype": "float32", "transformers_version": "4.38.2",
}
SPATIAL_CHANNELS, SPATIAL_GROUPS, FILTERS, TEMPORAL_GROUPS = [4, 8, 12, 12], 4, [2, 4, 4, 8], 2
VAE = {
    "architectures": ["VideoAutoencoderPipeline"], "cal_loss": False, "freeze_vae_2d": False, "from_pretrained": None,
    "micro_frame_size": 17, "model_type": "VideoAutoencoderPipeline", "scale": [3.85, 2.32, 2.33, 3.06],
    "shift": [-0.1, 0.34, 0.27, 0.98], "torch_dtype": "float32", "transformers_version": "4.38.2",
    "vae_2d": {"from_pretrained": "PixArt-alpha/pixart_sigma_sdxlvae_T5_diffusers", "local_files_only": False, "micro_batch_size": 4,
               "subfolder": "vae", "type": "VideoAutoencoderKL", "block_out_channels": SPATIAL_CHANNELS,
               "norm_num_groups": SPATIAL_GROUPS},
    "vae_temporal": {"from_pretrained": None, "type": "VAE_Temporal_SD", "filters": FILTERS[0], "num_groups": TEMPORAL_GROUPS},
}
SCHEDULER = {"_class_name": "RFLOW", "cfg_scale": 7.0, "num_sampling_steps": 30, "num_timesteps": 1000,
             "use_discrete_timesteps": False, "use_timestep_transform": True}
INDEX = {"_class_name": "OpenSoraPipeline", "scheduler": ["opensora", "RFLOW"], "text_encoder": ["transformers", "T5EncoderModel"],
         "tokenizer": ["transformers", "T5Tokenizer"], "transformer": ["opensora", "STDiT3"], "vae": ["opensora", "OpenSoraVAE_V1_2"]}
SMALL, LARGE = dict(height=27, width=45), dict(height=43, width=61)  # no multiples of 8; latents of 3 x 5 and 5 x 7
RUNS = {
    # name: the arguments of the oracle's call
    "unguided": dict(prompts=["A red circle left of a blue square"], **SMALL, num_frames=17, steps=4, guidance=1.0, fps=8),
    "guided": dict(prompts=["a green star"], **LARGE, num_frames=17, steps=4, guidance=7.0, motion=3.0, camera_motion="pan right"),
    # The prompt has more tokens than the model takes. Of a clip of five frames the latents begin with padding.
    "two_clips": dict(prompts=["a red circle above a blue square on the left of a white star, " * 3], **SMALL, num_frames=22, steps=4),
    "image": dict(prompts=["a blue circle", ""], **LARGE, num_frames=1, steps=5, aesthetic=None),
    "edited_image": dict(prompts=["a red circle"], **SMALL, num_frames=17, steps=6, videos_per_prompt=2, references=["circle.png"],
                         mask_strategy="0,0,0,0,1,0.5"),
    # At this size the first timestep would be rounded to a little above 1000.
    "kept_image": dict(prompts=["a red circle"], height=26, width=44, num_frames=17, steps=4, references=["circle-26x44.png"],
                       mask_strategy="0"),
    "video": dict(prompts=["a red circle right of a star"], **SMALL, num_frames=34, steps=6, references=["moving.gif", "circle.png"],
                  mask_strategy="0,0,0,-5,5,0.3;0,1,0,0,1,0"),
    "loops": dict(prompts=["|0|a red circle|1|a green square above a star"], **SMALL, num_frames=34, steps=4, loops=2,
                  references=["circle.png"], mask_strategy="0;1,0,0,-1,1,0.6"),
    # The last five of seven latents do not begin with a clip: alignment makes them the first five.
    "ragged_loops": dict(prompts=["a white square"], **SMALL, num_frames=22, steps=4, guidance=1.0, loops=2, condition_edit=0.2),
}


def noise(shape, name):
    if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "norm_out.weight")):
        return 1 + 0.2 * torch.randn(shape)
    if name.endswith("scale_shift_table"):
        return 0.4 * torch.randn(shape)
    if name.endswith("y_embedding"):
        return torch.randn(shape)
    if name.endswith("bias"):
        return 0.15 * torch.randn(shape)
    return torch.randn(shape) / np.prod(shape[1:]) ** 0.5


def transformer_shapes():
    """(name, shape) of each weight."""
    def linear(name, inputs, outputs):
        return [(name + ".weight", (outputs, inputs)), (name + ".bias", (outputs,))]

    head = WIDTH // TRANSFORMER["num_heads"]
    shapes = [("x_embedder.proj.weight", (WIDTH, 4, 1, 2, 2)), ("x_embedder.proj.bias", (WIDTH,)), ("y_embedder.y_embedding", (LENGTH, TEXT)),
              ("final_layer.scale_shift_table", (2, WIDTH))]
    for name in ("t_embedder", "fps_embedder"):
        shapes += linear(name + ".mlp.0", 256, WIDTH) + linear(name + ".mlp.2", WIDTH, WIDTH)
    shapes += linear("t_block.1", WIDTH, 6 * WIDTH) + linear("y_embedder.y_proj.fc1", TEXT, WIDTH)
    shapes += linear("y_embedder.y_proj.fc2", WIDTH, WIDTH) + linear("final_layer.linear", WIDTH, 32)
    for block in (f"{over}_blocks.{i}." for i in range(TRANSFORMER["depth"]) for over in ("spatial", "temporal")):
        shapes += [(block + "scale_shift_table", (6, WIDTH))] + [(f"{block}attn.{which}_norm.weight", (head,)) for which in "qk"]
        for name, inputs, outputs in (("attn.qkv", 1, 3), ("attn.proj", 1, 1), ("cross_attn.q_linear", 1, 1), ("cross_attn.kv_linear", 1, 2),
                                      ("cross_attn.proj", 1, 1), ("mlp.fc1", 1, 4), ("mlp.fc2", 4, 1)):
            shapes += linear(block + name, inputs * WIDTH, outputs * WIDTH)
    return shapes


def temporal_shapes():
    """(name, shape) of each weight of the temporal VAE."""
    def conv(name, inputs, outputs, kernel=3, bias=True):
        return [(name + ".conv.weight", (outputs, inputs) + (kernel,) * 3)] + ([(name + ".conv.bias", (outputs,))] if bias else [])

    def norm(name, channels):
        return [(name + ".weight", (channels,)), (name + ".bias", (channels,))]

    def blocks(name, inputs, outputs):
        shapes = []
        for i, before in enumerate([inputs] + [outputs] * 3):
            one = f"{name}.{i}"
            shapes += norm(one + ".norm1", before) + conv(one + ".conv1", before, outputs, bias=False)
            shapes += norm(one + ".norm2", outputs) + conv(one + ".conv2", outputs, outputs, bias=False)
            shapes += conv(one + ".conv3", before, outputs, 1, bias=False) if before != outputs else []
        return shapes

    first, last = FILTERS[0], FILTERS[-1]
    shapes = conv("encoder.conv_in", 4, first, bias=False) + conv("decoder.conv1", 4, last) + conv("decoder.conv_out", first, 4)
    shapes += norm("encoder.norm1", last) + conv("encoder.conv2", last, 8, 1) + norm("decoder.norm1", first)
    shapes += conv("quant_conv", 8, 8, 1) + conv("post_quant_conv", 4, 4, 1)
    shapes += blocks("encoder.res_blocks", last, last) + blocks("decoder.res_blocks", last, last)
    for i, channels in enumerate(FILTERS):
        shapes += blocks(f"encoder.block_res_blocks.{i}", FILTERS[max(i - 1, 0)], channels)
        shapes += blocks(f"decoder.block_res_blocks.{i}", FILTERS[min(i + 1, 3)], channels)
    for i in (1, 2):
        shapes += conv(f"encoder.conv_blocks.{i}", FILTERS[i], FILTERS[i]) + conv(f"decoder.conv_blocks.{i}", FILTERS[i + 1], 2 * FILTERS[i + 1])
    return shapes


def write_weights(shapes, path, exact=None):
    """Rounds the weights to 16 bits, but those in `exact`."""
    weights = {name: noise(shape, name).to(torch.bfloat16) for name, shape in shapes}
    path.parent.mkdir(parents=True)
    save_file(weights | (exact or {}), path, metadata={"format": "pt"})


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


def build():
    torch.manual_seed(0)
    head = WIDTH // TRANSFORMER["num_heads"]
    rotation = 10000 ** (-torch.arange(0, head, 2) / head)
    write_weights(transformer_shapes(), FOLDER / "transformer" / "model.safetensors", {"rope.freqs": rotation})
    spatial = spatial_vae(SPATIAL_CHANNELS, SPATIAL_GROUPS).state_dict()
    shapes = [(SPATIAL + name, tuple(value.shape)) for name, value in spatial.items()]
    shapes += [(TEMPORAL + name, shape) for name, shape in temporal_shapes()]
    public = load_file(PUBLIC / "vae12.weights.safetensors").keys()
    assert {name for name, _ in shapes} | {"shift", "scale"} == public, {name for name, _ in shapes} ^ public
    write_weights(shapes, FOLDER / "vae" / "model.safetensors",
                  {name: torch.tensor(VAE[name]).view(1, 4, 1, 1, 1) for name in ("shift", "scale")})
    randomize(T5EncoderModel(T5Config(
        vocab_size=120, d_model=TEXT, d_kv=6, d_ff=40, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
        tie_word_embeddings=False, is_encoder_decoder=False, use_cache=False))).save_pretrained(FOLDER / "text_encoder")
    shutil.copytree(TINY_PIXART / "tokenizer", FOLDER / "tokenizer")
    for path, value in (("transformer/config.json", TRANSFORMER), ("vae/config.json", VAE), ("scheduler/scheduler_config.json", SCHEDULER),
                        ("model_index.json", INDEX)):
        write_json(FOLDER / path, value)


def drawing(height, width, shift):
    """Numbers of colours [height, width]: a circle on a ground of two halves."""
    y, x = np.mgrid[:height, :width]
    ground = np.where(y < height * 0.6, 0, 1)
    return np.where((y - height * 0.5) ** 2 + (x - width * 0.2 - shift) ** 2 < (height * 0.25) ** 2, 2, ground).astype(np.uint8)


def write_references(folder):
    colours = np.array([[235, 235, 225], [40, 120, 60], [200, 30, 40]], np.uint8)
    for name, height, width in (("circle.png", *SMALL.values()), ("circle-26x44.png", 26, 44)):
        Image.fromarray(colours[drawing(height, width, 3)]).save(folder / name)
    frames = [drawing(*SMALL.values(), 1.5 * i) for i in range(17)]
    images = [Image.fromarray(frame, "P") for frame in frames]
    for image in images:
        image.putpalette(colours.tobytes())
    images[0].save(folder / "moving.gif", save_all=True, append_images=images[1:], duration=40, loop=0, optimize=False)
    assert np.array_equal(read_frames(folder / "moving.gif"), colours[np.stack(frames)])


def read_frames(path):
    """[F, H, W, 3] of 8 bits."""
    image, frames = Image.open(path), []
    for i in range(getattr(image, "n_frames", 1)):
        image.seek(i)
        frames.append(np.array(image.convert("RGB")))
    return np.stack(frames)


def error(own, expected):
    return ((own - expected).abs().max() / expected.abs().max()).item()


def check_sampling(name):
    case, io = json.loads((PUBLIC / f"{name}.json").read_text()), load_file(PUBLIC / f"{name}.io.safetensors")
    model = STDiT3(load_file(PUBLIC / case["weights"]), case["model_config"])
    texts = [model.text(y[0, :length]) for y, length in zip(io["in.y"], io["in.mask"].sum(1).tolist())]
    height, width, frames, fps = (int(io[f"in.{key}"][0]) for key in ("height", "width", "num_frames", "fps"))
    t = timesteps(case["config"]["num_sampling_steps"], height, width, frames)
    mask, seen = io.get("in.frame_mask", torch.ones(io["in.z"].shape[0], io["in.z"].shape[2])), []
    z = sample(lambda z, step, active: guided(model, z, t[step], texts, fps, height, width, case["config"]["cfg_scale"], active),
               io["in.z"], t, mask, lambda step: io["in.step_noise"][step], seen=seen)
    assert "out.x_mask" not in io or torch.equal(torch.stack([active for _, active in seen]), io["out.x_mask"].bool())
    return [error(t[:, None], io["out.timesteps"]), error(torch.stack([z for z, _ in seen]), io["out.model_input"]), error(z, io["out.z"])]


def check_forward(name):
    case, io = json.loads((PUBLIC / f"{name}.json").read_text()), load_file(PUBLIC / f"{name}.io.safetensors")
    model = STDiT3(load_file(PUBLIC / case["weights"]), case["config"])
    lengths = io["in.mask"].sum(1).tolist() * (2 // len(io["in.mask"]))
    texts = [model.text(y[0, :length]) for y, length in zip(io["in.y"], lengths)]
    y = model(io["in.x"], io["in.timestep"], texts, io["in.fps"].expand(2), io["in.height"][0].item(), io["in.width"][0].item())
    return [error(y, io["out.x"])]


@torch.inference_mode()
def check_against_the_public_code():
    found = {name: check_forward(name) for name in ("stdit3_a", "stdit3_b")}
    found |= {name: check_sampling(name) for name in ("rflow_plain", "rflow_masked")}
    weights = part(load_file(PUBLIC / "vae12.weights.safetensors"), TEMPORAL)
    found["vae_temporal"] = [golden_video_vae.check_against_the_public_code(TemporalVae(weights, 2))]
    for name, errors in found.items():
        print(f"{name}:", *(f"{one:.1e}" for one in errors), "of the largest value")
        assert max(errors) < 2e-6, name


def write_goldens(folder, oracle, runs, seed):
    """Writes the references, the runs and what the oracle makes of them to golden/ in the model's folder."""
    golden, latents, frames = folder / "golden", {}, {}
    golden.mkdir()
    write_references(golden)
    (golden / "runs.json").write_text(json.dumps({"seed": seed, "runs": runs}, indent=1) + "\n")
    for name, options in runs.items():
        references = [as_reference(read_frames(golden / file)) for file in options.get("references", [])]
        video = oracle(**{**options, "references": references}, seed=seed)
        latents |= {f"{name}.{loop}": z.contiguous() for loop, z in enumerate(video.latents)}
        frames[name] = video.frames().contiguous()
        beyond = (video.pixels.abs() > 1).float().mean().item()
        print(f"{name}: {tuple(frames[name].shape)}, latents up to {max(z.abs().max().item() for z in video.latents):.1f}, "
              f"pixels {video.pixels.std().item():.2f} around {video.pixels.mean().item():.2f}, {beyond:.0%} beyond their range")
    save_file(latents, golden / "latents.safetensors")
    save_file(frames, golden / "frames.safetensors")


def main():
    check_against_the_public_code()
    shutil.rmtree(FOLDER, ignore_errors=True)
    build()
    write_goldens(FOLDER, OpenSora(FOLDER), RUNS, SEED)


if __name__ == "__main__":
    main()
