"""Reads with Pillow what `tessera generate` writes: the pixels, the sizes, the settings and the frames of each format."""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy
from PIL import Image, ImageSequence

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
PROMPT = "a caf\u00e9 \U0001f600"
SIZES = ((32, 48), (64, 32), (16, 16))  # height and width
# The colours of the tiny model change from pixel to pixel, and a WebP has one for each two by two pixels.
SMALLEST_PSNR = {".jpg": 30, ".webp": 15}


def generate(tessera, path, *words):
    command = [tessera, "generate", PROMPT, "--seed", "5", "--dtype", "fp32", "--num-inference-steps", "2", "-o", path, "--quiet", *words]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)


def read(path):
    """Returns (pixels, [program, settings, parameters]) as Pillow reads them, which raises if the file is not whole."""
    with Image.open(path) as image:
        image.verify()
    with Image.open(path) as image:
        image.load()
        if path.suffix == ".png":
            text = [image.text[name] for name in ("Software", "tessera", "parameters")]
        else:
            exif = image.getexif()
            text = [exif[tag].encode("latin-1").decode() for tag in (0x131, 0x10E)]  # Pillow takes texts for Latin-1
            comment = exif.get_ifd(0x8769)[0x9286]
            assert comment.startswith(b"UNICODE\0"), comment[:8]
            text.append(comment[8:].decode("utf-16-be"))  # as web UIs read it
        return numpy.asarray(image.convert("RGB"), dtype=numpy.float64), text


def psnr(one, other):
    return 10 * numpy.log10(255 ** 2 / max(numpy.mean((one - other) ** 2), 1e-9))


def check_images(tessera, folder):
    for height, width in SIZES:
        words = ["--model", GOLDEN / "tiny-pixart", "--height", height, "--width", width, "--no-resolution-binning"]
        expected = None
        for suffix in (".png", ".jpg", ".webp"):
            path = folder / f"{height}x{width}{suffix}"
            generate(tessera, path, *words)
            pixels, text = read(path)
            assert pixels.shape == (height, width, 3), (path.name, pixels.shape)
            assert text[0].startswith("Tessera ") and text[2].startswith(f"{PROMPT}\nSteps: 2, "), (path.name, text)
            expected = expected or (pixels, text)
            assert text == expected[1], (path.name, text)
            assert psnr(pixels, expected[0]) > SMALLEST_PSNR.get(suffix, 90), (path.name, psnr(pixels, expected[0]))
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
