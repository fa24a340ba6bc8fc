"""Makes tests/golden/media: images in several formats with the pixels that PIL reads from them, images that PIL and torch
scale to cover a size and crop to it, as Open-Sora 1.2 does with the images and the frames of videos that it is given, and pictures
that diffusers prepares for FLUX.2 to refer to. It needs the program cjpeg."""
import pathlib
import struct
import subprocess
import zlib

import numpy
import torch
from diffusers.pipelines.flux2.image_processor import Flux2ImageProcessor
from PIL import Image
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "media"
# (height, width) of the image, then the size to cover. Among them: the same size, the same ratio, odd ratios, enlarged, reduced
# more than eightfold, and scaled sizes that are halves (15 x 10 to 9 x 7 is 10.5 rows high) or leave an odd rest.
SIZES = [((24, 40), (24, 40)), ((37, 53), (24, 40)), ((53, 37), (24, 40)), ((100, 31), (16, 48)), ((31, 100), (48, 16)),
         ((5, 7), (32, 64)), ((64, 33), (33, 17)), ((48, 64), (24, 32)), ((15, 10), (9, 7)), ((7, 5), (10, 6)), ((9, 6), (7, 5)),
         ((96, 120), (8, 11)), ((1, 9), (6, 8)), ((61, 60), (60, 60)), ((20, 45), (12, 20))]


def picture(height, width, generator):
    """Smooth colours with noise and hard edges, so that weights below zero clip at both ends."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    smooth = torch.stack([128 + 100 * torch.sin(5 * x + 2 * y), 255 * y, 255 * (1 - x)], dim=-1)
    noise = torch.randn(smooth.shape, generator=generator) * 20
    edges = torch.where(((x * 4).long() + (y * 3).long())[..., None] % 2 == 0, 0, 255)
    return torch.where(y[..., None] < 0.7, smooth + noise, edges).clamp(0, 255).to(torch.uint8)


def covering(size, wanted):
    """The size that an image is scaled to."""
    by_height, by_width = wanted[0] / size[0], wanted[1] / size[1]
    if by_height > by_width:
        return wanted[0], round(size[1] * by_height)
    return round(size[0] * by_width), wanted[1]


def cover_image(pixels, wanted):
    height, width = covering(pixels.shape[:2], wanted)
    scaled = torch.from_numpy(numpy.array(Image.fromarray(pixels.numpy()).resize((width, height), Image.BICUBIC)))
    top, left = round((height - wanted[0]) / 2), round((width - wanted[1]) / 2)
    return scaled[top:top + wanted[0], left:left + wanted[1]].contiguous()


def cover_frame(pixels, wanted):
    height, width = covering(pixels.shape[:2], wanted)
    frame = pixels[None].permute(0, 3, 1, 2).float() / 255
    scaled = torch.nn.functional.interpolate(frame, size=(height, width), mode="bilinear", align_corners=False)[0]
    top, left = (height - wanted[0]) // 2, (width - wanted[1]) // 2
    return ((scaled[:, top:top + wanted[0], left:left + wanted[1]] - 0.5) / 0.5).contiguous()


def make_resize(generator):
    tensors = {}
    for size, wanted in SIZES:
        name = "{}x{}_to_{}x{}".format(*size, *wanted)
        pixels = picture(*size, generator)
        tensors[f"{name}.from"] = pixels
        tensors[f"{name}.image"] = cover_image(pixels, wanted)
        tensors[f"{name}.frame"] = cover_frame(pixels, wanted)
    save_file(tensors, FOLDER / "resize.safetensors")


class Sized:
    """Takes the place of an image of which only the size matters."""

    def __init__(self, width, height):
        self.size = width, height

    def resize(self, size, _filter):
        return Sized(*size)


def prepared(processor, image, most_pixels):
    """What the pipeline of FLUX.2 klein does with a picture, and the sizes on the way."""
    width, height = image.size
    if width * height > most_pixels:
        image = processor._resize_to_target_area(image, most_pixels)
    unit = processor.config.vae_scale_factor
    model = image.size[1] // unit * unit, image.size[0] // unit * unit
    sizes = torch.tensor([height, width, image.size[1], image.size[0], *model])
    if isinstance(image, Sized):
        return None, sizes
    return processor.preprocess(image, height=model[0], width=model[1], resize_mode="crop").contiguous(), sizes


def make_references(generator):
    processor = Flux2ImageProcessor(vae_scale_factor=16)
    tensors, sizes = {}, []
    for i, (height, width, most) in enumerate(((64, 64, 4096), (75, 90, 10000), (100, 131, 4500), (64, 400, 3000), (211, 70, 5000))):
        pixels = picture(height, width, generator)
        tensors[f"{i}.from"] = pixels
        tensors[f"{i}.most_pixels"] = torch.tensor(most)
        tensors[f"{i}.prepared"], tensors[f"{i}.sizes"] = prepared(processor, Image.fromarray(pixels.numpy()), most)
    for _ in range(300):
        height = int(torch.randint(64, 5000, (1,), generator=generator))
        width = int(torch.randint(max(64, -(-height // 8)), min(5000, height * 8), (1,), generator=generator))
        sizes.append(prepared(processor, Sized(width, height), 1024 * 1024)[1])
    for height, width in ((1024, 1024), (1024, 1025), (2048, 2048), (64, 64), (64, 512), (4096, 512)):
        sizes.append(prepared(processor, Sized(width, height), 1024 * 1024)[1])
    tensors["sizes"] = torch.stack(sizes)
    save_file(tensors, FOLDER / "references.safetensors")


def save_deep(path, samples):
    """A PNG of 16 bits a sample, which PIL reads and does not write."""
    height, width, channels = samples.shape

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def make_images(generator):
    y, x = numpy.mgrid[0:40, 0:56]
    smooth = numpy.stack([90 + 2 * x, 60 + 3 * y, 200 - x - y], axis=-1).astype(numpy.uint8)
    sharp = Image.fromarray(picture(40, 56, generator).numpy())
    image = Image.fromarray(smooth)
    alpha = sharp.convert("RGBA")
    alpha.putalpha(Image.fromarray((x * 4).astype(numpy.uint8)))
    image.convert("L").save(FOLDER / "grey.png")
    sharp.quantize(32).save(FOLDER / "palette.png")
    alpha.save(FOLDER / "alpha.png")
    Image.fromarray((x * 1000 + y * 200).astype(numpy.uint16)).save(FOLDER / "deep.png")
    deep = numpy.random.default_rng(8).integers(0, 65536, (9, 13, 4))
    for name, channels in {"deep-colours.png": [0, 1, 2], "deep-colours-alpha.png": [0, 1, 2, 3], "deep-alpha.png": [0, 3]}.items():
        save_deep(FOLDER / name, deep[..., channels])
    image.save(FOLDER / "full.jpg", quality=95, subsampling=0)
    image.save(FOLDER / "halved.jpg", quality=95, subsampling=2)
    image.convert("L").save(FOLDER / "grey.jpg", quality=95)
    image.save(FOLDER / "lossy.webp", quality=95)
    sharp.save(FOLDER / "lossless.webp", lossless=True)
    # Hard edges of colour, with odd sides, in each way in which colours are at half the resolution.
    odd = Image.fromarray(picture(37, 51, generator).numpy())
    for name, options in {"sharp-444.jpg": {"subsampling": 0}, "sharp-422.jpg": {"subsampling": 1}, "sharp-420.jpg": {"subsampling": 2},
                          "progressive-420.jpg": {"subsampling": 2, "progressive": True}, "coarse-420.jpg": {"subsampling": 2, "quality": 10},
                          "sharp.webp": {}, "coarse.webp": {"quality": 10}}.items():
        odd.save(FOLDER / name, **{"quality": 90, **options})
    odd.convert("CMYK").save(FOLDER / "inks.jpg", quality=90)
    luma = bytearray((FOLDER / "inks.jpg").read_bytes())
    luma[luma.index(b"Adobe\0") + 11] = 2  # says that these inks are luma, chroma and black
    (FOLDER / "inks-luma.jpg").write_bytes(luma)
    odd.save(FOLDER / "odd.ppm")
    for name, words in {"sharp-411.jpg": "-sample 4x1 -restart 2B", "arithmetic-420.jpg": "-arithmetic -progressive"}.items():
        command = ["cjpeg", "-quality", "90", *words.split(), FOLDER / "odd.ppm"]
        (FOLDER / name).write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    (FOLDER / "odd.ppm").unlink()
    see_through = odd.convert("RGBA")
    see_through.putalpha(Image.fromarray((numpy.mgrid[0:37, 0:51][1] * 5).astype(numpy.uint8)))
    see_through.save(FOLDER / "alpha.webp", quality=80)
    odd.save(FOLDER / "true-colour.bmp")
    odd.quantize(16).save(FOLDER / "palette.bmp")
    tensors = {}
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in (".png", ".jpg", ".webp", ".bmp"):
            with Image.open(path) as read:
                deep = read.mode.startswith("I")  # PIL clips these where others scale them
                pixels = numpy.array(read).astype(numpy.uint32) >> 8 if deep else numpy.array(read.convert("RGB"))
            pixels = numpy.repeat(pixels[..., None], 3, axis=-1) if deep else pixels
            tensors[path.name] = torch.from_numpy(numpy.ascontiguousarray(pixels.astype(numpy.uint8)))
    save_file(tensors, FOLDER / "images.safetensors")


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    seeded = torch.Generator().manual_seed(5)
    make_resize(seeded)
    make_images(seeded)
    make_references(torch.Generator().manual_seed(6))
