"""Reads what the program writes and prints, with nothing but the standard library."""
import array
import html.parser
import json
import math
import re
import struct
import zlib

DEGREES = ["--ulysses-degree", "2", "--dtype", "fp32"]  # of a trace of two ranks


def read_safetensors(path):
    """Returns {name: (dtype, shape, bytes)} and the metadata."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    body = data[8 + length:]
    return {name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
            for name, entry in header.items()}, metadata


def write_safetensors(path, tensors, metadata=None):
    header, body = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def change_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def floats(tensor):
    assert tensor[0] == "F32", tensor[0]
    return array.array("f", tensor[2])


def read_latents(path):
    """Returns (shape, numbers) of a file of latents, which must be finite. It removes the file, so that a later test cannot
    read the result of an earlier run."""
    tensors, _ = read_safetensors(path)
    assert list(tensors) == ["latents"], list(tensors)
    path.unlink()
    numbers = floats(tensors["latents"])
    assert all(map(math.isfinite, numbers)), "a number that is not finite"
    return tensors["latents"][1], numbers


def assert_near(a, b, tolerance):
    """Checks that latents from read_latents() have the same shape and differ nowhere by more than `tolerance`."""
    assert a[0] == b[0], (a[0], b[0])
    assert difference(a[1], b[1]) <= tolerance, difference(a[1], b[1])


def difference(a, b):
    """Returns the largest difference of two lists of equal length. NaN is an error because max() might drop it."""
    assert len(a) == len(b) > 0, (len(a), len(b))
    assert all(map(math.isfinite, a)) and all(map(math.isfinite, b)), "a number that is not finite"
    return max(abs(x - y) for x, y in zip(a, b))


def png_chunks(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n", "no PNG signature"
    position = 8
    while position < len(data):
        length, kind = struct.unpack(">I4s", data[position:position + 8])
        content = data[position + 8:position + 8 + length]
        (crc,) = struct.unpack(">I", data[position + 8 + length:position + 12 + length])
        assert crc == zlib.crc32(kind + content), "wrong CRC"
        yield kind, content
        position += 12 + length


def unfilter(kind, row, above):
    for i in range(len(row)):
        left = row[i - 3] if i >= 3 else 0
        corner = above[i - 3] if i >= 3 else 0
        estimate = left + above[i] - corner
        paeth = min((left, above[i], corner), key=lambda value: abs(estimate - value))
        row[i] = (row[i] + (0, left, above[i], (left + above[i]) // 2, paeth)[kind]) & 255


def read_png(path):
    """Returns (width, height, RGB bytes, {keyword: text}) of an 8-bit RGB image."""
    compressed, text, header = b"", {}, None
    for kind, content in png_chunks(path.read_bytes()):
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", content)
        elif kind == b"IDAT":
            compressed += content
        elif kind == b"tEXt":
            keyword, value = content.split(b"\0", 1)
            text[keyword.decode("latin-1")] = value.decode("latin-1")
        elif kind == b"iTXt":
            keyword, rest = content.split(b"\0", 1)
            text[keyword.decode("latin-1")] = rest[2:].split(b"\0", 2)[2].decode("utf-8")
    width, height = header[:2]
    assert header[2:] == (8, 2, 0, 0, 0), header
    data, stride, pixels = zlib.decompress(compressed), width * 3, bytearray()
    above = bytearray(stride)
    for y in range(height):
        start = y * (stride + 1)
        row = bytearray(data[start + 1:start + 1 + stride])
        unfilter(data[start], row, above)
        pixels += row
        above = row
    return width, height, bytes(pixels), text


def read_exif(data):
    """Returns {tag: bytes} of the EXIF data in a file, whose numbers have their most significant byte first."""
    block, values = data[data.index(b"MM\0*"):], {}

    def read_directory(at):
        (count,) = struct.unpack_from(">H", block, at)
        for i in range(count):
            tag, kind, length, value = struct.unpack_from(">HHII", block, at + 2 + 12 * i)
            if tag == 0x8769:  # another directory
                read_directory(value)
            else:
                assert kind in (2, 7) and length > 4, (tag, kind, length)  # a text or bytes, which stand elsewhere
                values[tag] = block[value:value + length]

    read_directory(struct.unpack_from(">I", block, 4)[0])
    return values


def psnr(a, b):
    error = sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / len(a)
    return math.inf if error == 0 else 10 * math.log10(255 ** 2 / error)


UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def table_rows(text):
    """The rows of a table of a trace without their titles, each in one line: what goes on below, after a space, a dot or a slash, is
    put back into its cell."""
    rows = []
    for line in text[text.index("phase"):].splitlines()[1:]:
        cells = {found.start(): found[0] for found in re.finditer(r"\S+(?: \S+)*", line)}
        if not line.startswith(" "):
            rows.append(cells)
            continue
        for start, rest in cells.items():
            rows[-1][start] += rest if rows[-1][start].endswith((".", "/")) else " " + rest
    return ["  ".join(row.values()) for row in rows]


def says(cell, exact, units=UNITS):
    """Returns whether a cell of a printed table, as "9.0 KiB" or "372", is the exact number rounded to the digits that it has."""
    digits, _, unit = cell.partition(" ")
    return abs(float(digits) * units[unit] - exact) <= 0.501 * units[unit] / 10 ** len(digits.partition(".")[2])


def sums(rank, phase):
    """Returns (FLOPs, bytes sent) of a rank of a trace in a phase."""
    events = [event for event in rank["events"] if event["phase"] == phase]
    return (sum(event["flops"] for event in events if "operation" in event),
            sum(event["bytes"] for event in events if "collective" in event))


class Page(html.parser.HTMLParser):
    """Checks that every element of a page is closed, and collects its headings, the texts below each, and what it would load from
    elsewhere."""
    EMPTY = {"meta"}

    def __init__(self, text):
        super().__init__()
        self.open, self.headings, self.texts, self.plots, self.loads = [], [], {}, 0, []
        self.feed(text)
        assert self.open == [], self.open

    def handle_starttag(self, tag, attributes):
        self.plots += tag == "svg"
        self.loads += [value for name, value in attributes if name in ("src", "href")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)
        elif self.open and self.open[-1] == "text":
            self.texts.setdefault(self.headings[-1], []).append(data)
