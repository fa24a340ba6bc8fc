"""Runs `tessera generate` beside the reference that it is compared with."""
import os
import subprocess

import numpy as np
from PIL import Image
from safetensors.torch import load_file


class Tessera:
    """Runs `tessera generate` with a row's request in a subprocess."""

    def __init__(self, program, row, folder, seed, output):
        self.output = output
        command = [program, "generate", *[f"--prompt={prompt}" for prompt in row.prompts], *row.model(folder), "-o", output,
                   "--seed", seed, "--num-images-per-prompt", row.images, "--dtype", row.dtype, "--quiet",
                   "--output-type", "latent" if output.suffix == ".safetensors" else "image", *row.words(), *row.flags.split()]
        env = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        if row.threads is not None:
            command += ["--threads", row.threads]
            env["OMP_NUM_THREADS"] = str(row.threads)
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env=env)

    def wait(self):
        _, errors = self.process.communicate()
        if self.process.returncode != 0:
            raise RuntimeError(f"tessera ended with code {self.process.returncode}: {errors.strip()[-300:]}")

    def latents(self):
        self.wait()
        return load_file(self.output)["latents"]

    def pictures(self, count):
        self.wait()
        paths = [self.output] if count == 1 else [
            self.output.with_name(f"{self.output.stem}-{i}{self.output.suffix}") for i in range(count)]
        return [np.asarray(Image.open(path)) for path in paths]
