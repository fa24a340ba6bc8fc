"""Makes tests/golden/tiny-open-sora-1.1: a whole Open-Sora 1.1 pipeline with random weights, small enough for the repository, and under
golden/ the latents and frames that tools/reference/open_sora_1_1.py generates with it. Its transformer and its sampling are compared with the
goldens of the public code and of diffusers in iddpm_sampling.py. The parts have the form of hpcai-tech/OpenSora-STDiT-v2
and stabilityai/sd-vae-ft-ema."""
import shutil

import torch
from safetensors.torch import load_file

from tools.golden.video_pipeline import FOLDER as TINY_1_2
from tools.golden.video_pipeline import LARGE, SMALL, noise, write_goldens, write_json, write_weights
from tools.reference.open_sora_1_1 import OpenSora11
from tools.reference.video_vae import spatial_vae

FOLDER = TINY_1_2.parent / "tiny-open-sora-1.1"
PUBLIC = TINY_1_2.parent / "opensora" / "stdit2_a.weights.safetensors"
SEED, WIDTH, TEXT, LENGTH = 7, 48, 24, 40
TRANSFORMER = {
    "architectures": ["STDiT2"], "caption_channels": TEXT, "class_dropout_prob": 0.1, "depth": 2, "drop_path": 0.0,
    "enable_flash_attn": True, "enable_layernorm_kernel": True, "enable_sequence_parallelism": False, "freeze": None,
    "hidden_size": WIDTH, "in_channels": 4, "input_size": [None, None, None], "input_sq_size": 512, "mlp_ratio": 4.0,
    "model_max_length": LENGTH, "model_type": "STDiT2", "no_temporal_pos_emb": False, "num_heads": 4, "patch_size": [1, 2, 2],
    "pred_sigma": True, "qk_norm": True, "torch_dtype": "float32", "transformers_version": "4.38.2",
}
SCHEDULER = {"_class_name": "IDDPM", "cfg_channel": 3, "cfg_scale": 7.0, "num_sampling_steps": 100}
INDEX = {"_class_name": "OpenSoraV1_1Pipeline", "scheduler": ["opensora", "IDDPM"], "text_encoder": ["transformers", "T5EncoderModel"],
         "tokenizer": ["transformers", "T5Tokenizer"], "transformer": ["opensora", "STDiT2"], "vae": ["diffusers", "AutoencoderKL"]}
RUNS = {
    # name: the arguments of the oracle's call. The VAE decodes four frames at a time.
    "unguided": dict(prompts=["A red circle left of a blue square"], **SMALL, num_frames=5, steps=4, guidance=1.0, fps=8),
    "guided": dict(prompts=["a green star", ""], **LARGE, num_frames=3, steps=4, guidance=7.0),
    "image": dict(prompts=["a blue circle"], **LARGE, num_frames=1, steps=5),
    # Starts and lengths that are no multiples of clips; frames that are kept, and some that are edited.
    "references": dict(prompts=["a red circle right of a star"], **SMALL, num_frames=8, steps=6, videos_per_prompt=2,
                       references=["circle.png", "moving.gif"], mask_strategy="0,0,0,1,1,0;0,1,7,-3,2,0.6"),
    "loops": dict(prompts=["|0|a red circle|1|a green square above a star"], **SMALL, num_frames=6, steps=4, loops=2,
                  references=["circle.png"], mask_strategy="0;1,0,0,-1,1,0.6"),
    "edited_loops": dict(prompts=["a white square"], **SMALL, num_frames=4, steps=4, guidance=1.0, loops=3, condition_frames=3,
                         condition_edit=0.5),
}


def transformer_shapes():
    """(name, shape) of each weight: those of the public code's tiny model, which has the same width, but for heads and text."""
    shapes = {name: tuple(value.shape) for name, value in load_file(PUBLIC).items() if name != "rope.freqs"}
    shapes |= {name: (WIDTH // TRANSFORMER["num_heads"],) for name in shapes if name.endswith("_norm.weight")}
    return list((shapes | {"y_embedder.y_embedding": (LENGTH, TEXT), "y_embedder.y_proj.fc1.weight": (WIDTH, TEXT)}).items())


def build():
    torch.manual_seed(0)
    head = WIDTH // TRANSFORMER["num_heads"]
    rotation = 10000 ** (-torch.arange(0, head, 2) / head)
    write_weights(transformer_shapes(), FOLDER / "transformer" / "model.safetensors", {"rope.freqs": rotation})
    vae = spatial_vae([4, 8, 12, 12], 4)
    vae.load_state_dict({name: noise(tuple(value.shape), name).to(torch.bfloat16).float() for name, value in vae.state_dict().items()})
    vae.save_pretrained(FOLDER / "vae")
    for part in ("text_encoder", "tokenizer"):
        shutil.copytree(TINY_1_2 / part, FOLDER / part)
    for path, value in (("transformer/config.json", TRANSFORMER), ("scheduler/scheduler_config.json", SCHEDULER),
                        ("model_index.json", INDEX)):
        write_json(FOLDER / path, value)


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    build()
    write_goldens(FOLDER, OpenSora11(FOLDER), RUNS, SEED)


if __name__ == "__main__":
    main()
