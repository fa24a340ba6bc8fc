#!/usr/bin/env python3
"""Times Tessera and diffusers in turn on one GPU, and prints the ratios; below 1 means that Tessera needs less.

    bench/cuda.py build/tessera --prepare        # makes the models only, which takes minutes and no GPU
    bench/cuda.py build/tessera [--cases pixart-1024-bf16 sdxl-1024-fp16] [--rounds 2] [--compile]

A case is a family, the pixels of a side, and a data type. The models have random weights and the real shapes of
PixArt-Sigma-XL or SDXL, with a few layers of their text encoders. Both sides make one image with guidance and the model's
sampler.

A step is the median of those after the third, on the GPU's clock: diffusers' by events behind the sampler's steps, which nothing
waits for; Tessera's from its report. The decoder is timed where it runs for the first time at its size, as that is what a command
waits for. Memory is the highest in use beyond what was there before the process, with CUDA's own, seen a hundred times a second.
Absolute numbers are only for orientation.
"""
import argparse
import ctypes
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import models

FAMILIES = {"pixart": "PixArt-Sigma-XL", "sdxl": "SDXL"}
CASES = ["pixart-1024-bf16", "sdxl-1024-bf16", "pixart-512-bf16", "sdxl-1024-fp16", "pixart-1024-fp16"]
PROMPT = "a red circle above a blue square on a white background"
WARM_UP = 3  # steps that do not count
PLACES = ("step", "decode", "memory")


class NvmlMemory(ctypes.Structure):
    """nvmlMemory_t"""
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Memory:
    """Watches the memory in use on the GPU, by all processes, and knows the highest since reset()."""

    def __init__(self, device):
        self.peak, self.nvml, self.handle = None, None, ctypes.c_void_p()
        if device == "cpu":
            return
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        index = ctypes.c_uint(int(device.partition(":")[2] or "0"))
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self.handle)):
            self.nvml = None
            return
        self.reset()
        threading.Thread(target=self.watch, daemon=True).start()

    def used(self):
        found = NvmlMemory()
        failed = self.nvml.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(found))
        return 0 if failed else found.used >> 20

    def watch(self):
        while True:
            self.peak = max(self.peak, self.used())
            time.sleep(0.01)

    def settle(self):
        """Returns the MiB in use when nothing has run for a while, and begins to look for the highest."""
        if not self.nvml:
            return None
        time.sleep(0.5)  # the driver takes back the memory of a process after its end
        self.reset()
        return self.peak

    def reset(self):
        self.peak = self.used()

    def above(self, base):
        return None if base is None else max(self.peak - base, 1)


# The side of diffusers, in a process of its own that keeps one pipeline.

class Diffusers:
    def __init__(self, device, compiles):
        self.device, self.compiles, self.loaded, self.pipeline = device, compiles, None, None

    def load(self, folder, dtype):
        import torch
        from diffusers import DiffusionPipeline
        if self.loaded == (folder, dtype):
            return
        self.pipeline = None
        self.free()
        types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
        self.pipeline = DiffusionPipeline.from_pretrained(folder, torch_dtype=types[dtype]).to(self.device)
        self.pipeline.set_progress_bar_config(disable=True)
        self.loaded = (folder, dtype)
        if self.compiles:
            part = "unet" if hasattr(self.pipeline, "unet") else "transformer"
            setattr(self.pipeline, part, torch.compile(getattr(self.pipeline, part)))

    def free(self):
        import torch
        if self.device != "cpu":
            torch.cuda.empty_cache()

    def mark(self):
        """Returns a moment of the device's queue."""
        import torch
        if self.device == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, a, b):
        return b - a if self.device == "cpu" else a.elapsed_time(b) / 1000

    def synchronize(self):
        import torch
        if self.device != "cpu":
            torch.cuda.synchronize()

    def generate(self, size, steps):
        """Returns the seconds of a step and of the decoder, and whether the latents were numbers."""
        import torch
        pipeline, marks, decoding, finite = self.pipeline, [], [], []
        step, decode = pipeline.scheduler.step, pipeline.vae.decode

        @functools.wraps(step)  # the pipeline asks for the names of its parameters
        def marked(*arguments, **options):
            result = step(*arguments, **options)
            marks.append(self.mark())
            return result

        def timed(z, *arguments, **options):
            finite.append(bool(torch.isfinite(z).all()))
            self.synchronize()
            start = time.perf_counter()
            result = decode(z, *arguments, **options)
            self.synchronize()
            decoding.append(time.perf_counter() - start)
            return result

        pipeline.scheduler.step, pipeline.vae.decode = marked, timed
        options = {} if hasattr(pipeline, "unet") else {"use_resolution_binning": False}
        try:
            pipeline(PROMPT, num_inference_steps=steps, height=size, width=size, **options)
        finally:
            del pipeline.scheduler.step, pipeline.vae.decode
        self.synchronize()
        taken = [self.between(a, b) for a, b in zip(marks, marks[1:])]
        return {"step": statistics.median(taken[WARM_UP - 1:] or taken), "decode": decoding[0], "finite": finite[0]}

    def serve(self):
        """Answers a request on each line, in JSON."""
        import diffusers
        import transformers
        for library in (diffusers, transformers):
            library.utils.logging.disable_progress_bar()
        warnings.simplefilter("ignore")
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            try:
                answer = self.answer(json.loads(line))
            except Exception as error:  # the other cases may still run
                answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
            self.free()
            print(json.dumps(answer), flush=True)

    def answer(self, request):
        self.load(request["folder"], request["dtype"])
        if request["loads_only"]:
            return {}
        if self.compiles and request["is_first"]:
            self.generate(request["size"], WARM_UP)
        return self.generate(request["size"], request["steps"])


class DiffusersProcess:
    def __init__(self, args):
        words = [sys.executable, __file__, str(args.tessera), "--device", args.device, "--diffusers-worker"]
        self.process = subprocess.Popen(words + (["--compile"] if args.compile else []), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("cuda: diffusers ended early")
        return json.loads(line)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.answer()
        if "error" in answer:
            raise RuntimeError(f"diffusers: {answer['error']}")
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def run_tessera(args, folder, family, size, dtype, scratch):
    report = pathlib.Path(scratch) / "report.json"
    words = [str(args.tessera.resolve()), "generate", PROMPT, "--model", str(folder), "--dtype", dtype, "--device", args.device,
             "--height", str(size), "--width", str(size), "--num-inference-steps", str(args.steps), "--seed", "1", "--quiet",
             "-o", str(pathlib.Path(scratch) / "out.png"), "--report", str(report)]
    if family == "pixart":
        words.append("--no-resolution-binning")
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(f"Tessera ended with code {done.returncode}: {lines[-1] if lines else 'without a message'}")
    result = json.loads(report.read_text())
    steps = result["step_seconds"]
    return {"step": statistics.median(steps[WARM_UP:] or steps), "decode": result["seconds"]["decode"]}


def run_case(args, name, diffusers, memory, idle, scratch):
    family, size, dtype = name.split("-")
    size = int(size)
    folder = folder_of(args, family)
    diffusers.ask(folder=str(folder), dtype=dtype, loads_only=True)
    own, peer, is_finite = [], [], True
    for number in range(args.rounds):
        for side in ("peer", "own") if number % 2 == 0 else ("own", "peer"):
            base = memory.settle()
            if side == "own":
                own.append(run_tessera(args, folder, family, size, dtype, scratch))
                own[-1]["memory"] = memory.above(base)
            else:
                peer.append(diffusers.ask(folder=str(folder), dtype=dtype, size=size, steps=args.steps, loads_only=False,
                                          is_first=number == 0))
                is_finite = is_finite and peer[-1]["finite"]
                peer[-1]["memory"] = memory.above(idle)
    print(f"{name:18} {line_of(own, peer)}" + ("" if is_finite else "  (diffusers' latents are not finite)"), flush=True)


def line_of(own, peer):
    """Ratios of the same round: the median, the lowest and the highest. The decoder's is of the first round."""
    parts = []
    for place in PLACES:
        pairs = [(a[place], b[place]) for a, b in zip(own, peer)][:1 if place == "decode" else None]
        if any(a is None or b is None for a, b in pairs):
            continue
        ratios = [a / b for a, b in pairs]
        unit, factor = ("MiB", 1) if place == "memory" else ("ms", 1000)
        spread = f" [{min(ratios):.3f} .. {max(ratios):.3f}]" if len(ratios) > 1 else ""
        a, b = (factor * statistics.median(side) for side in zip(*pairs))
        parts.append(f"{place} {statistics.median(ratios):.3f}{spread} ({a:.1f}, {b:.1f} {unit})")
    return "  ".join(parts)


def folder_of(args, family):
    layers = models.LAYERS[family] if args.layers is None else args.layers
    return models.folder_with(family, layers, args.text_layers, args.models)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera", type=pathlib.Path, help="the program, built for GPUs")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu [cuda]")
    parser.add_argument("--cases", nargs="*", default=CASES, metavar="FAMILY-SIZE-DTYPE", help=f"[{' '.join(CASES)}]")
    parser.add_argument("--rounds", type=int, default=2, help="each times both sides once [2]")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="diffusers with torch.compile, which takes a minute at each size")
    parser.add_argument("--prepare", action="store_true", help="only make the models that do not exist yet")
    parser.add_argument("--layers", type=int, help="blocks of the transformer, or of the U-Net's deepest one [the real model's]")
    parser.add_argument("--text-layers", type=int, default=models.TEXT_LAYERS,
                        help=f"layers of the text encoder [{models.TEXT_LAYERS}]")
    parser.add_argument("--models", type=pathlib.Path, default=models.MODELS, help="folder of the models [build/bench-models]")
    parser.add_argument("--diffusers-worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.diffusers_worker:
        return Diffusers(args.device, args.compile).serve()
    for name in args.cases:
        family, _, rest = name.partition("-")
        size, _, dtype = rest.partition("-")
        if family not in FAMILIES or not size.isdigit() or dtype not in ("bf16", "fp16", "fp32"):
            parser.error(f"{name} is not like pixart-1024-bf16")
    for family in dict.fromkeys(name.split("-")[0] for name in args.cases):
        folder = folder_of(args, family)
        if args.prepare:
            print(folder, flush=True)
    if args.prepare:
        return
    start = time.monotonic()
    memory = Memory(args.device)
    idle = memory.settle()
    diffusers = DiffusersProcess(args)
    print(f"Tessera / diffusers{' with torch.compile' if args.compile else ''}, {args.rounds} rounds of {args.steps} steps, on "
          f"{args.device}; of the decoder the first call")
    if any(name.startswith("pixart") for name in args.cases):
        print("diffusers pads PixArt's prompts to 300 tokens and computes all of them; Tessera computes those that there are")
    if any(name.endswith("fp16") for name in args.cases):
        print("in fp16, Tessera decodes in fp32, as this decoder's force_upcast demands; diffusers' PixArt pipeline does not")
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.cases:
            try:
                run_case(args, name, diffusers, memory, idle, scratch)
            except RuntimeError as error:
                print(f"{name:18} FAILED: {error}", flush=True)
    diffusers.close()
    print(f"{time.monotonic() - start:.0f} s in all")


if __name__ == "__main__":
    main()
