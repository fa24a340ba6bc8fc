#!/usr/bin/env python3
"""Alternates Tessera and diffusers on one machine in one run and prints the ratios of their times, medians over rounds.

The models have random weights and the real shapes of PixArt-Sigma-XL or SDXL and of the SDXL VAE, or of Z-Image or FLUX.2 klein;
images have 512 x 512 pixels by default. A ratio below 1 means that Tessera needs less. Absolute times are only for orientation:
machines differ and are shared.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import models

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKER = ROOT / "build" / "bench" / "tessera_bench"
# What is compared of each family.
PARTS = {"pixart": ["denoiser", "denoiser-300", "decoder", "command"], "sdxl": ["denoiser", "decoder", "command"],
         "z-image": ["denoiser", "denoiser-unguided", "decoder", "command"],
         "flux2-klein": ["denoiser-unguided", "denoiser", "decoder", "command"]}
# Tokens of the positive prompt and of the negative one, as in bench/worker.cc.
TOKENS = {"denoiser": (25, 1), "denoiser-300": (300, 1)}
Z_IMAGE_TOKENS = (25, 8)  # with the chat template
KLEIN_TOKENS = 512  # with padding, as its pipeline has it


# The settings of the libraries for each TESSERA_MAX_ISA (core/host.cc), for diffusers, which ignores that variable.
CAPS = {"avx2": ("avx2", "AVX2", "AVX2"), "avx512": ("avx512", "AVX512_CORE", "AVX512"),
        "avx512_bf16": ("avx512", "AVX512_CORE_BF16", "AVX512")}


def cap_instruction_sets(isa):
    """Limits this process and those that it starts."""
    names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
    os.environ.update(zip(names, CAPS[isa]), TESSERA_MAX_ISA=isa)


class Ended(SystemExit):
    """A peer ended before its time, and has said why."""


class Peer:
    """A process that does one unit of work per line on stdin and answers `seconds peak_bytes`."""

    def __init__(self, command, threads, **environment):
        env = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads), **environment)
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.is_ready = False

    def ask(self):
        """Begins a unit of work; the first waits until the process has loaded."""
        while not self.is_ready:
            line = self.process.stdout.readline()
            if not line:
                raise Ended(f"compare: {self.command[0]} ended before it was ready")
            self.is_ready = line.strip() == "ready"
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self):
        answer = self.process.stdout.readline().split()
        if len(answer) != 2:
            raise Ended("compare: a peer ended early")
        return float(answer[0]), int(answer[1])

    def __call__(self):
        self.ask()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def denoiser_step(model, names):
    """Wraps the model as a function of tensors alone, as tracers require."""
    import torch

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *tensors):
            inputs = dict(zip(names, tensors))
            added = {name: inputs.pop(name) for name in ("text_embeds", "time_ids") if name in inputs}
            return self.model(**inputs, added_cond_kwargs=added or {"resolution": None, "aspect_ratio": None}, return_dict=False)[0]

    return Step()


def z_image_step(model):
    import torch

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, latents, timestep, *texts):
            return torch.stack(self.model(list(latents.unsqueeze(2).unbind(0)), timestep, list(texts), return_dict=False)[0])

    return Step()


def klein_step(model):
    import torch

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, latents, timestep, picture_ids, text_ids, *texts):
            # As the pipeline does, which takes one branch of guidance after the other.
            return torch.cat([self.model(latents, text, timestep, picture_ids, text_ids, return_dict=False)[0] for text in texts])

    return Step()


def denoiser(folder, part, dtype, height, width):
    """Returns a step and its inputs, those of diffusers' pipelines, with as many samples as the part has."""
    import diffusers
    import torch

    def randn(*sizes):
        return torch.randn(*sizes, dtype=dtype)

    name = "unet" if os.path.exists(f"{folder}/unet") else "transformer"
    config = json.loads(pathlib.Path(folder, name, "config.json").read_text())
    model = getattr(diffusers, config["_class_name"]).from_pretrained(f"{folder}/{name}", torch_dtype=dtype).eval()
    samples = 1 if part == "denoiser-unguided" else 2
    if config["_class_name"] == "ZImageTransformer2DModel":
        texts = [randn(length, config["cap_feat_dim"]) for length in Z_IMAGE_TOKENS[:samples]]
        return z_image_step(model), (randn(samples, config["in_channels"], height, width), torch.full((samples,), 0.5), *texts)
    if config["_class_name"] == "Flux2Transformer2DModel":
        rows, columns = torch.meshgrid(torch.arange(height // 2), torch.arange(width // 2), indexing="ij")
        picture_ids = torch.nn.functional.pad(torch.stack([rows.flatten(), columns.flatten()], 1), (1, 1))
        text_ids = torch.nn.functional.pad(torch.arange(KLEIN_TOKENS).unsqueeze(1), (3, 0))
        return klein_step(model), (randn(1, len(picture_ids), config["in_channels"]), torch.tensor([0.5]), picture_ids, text_ids,
                                   *(randn(1, KLEIN_TOKENS, config["joint_attention_dim"]) for _ in range(samples)))
    inputs = {"timestep": torch.tensor([500, 500])}
    if name == "unet":
        inputs.update(sample=randn(2, 4, height, width), encoder_hidden_states=randn(2, 77, 2048), text_embeds=randn(2, 1280),
                      time_ids=torch.tensor([[height * 8, width * 8, 0, 0, height * 8, width * 8]] * 2, dtype=dtype))
    else:
        positive, negative = TOKENS[part]
        mask = torch.zeros(2, 300)
        mask[0, :negative] = mask[1, :positive] = 1
        inputs.update(hidden_states=randn(2, 4, height, width), encoder_hidden_states=randn(2, 300, 4096), encoder_attention_mask=mask)
    return denoiser_step(model, list(inputs)), tuple(inputs.values())


def decoder(folder, dtype):
    import diffusers
    config = json.loads(pathlib.Path(folder, "vae", "config.json").read_text())
    model = getattr(diffusers, config["_class_name"]).from_pretrained(f"{folder}/vae", torch_dtype=dtype).eval()
    del model.encoder
    return model


def openvino_work(step, inputs, dtype, threads):
    """The traced model, compiled by OpenVINO for the CPU in the given precision."""
    import openvino
    import torch
    with torch.inference_mode():
        expected = step(*inputs).flatten()
    # Z-Image computes tables of positions at its first call, so that a second trace, which would check the first one, differs.
    traced = torch.jit.trace(step, tuple(inputs), check_trace=False)
    compiled = openvino.compile_model(openvino.convert_model(traced, example_input=tuple(inputs)), "CPU", {
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == torch.bfloat16 else "f32", "INFERENCE_NUM_THREADS": int(threads)})
    arrays = [i.numpy() for i in inputs]
    own = torch.from_numpy(compiled(arrays)[0]).flatten()
    if torch.corrcoef(torch.stack([own, expected]))[0, 1] < 0.99:
        sys.exit("compare: the result of OpenVINO is not that of the model")
    return lambda: compiled(arrays)


def diffusers_worker(arguments):
    """The reference side of a pair, which runs in a separate process."""
    part, folder, dtype, threads, height, width, mode = arguments
    import torch
    warnings.simplefilter("ignore")  # tracing warns about constants
    torch.set_num_threads(int(threads))
    cap = os.environ.get("TESSERA_MAX_ISA")
    if cap and torch.backends.cpu.get_cpu_capability().lower() not in (CAPS[cap][0], "avx2"):
        sys.exit(f"compare: diffusers does not run under the cap {cap}")
    dtype = torch.bfloat16 if dtype == "bf16" else torch.float32
    height, width = int(height) // 8, int(width) // 8
    if part != "decoder":
        step, inputs = denoiser(folder, part, dtype, height, width)
        if mode == "openvino":
            work = openvino_work(step.float(), [i.float() if i.is_floating_point() else i for i in inputs], dtype, threads)
        else:
            call = torch.compile(step) if mode == "compile" else step

            def work():
                call(*inputs)
    else:
        model = decoder(folder, dtype)
        if mode == "channels_last":
            model = model.to(memory_format=torch.channels_last)
        z = torch.randn(1, model.config.latent_channels, height, width, dtype=dtype)

        def work():
            model.decode(z)
    with torch.inference_mode():
        print("ready", flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            work()
            seconds = time.perf_counter() - start
            peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
            print(seconds, peak, flush=True)


def compare(part, folder, dtype, threads, size, modes, rounds):
    """Each round times Tessera and every peer once; the order alternates between rounds. Ratios are of times of the same
    round."""
    shape = [part, str(folder), dtype, str(threads), str(size), str(size)]
    sides = {"tessera": Peer([str(WORKER), "worker", *shape], threads)}
    for mode in modes:
        sides[mode] = Peer([sys.executable, __file__, "--worker", *shape, mode], threads)
    for name in list(sides):
        try:
            sides[name]()  # warm up
        except Ended:
            if name == "tessera":
                raise
            print(f"{part:12} {dtype}: {name} cannot run this", flush=True)
            del sides[name]
    modes = [name for name in sides if name != "tessera"]
    seconds, peaks = {name: [] for name in sides}, {}
    for number in range(rounds):
        for name in list(sides) if number % 2 == 0 else reversed(sides):
            taken, peaks[name] = sides[name]()
            seconds[name].append(taken)
    for side in sides.values():
        side.close()
    for mode in modes:
        ratios = [own / peer for own, peer in zip(seconds["tessera"], seconds[mode])]
        print(f"{part:12} {dtype} {threads} thread{'s' if threads > 1 else ' '} against {mode:13} "
              f"time {statistics.median(ratios):.3f} [{min(ratios):.3f} .. {max(ratios):.3f}]  "
              f"peak memory {peaks['tessera'] / peaks[mode]:.3f}  ({statistics.median(seconds['tessera']):.2f} s, "
              f"{statistics.median(seconds[mode]):.2f} s; {rounds} rounds)", flush=True)


def run_command(command, threads):
    """Runs a command and returns its wall seconds and peak resident bytes."""
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    start = time.perf_counter()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"compare: {' '.join(command)} failed")
    return time.perf_counter() - start, usage.ru_maxrss * 1024


def diffusers_command(arguments):
    """The equivalent command with diffusers: load, generate, save."""
    folder, dtype, size, out = arguments
    import torch
    from diffusers import DiffusionPipeline
    dtype = torch.bfloat16 if dtype == "bf16" else torch.float32
    pipe = DiffusionPipeline.from_pretrained(folder, torch_dtype=dtype)
    pipe(prompt="a red circle", num_inference_steps=2, height=int(size), width=int(size),
         **models.request_of(pathlib.Path(folder))).images[0].save(out)


def compare_command(folder, dtype, threads, size):
    """Compares the whole command with two steps: wall time and peak memory of the process."""
    with tempfile.TemporaryDirectory() as scratch:
        out = f"{scratch}/out.png"
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in models.request_of(folder).items()]
        own = run_command([str(ROOT / "build" / "tessera"), "generate", "a red circle", "--model", str(folder), "--dtype",
                           dtype, "--threads", str(threads), "--num-inference-steps", "2", "--height", str(size), "--width",
                           str(size), *flags, "-o", out], threads)
        peer = run_command([sys.executable, __file__, "--diffusers-command", str(folder), dtype, str(size), out], threads)
    print(f"command      {dtype} {threads} thread{'s' if threads > 1 else ' '} against diffusers     time {own[0] / peer[0]:.3f}  "
          f"peak memory {own[1] / peer[1]:.3f}  ({own[1] / 2**30:.2f} GiB, {peer[1] / 2**30:.2f} GiB; two steps "
          f"of {folder.name}, {own[0]:.1f} s, {peer[0]:.1f} s)", flush=True)


def installed_peers():
    return ["compile"] + (["openvino"] if importlib.util.find_spec("openvino") else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="each times Tessera and every peer once")
    parser.add_argument("--size", type=int, default=512, help="pixels of a side")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--dtypes", nargs="*", default=["bf16", "fp32"])
    parser.add_argument("--parts", nargs="*", help="denoiser (with guidance; for PixArt with a prompt of 25 tokens), denoiser-300 "
                        "(PixArt: a prompt that fills the 300 tokens that diffusers always computes), denoiser-unguided (Z-Image, "
                        "FLUX.2 klein: one sample, as of distilled models), decoder, command (whole runs: peak memory); default: all")
    parser.add_argument("--peers", nargs="*", choices=["compile", "openvino"], default=installed_peers(),
                        help="besides eager diffusers: torch.compile, OpenVINO (default: those installed)")
    models.add_options(parser)
    parser.add_argument("--max-isa", choices=CAPS, help="limit the instruction set of both sides; the only peer is then eager "
                        "diffusers, as compilers query the processor themselves")
    parser.add_argument("--worker", nargs=7, help=argparse.SUPPRESS)
    parser.add_argument("--diffusers-command", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.diffusers_command:
        return diffusers_command(args.diffusers_command)
    if args.worker:
        return diffusers_worker(args.worker)
    if args.max_isa:
        cap_instruction_sets(args.max_isa)
        args.peers = []
    known = PARTS.get(args.family, [])
    if not known or not set(args.parts or known) <= set(known):
        parser.error(f"{args.family} has the parts {' '.join(known)}" if known else f"{args.family} is compared by bench/video.py")
    folder = models.folder_of(args)
    for part in args.parts or known:
        for dtype in args.dtypes:
            for threads in args.threads:
                if part == "command":
                    compare_command(folder, dtype, threads, args.size)
                    continue
                modes = ["default", "channels_last"] if part == "decoder" else ["eager", *args.peers]
                compare(part, folder, dtype, threads, args.size, modes, args.rounds)


if __name__ == "__main__":
    main()
