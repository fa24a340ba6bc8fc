#!/usr/bin/env python3
"""Reads with Pillow what `tessera generate` writes: the pixels, the sizes, the settings and the frames of each format."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
from PIL import Image, ImageSequence

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
SIZES = ((32, 48), (64, 32), (16, 16))  # height and width
# The colours of the tiny model change from pixel to pixel, and a WebP has one for each two by two pixels.
SMALLEST_PSNR = {".jpg": 30, ".webp": 15}


def generate(tessera, path, *words):
    command = [tessera, "generate", "a caf\u00e9", "--seed", "5", "--dtype", "fp32", "--num-inference-steps", "2", "-o", path, "--quiet", *words]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)


def read(path):
    """Returns (pixels, text of the program, settings) as Pillow reads them, which raises if the file is not whole."""
    with Image.open(path) as image:
        image.verify()
    with Image.open(path) as image:
        image.load()
        if path.suffix == ".png":
            text = image.text["Software"], image.text["tessera"]
        else:
            exif = image.getexif()
            text = [exif[tag].encode("latin-1").decode() for tag in (0x131, 0x10E)]  # Pillow takes texts for Latin-1
        return numpy.asarray(image.convert("RGB"), dtype=numpy.float64), text[0], json.loads(text[1])


def psnr(one, other):
    return 10 * numpy.log10(255 ** 2 / max(numpy.mean((one - other) ** 2), 1e-9))


def check_images(tessera, folder):
    for height, width in SIZES:
        words = ["--model", GOLDEN / "tiny-pixart", "--height", height, "--width", width, "--no-resolution-binning"]
        expected = None
        for suffix in (".png", ".jpg", ".webp"):
            path = folder / f"{height}x{width}{suffix}"
            generate(tessera, path, *words)
            pixels, software, settings = read(path)
            assert pixels.shape == (height, width, 3), (path.name, pixels.shape)
            assert software.startswith("Tessera ") and settings["prompt"] == ["a caf\u00e9"] and settings["seed"] == 5, (path.name, software, settings)
            expected = pixels if expected is None else expected
            assert psnr(pixels, expected) > SMALLEST_PSNR.get(suffix, 90), (path.name, psnr(pixels, expected))
    print(f"images read by Pillow: {3 * len(SIZES)}")


def check_frames(tessera, folder):
    words = ["--model", GOLDEN / "tiny-open-sora", "--height", "24", "--width", "40", "--num-frames", "17", "--fps", "10"]
    generate(tessera, folder / "a.gif", *words)
    with Image.open(folder / "a.gif") as video:
        frames = [(frame.size, frame.info["duration"]) for frame in ImageSequence.Iterator(video)]
    assert frames == [((40, 24), 100)] * 17, frames
    print(f"frames read by Pillow: {len(frames)} of a GIF")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tessera", required=True)
    tessera = parser.parse_args().tessera
    with tempfile.TemporaryDirectory() as folder:
        check_images(tessera, pathlib.Path(folder))
        check_frames(tessera, pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(main())
