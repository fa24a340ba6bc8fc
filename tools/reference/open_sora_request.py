"""What a request to Open-Sora 1.2 says: sizes, numbers of frames, prompts and their scores, mask strategies. The rules are those
of the public code; where that would fail with a stray exception, or quietly use other frames, this raises ValueError."""
import dataclasses
import json

CLIP, LATENT_CLIP, TIME_FACTOR, SPACE_FACTOR = 17, 5, 4, 8  # frames that the VAE codes together, and their latents
IMAGE_FPS = 120  # that the model is told for a single image
FRAMES = {"1x": 51, "2x": 102, "4x": 204, "8x": 408, "16x": 816, "2s": 51, "4s": 102, "8s": 204, "16s": 408, "32s": 816}

# Height to width. Sizes of a row below are in this order.
RATIOS = "3:8 9:21 12:25 1:2 9:17 27:50 9:16 5:8 2:3 3:4 1:1 4:3 3:2 16:9 17:9 2:1 50:27".split()
VIDEO_SIZES = {
    "144p": """117x312 125x291 133x277 135x270 139x262 141x260 144x256 151x241 156x234 166x221 192x192 221x165 235x156 256x144
               263x139 271x135 277x132""",
    "240p": """196x522 210x490 222x462 226x452 232x438 236x436 240x426 252x404 262x393 276x368 320x320 370x278 392x262 426x240
               440x232 452x226 462x222""",
    "360p": """294x784 314x732 332x692 340x680 350x662 352x652 360x640 380x608 392x588 416x554 480x480 554x416 588x392 640x360
               660x350 678x340 692x332""",
    "480p": """392x1046 420x980 444x925 452x904 466x880 470x870 480x854 506x810 522x784 554x738 640x640 740x555 784x522 854x480
               880x466 906x454 924x444""",
    "720p": """588x1568 628x1466 666x1388 678x1356 698x1318 706x1306 720x1280 758x1212 784x1176 832x1110 960x960 1108x832 1176x784
               1280x720 1320x698 1358x680 1386x666""",
    "1080p": """882x2352 942x2198 998x2080 1018x2036 1048x1980 1058x1958 1080x1920 1138x1820 1176x1764 1248x1664 1440x1440 1662x1246
                1764x1176 1920x1080 1980x1048 2036x1018 2078x998""",
    "2k": """1176x3136 1256x2930 1330x2770 1358x2716 1398x2640 1412x2612 1440x2560 1518x2428 1568x2352 1662x2216 1920x1920 2218x1664
             2352x1568 2560x1440 2638x1396 2716x1358 2772x1330""",
    "4k": """1764x4704 1886x4400 1996x4158 2036x4072 2096x3960 2118x3918 2160x3840 2276x3642 2352x3528 2494x3326 2880x2880 3326x2494
             3528x2352 3840x2160 3958x2096 4072x2036 4156x1994""",
}
# PixArt's sizes, whose ratios are numbers.
SIZES_1024 = """512x2048 512x1984 512x1920 512x1856 576x1792 576x1728 576x1664 640x1600 640x1536 704x1472 704x1408 704x1344 768x1344
    768x1280 832x1216 832x1152 896x1152 896x1088 960x1088 960x1024 1024x1024 1024x960 1088x960 1088x896 1152x896 1152x832 1216x832
    1280x768 1344x768 1408x704 1472x704 1536x640 1600x640 1664x576 1728x576 1792x576 1856x512 1920x512 1984x512 2048x512"""
SIZES_2880 = """1408x5760 1408x5568 1408x5376 1408x5184 1600x4992 1600x4800 1600x4672 1792x4480 1792x4288 1920x4096 1920x3904
    1920x3776 2112x3840 2112x3584 2304x3392 2304x3200 2496x3200 2496x3008 2688x3008 2688x2880 2880x2880 2880x2688 3008x2688 3008x2496
    3200x2496 3200x2304 3392x2304 3584x2112 3840x2112 3904x1920 4096x1920 4288x1792 4480x1792 4672x1600 4800x1600 4992x1600
    5184x1408 5376x1408 5568x1408 5760x1408"""
MISNAMED_2880 = {"0.24": "0.25", "0.25": "0.26", "0.26": "0.27", "0.27": "0.28", "4.09": "4.00"}  # as if 1408 were 1440


def pairs(text, scale=1):
    return [tuple(int(int(side) * scale) for side in size.split("x")) for size in text.split()]


def size_tables():
    """resolution -> ratio -> (height, width)."""
    tables = {name: dict(zip(RATIOS, pairs(text))) for name, text in VIDEO_SIZES.items()}
    for name, text, scale in (("256", SIZES_1024, 0.25), ("512", SIZES_1024, 0.5), ("1024", SIZES_1024, 1), ("2048", SIZES_1024, 2),
                              ("2880", SIZES_2880, 1)):
        sizes = {f"{height / width:.2f}": (height, width) for height, width in pairs(text, scale)}
        if name == "2880":
            sizes = {MISNAMED_2880.get(ratio, ratio): size for ratio, size in sizes.items()}
        tables[name] = sizes
    return tables


def image_size(resolution, ratio):
    """(height, width) in pixels. PixArt's tables also take a ratio of RATIOS, if it is theirs to two digits."""
    table = size_tables().get(resolution)
    if table is None:
        raise ValueError(f"no resolution '{resolution}'; there are {', '.join(size_tables())}")
    if ratio not in table and ratio in RATIOS:
        height, width = map(int, ratio.split(":"))
        ratio = f"{height / width:.2f}"
    if ratio not in table:
        raise ValueError(f"{resolution} has no aspect ratio '{ratio}'; it has {', '.join(table)}")
    return table[ratio]


def frame_count(name):
    """A name of FRAMES or a number."""
    return FRAMES[name] if name in FRAMES else int(name)


def latent_size(frames, height, width):
    latents = LATENT_CLIP * (frames // CLIP) + -(-(frames % CLIP) // TIME_FACTOR)
    return latents, height // SPACE_FACTOR, width // SPACE_FACTOR


def with_scores(prompt, aesthetic=None, motion=None, camera_motion=None):
    """Appends each score that the prompt does not name itself."""
    texts = [("aesthetic score:", aesthetic, ".1f"), ("motion score:", motion, ".1f"), ("camera motion:", camera_motion, "")]
    return prompt + "".join(f" {name} {value:{form}}." for name, value, form in texts if value is not None and name not in prompt)


def split_settings(prompt):
    """A prompt may end in a JSON object with `reference_path` and `mask_strategy`: (text, dictionary). Other braces are text; to the
    public code every brace begins JSON."""
    names = {"reference_path", "mask_strategy"}
    for begin in [i for i, letter in enumerate(prompt) if letter == "{"]:
        try:
            settings = json.loads(prompt[begin:])
        except json.JSONDecodeError:
            continue
        if not settings.keys() <= names or not all(isinstance(value, str) for value in settings.values()):
            raise ValueError("a prompt's settings are texts of " + " and ".join(names))
        return prompt[:begin], settings
    if any(name in prompt.partition("{")[2] for name in names):
        raise ValueError("a prompt's settings are JSON at its end")
    return prompt, {}


def schedule(prompt):
    """[(first loop, text)]: a whole prompt, or the parts of "|0|text|3|text"."""
    if not prompt.startswith("|0|"):
        return [(0, prompt)]
    parts = prompt.split("|")[1:]
    if len(parts) % 2 != 0 or not all(part.strip().isdecimal() for part in parts[0::2]):
        raise ValueError("a prompt of several loops has the form |0|TEXT|3|TEXT")
    starts = [int(part) for part in parts[0::2]]
    if sorted(set(starts)) != starts:
        raise ValueError("the loops of a prompt's parts have to increase")
    return list(zip(starts, (text.strip() for text in parts[1::2])))


def text_of_loop(parts, loop):
    return [text for start, text in parts if start <= loop][-1]


@dataclasses.dataclass
class Given:
    """Frames of latents that a loop takes from a reference. Negative starts count from the end."""
    loop: int = 0
    reference: int = 0
    start: int = 0  # in the reference
    target: int = 0  # where they go
    length: int = 1
    edit: float = 0.0  # noise level from which they are denoised: 0 keeps them, 1 generates


def parse_mask_strategy(text):
    """Groups divided by ";" of up to six numbers divided by ","; missing ones have their defaults."""
    groups = []
    for part in text.split(";") if text else []:
        numbers = part.split(",")
        if len(numbers) > 6:
            raise ValueError(f"mask strategy '{part}' has {len(numbers)} numbers, at most 6")
        try:
            given = Given(*map(int, numbers[:5]), *map(float, numbers[5:]))
        except ValueError:
            raise ValueError(f"mask strategy '{part}' is no list of five whole numbers and a ratio") from None
        if given.loop < 0 or given.length < 1 or not 0 <= given.edit <= 1:
            raise ValueError(f"mask strategy '{part}' needs a loop from 0, a length from 1 and a ratio from 0 to 1")
        groups.append(given)
    return groups


def aligned(start, align, frames):
    """The nearest multiple of `align`, the lower one of two, and never past the last whole block."""
    block = start // align
    if start % align > align / 2 and block < frames // align - 1:
        block += 1
    return block * align


def frames_of(given, reference_frames, target_frames, align):
    """(start, target, length) in whole numbers from 0, clipped to what there is."""
    starts = []
    for start, frames, what in ((given.start, reference_frames, "the reference"), (given.target, target_frames, "the video")):
        first = start + frames if start < 0 else start
        if not 0 <= first < frames:
            raise ValueError(f"mask strategy: frame {start} of {what}, which has {frames} frames of latents")
        starts.append(aligned(first, align, frames) if align else first)
    return *starts, min(given.length, target_frames - starts[1], reference_frames - starts[0])
