"""Fails on an include that points up or sideways on the ladder of ARCHITECTURE.md or out of a folder in a folder, on a file under models/ that knows of
ranks, on an option of the command line in the words of a folder below cli/, on files over 500 lines, on functions over 60,
and when the median file of src/ has over 110 lines."""
import collections
import pathlib
import re
import statistics
import sys

# "tessera" are the headers of include/tessera/, which other programs include; "library" is what is behind them.
LADDER = ["tessera", "core", "media", "comm", "weights", "parallel", "kernels", "ops", "nn", "text", "samplers", "models", "engine",
          "launch", "plan", "job", "library", "serve", "cli"]
# These folders are on the same rung and may not include each other.
SIDEWAYS = {("text", "nn"), ("text", "ops"), ("text", "parallel"), ("text", "comm"), ("samplers", "text"),
            ("samplers", "nn"), ("samplers", "ops"), ("samplers", "parallel"), ("samplers", "comm"),
            ("samplers", "weights"), ("parallel", "weights"), ("ops", "parallel"), ("kernels", "comm"),
            ("kernels", "weights"), ("kernels", "parallel")}
# What is above computes by operations, which check their input and record what they do.
SIDEWAYS |= {(folder, "kernels") for folder in LADDER[LADDER.index("ops") + 1:]}
# Videos are files that go in and out, which networks know nothing of.
SIDEWAYS |= {(folder, "media") for folder in LADDER[LADDER.index("comm"):LADDER.index("engine")]}
# A folder in a folder: the files around it that it includes, by their names, none of which includes it; and the folders of the
# ladder that include it.
Nested = collections.namedtuple("Nested", "reads readers")
NESTED = {
    # A module of its own, which is loaded and not linked.
    "media/libav": Nested({"codecs", "palette", "source"}, set()),
    "media/libjpeg": Nested({"codecs"}, {"media/libav"}),
    "models/stdit": Nested({"autoencoder_kl", "denoiser", "family", "loading", "local_blocks", "prompt", "t5_prompt", "video_request"}, {"models"}),
    "plan/hardware": Nested({"machine", "trace", "views"}, {"plan", "plan/calibration", "plan/planner", "cli"}),
    "plan/calibration": Nested({"efficiency", "link", "machine", "recorder"}, {"cli"}),
    "plan/planner": Nested({"link", "machine", "run_costs", "schedule", "trace", "trace_model", "views"}, {"cli"}),
}
MAX_LINES = 500
MAX_MEDIAN = 110
MAX_FUNCTION = 60
TABLES = {"make_fields"}  # a table is as long as what it lists
# A family is written as for one device. These words, alone or in a name, say otherwise; what they mean in norms, in tables of
# fields and in texts for users is another thing.
RANK_WORDS = {"rank", "ranks", "group", "groups", "cut", "cuts", "stage", "stages", "degree", "degrees", "communicator",
              "communicators", "ulysses", "ring", "gather", "collective", "collectives", "world", "mesh"}
# Messages name fields (core/error.h) because only the command line knows which option sets a field.
OPTION = re.compile(r'"(?:[^"\\]|\\.)*--[a-z](?:[^"\\]|\\.)*"')
OF_OTHERS = re.compile(r'GroupNorm|group_norm|norm_groups|num_groups|FieldGroup|"(?:[^"\\]|\\.)*"')


def functions(lines):
    """(name, first line, number of lines) of the functions and methods of a file in the style of .clang-format, which puts a
    body's last brace alone under the first column of its first line. What stands in a class is indented by two."""
    for indent in ("", "  "):
        first = None
        for number, line in enumerate(lines, 1):
            begins = line.startswith(indent) and len(line) > len(indent) and line[len(indent)] not in " }#/"
            if first is None and begins:
                first = number
            if first is None:
                continue
            if line == indent + "}":
                text = " ".join(lines[first - 1:number])
                if named := re.match(r"[^={;]*?([A-Za-z0-9_]+)\(", text):
                    yield named[1], first, number - first + 1
            if line.rstrip().endswith(";") and begins or line.startswith(indent + "}") or not line.strip() and first == number - 1:
                first = None


def check_includes(root, problems):
    for path in sorted((root / "src").rglob("*.[hc]*")):
        folder = path.relative_to(root / "src").parts[0]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if folder != "cli" and OPTION.search(line.split("//")[0]):
                problems.append(f"{path.relative_to(root)}:{number}: a string with an option of the command line; name the field()")
            match = re.match(r'#include "([a-z_]+)/', line)
            if not match or match[1] == folder:
                continue
            if match[1] not in LADDER or LADDER.index(match[1]) > LADDER.index(folder) or (folder, match[1]) in SIDEWAYS:
                problems.append(f"{path.relative_to(root)}:{number}: {folder}/ may not include {match[1]}/")


def nesting_allows(file, included):
    """Whether a file of src/ may include another as far as folders in folders go, given both paths in src/."""
    here, there = (str(path.parent) for path in (file, included))
    if here == there:
        return True
    reads = NESTED.get(here, Nested(set(), set())).reads
    if "/" in here and there == file.parts[0] and included.stem not in reads:
        return False
    if "/" not in there:
        return True
    inner = NESTED.get(there, Nested(set(), set()))
    return here in inner.readers and not (here == included.parts[0] and file.stem in inner.reads)


def check_public(root, problems):
    """Installed headers stand for themselves, but for libtorch's."""
    for path in sorted((root / "include").rglob("*.h")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.match(r'#include "(?!tessera/)', line) or re.match("#include <(fmt|nlohmann|torch|CLI)/", line):
                problems.append(f"{path.relative_to(root)}:{number}: a public header includes libtorch's tensors and other public headers alone")


def check_nested(root, problems):
    for path in sorted((root / "src").rglob("*.[hc]*")):
        file = path.relative_to(root / "src")
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'#include "([a-z_]+/[^"]+)"', line)
            if match and not nesting_allows(file, pathlib.PurePath(match[1])):
                problems.append(f"{path.relative_to(root)}:{number}: {file.parent}/ may not include {match[1]}: see NESTED")


def check_models(root, problems):
    for path in sorted((root / "src" / "models").rglob("*.[hc]*")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            names = re.findall(r"[A-Za-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", OF_OTHERS.sub("", line)))
            for word in sorted({name.lower() for name in names} & RANK_WORDS):
                problems.append(f"{path.relative_to(root)}:{number}: a model does not know of a '{word}'")
            if re.match(r'#include "comm/', line):
                problems.append(f"{path.relative_to(root)}:{number}: a model may not include comm/")


def check_sizes(root, problems):
    """Returns the median length of the files of src/."""
    lengths = []
    for path in sorted((root / "src").rglob("*.[hc]*")):
        lines = path.read_text().splitlines()
        lengths.append(len(lines))
        for name, first, count in functions(lines):
            if count > MAX_FUNCTION and name not in TABLES:
                problems.append(f"{path.relative_to(root)}:{first}: {name}() has {count} lines, at most {MAX_FUNCTION}")
    median = statistics.median(lengths)
    if median > MAX_MEDIAN:
        problems.append(f"src/: the median file has {median} lines, at most {MAX_MEDIAN}")
    for pattern in ("src/**/*.h", "src/**/*.cc", "tests/**/*.h", "tests/**/*.cc", "include/**/*.h", "examples/*.cc", "bench/*.h",
                    "bench/*.cc", "tools/**/*.py",
                    "bench/*.py", "tests/*/*.py", "tests/*/*.js", "src/serve/page/*"):
        for path in sorted(root.glob(pattern)):
            count = len(path.read_text().splitlines())
            if count > MAX_LINES:
                problems.append(f"{path.relative_to(root)}: {count} lines, at most {MAX_LINES}: one noun a file")
    return median


def check(root):
    """(what is wrong, a line each; the median length of a file)."""
    problems = []
    check_includes(root, problems)
    check_public(root, problems)
    check_nested(root, problems)
    check_models(root, problems)
    return problems, check_sizes(root, problems)


if __name__ == "__main__":
    found, middle = check(pathlib.Path(__file__).resolve().parents[2])
    print("\n".join(found) if found else "layers: no upward include, no model that knows of ranks, no file or function too long "
          f"(median {middle:.0f} lines)")
    sys.exit(1 if found else 0)
