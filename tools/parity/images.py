"""Reads with Pillow what `tessera generate` writes: the pixels, the sizes, the settings and the frames of each format. And compares the
pixels that go into a run with those that Pillow reads, of JPEGs of all kinds. It needs build/tests/read_pictures and the program cjpeg."""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy
from PIL import Image, ImageOps, ImageSequence

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
PROMPT = "a caf\u00e9 \U0001f600"
SIZES = ((32, 48), (64, 32), (16, 16))  # height and width
# The colours of the tiny model change from pixel to pixel, and a WebP has one for each two by two pixels.
SMALLEST_PSNR = {".jpg": 30, ".webp": 15}
# Sides of JPEGs: a pixel, fewer than a block, whole blocks, and odd rests of one and of several blocks.
SIDES = (1, 2, 7, 8, 9, 13, 16, 17, 31, 33, 48, 65)
# What Pillow does not write: colours at other resolutions, arithmetic coding, colours that are not transformed.
CJPEG = ("-sample 4x1", "-sample 1x2", "-sample 4x2", "-sample 1x4", "-sample 2x2,2x1,1x2", "-sample 2x1,1x1,2x1", "-sample 3x1", "-arithmetic",
         "-arithmetic -progressive", "-restart 1", "-restart 2B -progressive", "-rgb", "-grayscale -arithmetic", "-optimize -dct float")


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


def picture(draw):
    """Smooth colours, noise and hard edges."""
    height, width = draw.choice(SIDES, 2)
    y, x = numpy.mgrid[0:1:height * 1j, 0:1:width * 1j][..., None]
    smooth = 128 + 100 * numpy.sin(5 * x * draw.random(3) + 9 * y * draw.random(3))
    edges = 255 * ((x * 4).astype(int) + (y * 3).astype(int) & 1)
    noise = draw.normal(0, 20, (height, width, 3))
    return Image.fromarray(numpy.where(y < draw.random(), smooth + noise, edges).clip(0, 255).astype(numpy.uint8))


def write_jpeg(path, draw, quality):
    """One of the kinds that Pillow writes."""
    image = picture(draw).convert(draw.choice(["RGB", "RGB", "L", "CMYK"]))
    exif = Image.Exif()
    exif[0x112] = int(draw.integers(1, 9))  # how it is turned
    options = {"progressive": bool(draw.integers(2)), "optimize": bool(draw.integers(2)),
               "restart_marker_blocks": int(draw.choice([0, 0, 1, 3])),
               **({"keep_rgb": True} if draw.integers(4) == 0 else {"subsampling": int(draw.integers(3))})}
    image.save(path, quality=quality, exif=exif if draw.integers(2) else b"", **options)
    marker = path.read_bytes().find(b"Adobe\0")
    if image.mode == "CMYK" and marker >= 0:
        bytes_ = bytearray(path.read_bytes())
        if draw.integers(2):
            bytes_[marker + 11] = 2  # the inks are luma, chroma and black
        elif draw.integers(2):
            bytes_[marker:marker + 5] = b"Other"
        path.write_bytes(bytes_)


def write_other_jpeg(path, draw, quality, words):
    picture(draw).save(path.with_suffix(".ppm"))
    command = ["cjpeg", "-quality", str(quality), *words.split(), path.with_suffix(".ppm")]
    path.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)


def check_jpegs(reader, folder):
    draw = numpy.random.default_rng(3)
    paths = []
    for quality in range(1, 101):
        for i in range(8):
            paths.append(folder / f"quality {quality}, {i}.jpg")
            write_jpeg(paths[-1], draw, quality)
        words = CJPEG[quality % len(CJPEG)]
        paths.append(folder / f"quality {quality} {words}.jpg")
        write_other_jpeg(paths[-1], draw, quality, words)
    subprocess.run([reader, *paths], check=True)
    for path in paths:
        with Image.open(path) as image, Image.open(f"{path}.ppm") as found:
            expected = ImageOps.exif_transpose(image).convert("RGB")
            assert numpy.array_equal(numpy.asarray(found), numpy.asarray(expected)), f"{path.name}: other pixels than Pillow's"
    print(f"JPEGs with the pixels that Pillow reads: {len(paths)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--reader", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        check_jpegs(args.reader, pathlib.Path(folder))
        check_images(args.tessera, pathlib.Path(folder))
        check_frames(args.tessera, pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(main())
