"""Tests videos: their files, the pictures that they begin from, and runs that fail or are stopped."""
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

from files import read_png, read_safetensors
from harness import GOLDEN, ROOT, Box
from running import start_long_run

VIDEO = ROOT / "tests" / "golden" / "tiny-open-sora"
VIDEO_1_1 = VIDEO.parent / "tiny-open-sora-1.1"
SHORT = ["--height", "24", "--width", "40", "--num-frames", "17", "--num-inference-steps", "2", "--seed", "1"]
RANKS = [(), ("--use-cfg-parallel",), ("--ulysses-degree", "2"), ("--pipefusion-parallel-degree", "2")]


def words(*arguments):
    return ["generate", "a red circle", "--model", VIDEO, "--dtype", "fp32", *arguments]


def generate(box, *arguments):
    outcome = box.run(*words(*arguments))
    assert outcome.code == 0, outcome
    return outcome


def boxes(data):
    """The names of the outermost parts of an MP4 file."""
    position, names = 0, []
    while position < len(data):
        size, name = int.from_bytes(data[position:position + 4], "big"), data[position + 4:position + 8]
        names.append(name.decode())
        position += size
    return names


def test_videos_have_the_format_of_their_suffix(box):
    for method in RANKS:
        outcome = generate(box, *SHORT, *method)
        assert outcome.out == "out.mp4\n", outcome
        data = (box.folder / "out.mp4").read_bytes()
        assert boxes(data)[0] == "ftyp" and boxes(data).index("moov") < boxes(data).index("mdat"), boxes(data)
        assert b"avc1" in data and b"a red circle" in data  # the prompt is in the file
        (box.folder / "out.mp4").unlink()
    for name, begin in (("a.webm", b"\x1aE\xdf\xa3"), ("a.gif", b"GIF89a"), ("a.MP4", b"\0\0\0")):
        assert generate(box, *SHORT, "-o", name).out == f"{name}\n"
        assert (box.folder / name).read_bytes().startswith(begin), name
        (box.folder / name).unlink()
    assert box.files() == []


def test_frames_are_numbered(box):
    names = [f"a-{i:04}.png" for i in range(17)]
    assert generate(box, *SHORT, "-o", "a.png").out.split() == names
    assert box.files() == names
    width, height, _, text = read_png(box.folder / names[3])
    assert (width, height) == (40, 24) and text["parameters"].startswith("a red circle\n"), text
    for path in names:
        (box.folder / path).unlink()
    assert generate(box, *SHORT, "--num-frames", "1").out == "out.png\n"
    assert box.files() == ["out.png"]


def test_frames_are_checked_under_their_names(box):
    """A frame that cannot be written ends a run before it begins, and a file with the name of none of them does not."""
    (box.folder / "a-0003.png").mkdir()
    outcome = box.refuse(2, "[--output] [a-0003.png] is a folder", *words(*SHORT, "-o", "a.png"))
    assert "load" not in outcome.err, outcome
    box.refuse(2, "[--report] 'b-0016.png' is also where a result goes", *words(*SHORT, "-o", "b.png", "--report", "b-0016.png"))
    shutil.copy(VIDEO / "golden" / "circle.png", box.folder / "d-0004.png")
    box.refuse(2, "[--output] 'd-0004.png' is the file of --reference-path, which would be lost; name another",
               *words(*SHORT, "-o", "d.png", "--reference-path", "d-0004.png", "--mask-strategy", "0"))
    (box.folder / "d-0004.png").unlink()
    (box.folder / "c.png").mkdir()
    assert len(generate(box, *SHORT, "-o", "c.png").out.split()) == 17


def test_one_frame_is_an_image(box):
    one = [*SHORT, "--num-frames", "1"]
    generate(box, *one, "-o", "a.png")
    for name, begin in (("a.jpg", b"\xff\xd8"), ("a.webp", b"RIFF"), ("a.mp4", b"\0\0\0")):
        assert generate(box, *one, "-o", name).out == f"{name}\n"
        assert (box.folder / name).read_bytes().startswith(begin), name
    done = subprocess.run([box.program, *map(str, words(*one, "-o", "-"))], cwd=box.folder, capture_output=True)
    assert done.returncode == 0 and done.stdout == (box.folder / "a.png").read_bytes(), done
    for output in ("-", "b.jpg"):
        box.refuse(2, "[--output]", *words(*SHORT, "-o", output))


def test_a_dry_run_names_the_files_of_frames(box):
    frames = [f"v-{i:04}.png" for i in range(17)]
    assert json.loads(generate(box, *SHORT, "--num-frames", "17", "-o", "v.png", "--dry-run").out)["outputs"] == frames
    assert generate(box, *SHORT, "--num-frames", "17", "-o", "v.png").out.split() == frames


def test_what_an_encoder_refuses_is_refused_at_once(box):
    for method in ((), ("--dry-run",), ("--use-cfg-parallel",)):
        outcome = box.refuse(2, "[a.mp4] cannot encode the video: Picture size 16384x16384 is invalid",
                             *words("--height", "16384", "--width", "16384", "--num-frames", "17", "-o", "a.mp4", *method))
        assert "load" not in outcome.err, outcome


def test_a_dry_run_counts_the_encoder_of_given_frames(box):
    def plan(*arguments):
        return json.loads(generate(box, *SHORT, *arguments, "--dry-run").out)["weights_bytes"]

    alone = plan()
    assert list(alone) == ["text_encoder", "denoiser", "decoder"], alone
    for given in (["--reference-path", VIDEO / "golden" / "circle.png", "--mask-strategy", "0"], ["--num-frames", "34", "--loop", "2"]):
        both = plan(*given)
        assert both.pop("video_encoder") > 100000 and both == alone, both


def test_frames_of_a_longer_run_are_named(box):
    def warnings(*arguments):
        return [line for line in generate(box, *SHORT, "--quiet", *arguments).err.splitlines() if "another run" in line]

    for name in ("a-0018.png", "a-0020.png", "a.png", "b-0017.png"):
        (box.folder / name).write_text("mine")
    assert warnings("-o", "a.png") == []  # no file has the next number
    (box.folder / "a-0017.png").write_text("mine")
    named, = warnings("-o", "a.png")
    assert "[a-0017.png] and 1 more, up to a-0018.png, were left by another run" in named, named
    assert (box.folder / "a-0017.png").read_text() == "mine"
    named, = warnings("-o", "b.png")
    assert "[b-0017.png] was left by another run" in named, named
    assert warnings("-o", "a.mp4") == []


def test_frames_do_not_depend_on_the_ranks(box):
    frames = []
    for method in RANKS[:3]:
        generate(box, *SHORT, "-o", "a.png", *method)
        frames.append([read_png(box.folder / path)[2] for path in box.files()])
    for other in frames[1:]:
        assert all(abs(a - b) <= 1 for one, two in zip(frames[0], other) for a, b in zip(one, two))


def test_several_videos_are_numbered(box):
    outcome = box.run(*words("a blue square", *SHORT, "--data-parallel-degree", "2", "-o", "v.mp4", "--report", "run.json"))
    assert outcome.out.split() == ["v-0.mp4", "v-1.mp4"], outcome
    settings = box.report()["settings"]
    assert settings["num_frames"] == 17 and settings["fps"] == 24, settings
    assert box.files() == ["v-0.mp4", "v-1.mp4"]


def test_only_videos_need_the_codecs(box):
    if "libav" in subprocess.run(["ldd", box.program], check=True, capture_output=True, text=True).stdout:
        raise AssertionError("every run loads FFmpeg's libraries")
    (box.folder / "bin").mkdir()
    alone = Box(shutil.copy(box.program, box.folder / "bin"), box.folder)
    module = (box.folder / "lib" / "tessera" / "codecs.so").resolve()
    for arguments in (["-o", "a.mp4"], ["-o", "a.mp4", "--ulysses-degree", "2"],
                      ["--reference-path", VIDEO / "golden" / "circle.png", "--mask-strategy", "0", "-o", "a.png"]):
        alone.refuse(3, f"[{module}] videos, references, JPEG and WebP need this module, which is missing", *words(*SHORT, *arguments))
    module.parent.mkdir(parents=True)
    module.write_text("text")
    alone.refuse(3, f"[{module}] videos, references, JPEG and WebP need this module, which cannot be loaded", *words(*SHORT))
    version = box.run("--version").out.split()[1].encode()
    own = (Path(box.program).parent / "lib" / "tessera" / "codecs.so").read_bytes()
    whole = re.search(b"\0(" + re.escape(version) + b"-[0-9a-f]{8})\0", own)[1]
    for other in (b"9" * len(whole), version + b"-" + b"0" * 8):  # another release, and another build of this one
        module.write_bytes(own.replace(whole, other))
        alone.refuse(3, f"[{module}] belongs to another version of the program ({other.decode()}; this is {whole.decode()})", *words(*SHORT))
    assert generate(alone, *SHORT, "-o", "a.png").out.startswith("a-0000.png")


def test_ranks_take_a_size_by_name(box):
    outcome = generate(box, "--resolution", "144p", "--aspect-ratio", "1:1", *SHORT[4:], "--use-cfg-parallel")
    assert "of 192 x 192" in outcome.err, outcome


def test_latents_of_videos(box):
    generate(box, *SHORT, "--output-type", "latent")
    tensors, _ = read_safetensors(box.folder / "out.safetensors")
    assert tensors["latents"][1] == [1, 4, 5, 3, 5], tensors["latents"][1]


def test_long_videos_and_references(box):
    circle = VIDEO / "golden" / "circle.png"
    outcome = generate(box, *SHORT, "--num-frames", "34", "--loop", "2", "--reference-path", circle, "--mask-strategy", "0", "-o", "a.png")
    assert len(outcome.out.split()) == 51 and "1 video of 51 frames" in outcome.err, outcome


def test_a_prompt_names_its_own_references(box):
    """The settings at the end of a prompt win over the options, and the recorded prompt runs again to the same video."""
    missing = ["--reference-path", "missing.png", "--mask-strategy", "0"]
    circle = shutil.copy(VIDEO / "golden" / "circle.png", box.folder)
    prompt = "a red circle" + json.dumps({"reference_path": str(circle), "mask_strategy": "0"})
    plain = ["--model", VIDEO, "--dtype", "fp32", *SHORT]
    generate(box, *SHORT, "--reference-path", circle, "--mask-strategy", "0", "-o", "a.png")
    names = sorted(path.name for path in box.folder.glob("a-*.png"))
    expected = [read_png(box.folder / name)[2] for name in names]
    for _ in range(2):
        outcome = box.run("generate", prompt, *plain, *missing, "-o", "a.png")
        assert outcome.code == 0 and [read_png(box.folder / name)[2] for name in names] == expected, outcome
        prompt = json.loads(read_png(box.folder / names[0])[3]["tessera"])["prompt"]
        prompt = prompt if isinstance(prompt, str) else prompt[0]


def test_references_are_checked_before_weights_are_read(box):
    circle, moving = VIDEO / "golden" / "circle.png", VIDEO / "golden" / "moving.gif"
    (box.folder / "text.png").write_text("not an image")
    for code, needle, strategy, *paths in (
            (3, "[missing.png] no such file", "0", "missing.png"),
            (3, "[text.png] not an image or video", "0", f"{circle};text.png"),
            (3, "[https://example.org/a.mp4] URLs are not fetched; download the file, and name that", "0", "https://example.org/a.mp4"),
            (2, "[--mask-strategy] 7 is not a frame of the reference, which has 1 latent frame", "0,0,7", circle)):
        for method in ((), ("--dry-run",), ("--use-cfg-parallel",)):
            outcome = box.refuse(code, needle, *words(*SHORT, "--mask-strategy", strategy, "--reference-path", *paths, *method))
            assert "load text" not in outcome.err, outcome
    (box.folder / "text.png").unlink()
    for method in ((), ("--dry-run",), ("--use-cfg-parallel",)):
        outcome = generate(box, *SHORT, "--mask-strategy", "0,0,0,0,3", "--reference-path", circle, *method)
        assert outcome.err.count(f"[{circle}] has 1 of the 3 latent frames that --mask-strategy takes of it") == 1, outcome
        assert "warning" not in generate(box, *SHORT, "--mask-strategy", "0", "--reference-path", moving, *method).err


def test_files_tell_nothing_of_the_machine(box):
    """Only names of references are in the files of a run, and a run from such a file says which are missing."""
    (box.folder / "secret").mkdir()
    circle = shutil.copy(VIDEO / "golden" / "circle.png", box.folder / "secret")
    own = "a red circle" + json.dumps({"reference_path": f"{circle}; secret/circle.png", "mask_strategy": "0"})
    plain = ["generate", "--model", VIDEO, "--dtype", "fp32", *SHORT]
    for prompt, *given in ((own,), ("a red circle", "--reference-path", circle, "--mask-strategy", "0")):
        for name, *kind in (("a.png",), ("a.mp4",), ("a.webm",), ("a.safetensors", "--output-type", "latent")):
            outcome = box.run(*plain, prompt, *given, *kind, "-o", name)
            assert outcome.code == 0, outcome
            first = outcome.out.split()[0]
            data = (box.folder / first).read_bytes()
            assert b"circle.png" in data and b"secret" not in data and os.fsencode(box.folder) not in data, name
            again = ["generate", "--request", first, "--model", VIDEO]
            box.refuse(3, f"[{first}] its reference 'circle.png' is not here; run it in the folder of that file, or give its path with --reference-path",
                       *again)
            if given:
                outcome = box.run(*again, "--reference-path", circle, "-o", f"b-{name}")
                assert outcome.code == 0 and (box.folder / outcome.out.split()[0]).read_bytes() == data, outcome
            for path in box.folder.glob("*.*"):
                path.unlink()


def test_videos_have_their_request(box):
    for name in ("a.mp4", "a.webm"):
        generate(box, *SHORT, "-o", name)
        outcome = box.run("generate", "--request", name, "--model", VIDEO, "-o", f"again-{name}")
        assert outcome.code == 0, outcome
        assert (box.folder / f"again-{name}").read_bytes() == (box.folder / name).read_bytes(), name
    with open(box.folder / "a.mp4", "rb") as file:
        data = file.read()
    outcome = box.run("generate", "--request", "-", "--model", VIDEO, "-o", "b.mp4", stdin=data,
                      env={"LANG": "C"})  # more than a pipe to a fork takes at once
    assert outcome.code == 0 and (box.folder / "b.mp4").read_bytes() == data, outcome
    generate(box, *SHORT, "-o", "a.gif")
    box.refuse(3, "[a.gif] a GIF holds no settings; give the report of its run, or a request in JSON", "generate", "--request", "a.gif")
    (box.folder / "other.mp4").write_bytes(data.replace(b"tessera: {", b"another: {"))
    box.refuse(3, "[other.mp4] holds no settings; give a file that this program wrote", "generate", "--request", "other.mp4")


def test_videos_of_version_1_1(box):
    circle = VIDEO_1_1 / "golden" / "circle.png"
    for method in RANKS[:2]:
        outcome = box.run("generate", "a red circle", "--model", VIDEO_1_1, "--dtype", "fp32", *SHORT, "--num-frames", "6", "--loop", "2",
                          "--reference-path", circle, "--mask-strategy", "0", *method)
        assert outcome.code == 0 and "1 video of 8 frames" in outcome.err, outcome
        (box.folder / "out.mp4").unlink()
    box.refuse(2, "[--num-inference-steps] must be at most 1000, got 1001", "generate", "a", "--model", VIDEO_1_1, *SHORT,
               "--num-inference-steps", "1001")
    assert box.run("models", VIDEO_1_1).code == 0


def test_bad_requests_for_videos(box):
    (box.folder / "text.png").write_text("not an image")
    data = (VIDEO / "golden" / "moving.gif").read_bytes()
    (box.folder / "cut.gif").write_bytes(data[:len(data) // 2])
    given = ["--mask-strategy", "0", "--reference-path"]
    for code, needle, *arguments in (
            (2, "[--output] 'a.avi' must end in", "-o", "a.avi"),
            (2, "[--num-frames]", "--num-frames", "-3"),
            (2, "[--num-frames] must be 1, or 17 or more, got 5: the timesteps depend on the number of whole clips", "--num-frames", "5"),
            (2, "[--height] must be at least 8", "--height", "7", "--width", "40"),
            (2, "[--resolution]", "--resolution", "240"),
            (2, "[--mask-strategy] has no effect without --reference-path, of which it takes frames", "--mask-strategy", "0"),
            (2, "[--mask-strategy] '0,1,2,3,4,5,6' has 7 numbers", "--mask-strategy", "0,1,2,3,4,5,6"),
            (2, "[PROMPT] a prompt has no setting 'seed'", 'a {"seed": "1"}'),
            (2, "[PROMPT: mask_strategy] has no effect without --reference-path", 'a {"mask_strategy": "0"}'),
            (3, "[missing.png]", *given, "missing.png"),
            (3, "[text.png]", *given, "text.png"),
            (3, "[cut.gif]", *given, "cut.gif")):
        size = [] if "--height" in arguments or "--resolution" in arguments else SHORT[:4]
        box.refuse(code, needle, *words(*size, "--num-inference-steps", "2", *arguments))
    box.refuse(2, "[--output] 'a.mp4' must end in .png, .jpg, .jpeg, .webp: images are written in these formats", "generate", "a",
               "--model", GOLDEN.parent, "-o", "a.mp4")
    box.refuse(2, "[--num-frames] PixArt-Sigma does not support it", "generate", "a", "--model", GOLDEN.parent, "--num-frames", "5")
    box.refuse(3, "[missing.png]", *words(*SHORT, *given, "missing.png", "--use-cfg-parallel"))


def test_a_full_disk_ends_a_video(box):
    for name in ("a.mp4", "a.webm", "a.gif", "a.png"):
        box.refuse(2, "File too large", *words(*SHORT, "-o", name), limits={resource.RLIMIT_FSIZE: 512})
    for name in ("a.mp4", "a.gif"):
        (box.folder / name).symlink_to("/dev/full")
        box.refuse(2, "No space left", *words(*SHORT, "-o", name, "--ulysses-degree", "2"))
        (box.folder / name).unlink()
    (box.folder / "a-2.mp4").symlink_to("/dev/full")
    outcome = box.run(*words(*SHORT, "-o", "a.mp4", "--num-images-per-prompt", "3"))
    assert outcome.code == 2 and outcome.out.split() == ["a-0.mp4", "a-1.mp4"] and "No space left" in outcome.err, outcome
    for name in box.files():
        (box.folder / name).unlink()
    box.refuse(2, "[--output]", *words(*SHORT, "-o", "no/folder.mp4"))


# A video that takes long in each stage: what the terminal shows before the run is ended.
LONG = ["--height", "160", "--width", "160", "--num-frames", "510"]


def start_video(box, until, *words, steps, videos="1"):
    return start_long_run(box, *LONG, *words, "-o", "v.mp4", steps=steps, method=("--ulysses-degree", "2"), until=until, images=videos, model=VIDEO)


def test_a_killed_rank_ends_a_video(box):
    for until, steps in (("denoise [", "900"), ("decode [", "1")):
        for victim in (1, 0):
            run = start_video(box, until, steps=steps)
            os.kill(run.ranks[victim], signal.SIGKILL)
            code, out, lines = run.finish()
            assert code == 4 and out == "" and len(lines) == 1, (code, out, lines)
            assert f"[rank {victim}] killed by signal 9" in lines[0], lines
            assert box.files() == []


def test_half_written_files_are_removed(box):
    for signal_sent in (signal.SIGKILL, signal.SIGTERM):
        run = start_video(box, "decode [", "--report", "run.json", steps="1", videos="3")
        while not (written := list(box.folder.glob("v-0.mp4.*.tmp"))):
            assert run.process.poll() is None, run.shown
            time.sleep(0.01)
        # The names of all that a run leaves unfinished have one token in common.
        for name in ("v-2.mp4", "run.json"):
            (box.folder / written[0].name.replace("v-0.mp4", name)).write_text("half")
        if signal_sent == signal.SIGKILL:
            os.kill(run.ranks[0], signal_sent)
        else:
            run.process.send_signal(signal_sent)
        run.finish()
        assert box.files() == [], (signal_sent, box.files())


def test_ctrl_c_ends_a_video(box):
    for until, steps in (("denoise [", "900"), ("decode [", "1")):
        run = start_video(box, until, steps=steps)
        for process in (run.process.pid, *run.ranks):
            os.kill(process, signal.SIGINT)
        code, out, lines = run.finish()
        assert code == 130 and out == "" and lines[-1] == "tessera: stopped; nothing was written", (code, out, lines)
        assert box.files() == []


def test_the_mesh_of_a_video_shows_what_ranks_divide(box):
    outcome = box.run("mesh", "--model", VIDEO, "--ulysses-degree", "2", "--json")
    assert outcome.code == 0, outcome
    shares = [rank["share"] for rank in json.loads(outcome.out)["ranks"]]
    assert [share["heads"] for share in shares] == [[0, 4]] * 2, shares  # frames are divided instead


def test_models_describes_a_video_model(box):
    outcome = box.run("models", VIDEO)
    assert outcome.code == 0 and "Open-Sora 1.2: videos of 51 frames of 240 x 424 by default, 30 steps" in outcome.out, outcome
