"""Tests runs on several ranks that the program starts, and ranks that fail."""
import os
import pathlib
import resource
import shlex
import signal
import subprocess
import time

import pytest

from files import assert_near, difference, psnr, read_latents, read_png
from harness import MODEL, SMALL
from running import address_space, alive, start, start_long_run

LATENT = ["--seed", "5", "--output-type", "latent", "-o", "out.safetensors"]
DEGREES = [  # words, and the report's settings; the model has 2 heads and 2 blocks, and takes 3 steps
    (["--nproc", "2", "--use-cfg-parallel"], {"world_size": 2, "cfg": 2}),
    (["--use_cfg_parallel", "--ulysses_degree", "2"], {"world_size": 4, "cfg": 2, "ulysses": 2}),
    (["--tensor-parallel-degree", "2", "--split-scheme", "1d"], {"world_size": 2, "tp": 2}),
    (["--ring-degree", "2", "--timeout", "60", "--no-shared-memory", "--interface", "lo"], {"world_size": 2, "ring": 2}),
    (["--pipefusion_parallel_degree", "2", "--num_pipeline_patch", "2", "--attn_layer_num_for_pp", "1", "1",
      "--warmup_steps", "3"],
     {"world_size": 2, "pp": 2, "num_pipeline_patch": 2, "attn_layer_num_for_pp": [1, 1], "warmup_steps": 3}),
    (["--data-parallel-degree", "2", "--num-images-per-prompt", "2"], {"world_size": 2, "dp": 2}),
    (["--ulysses-degree", "2", "--rank-shares", "2.5,1"], {"world_size": 2, "ulysses": 2}),
    (["--use-cfg-parallel", "--width", "16"], {"world_size": 2, "cfg": 2}),  # one column of tokens
]
THREE_STEPS = [*SMALL[:-1], "3"]


NEAR = 1e-4  # largest difference between the latents of exact methods and those of one rank


def test_ranks_generate_the_latents_of_one(box):
    for words, settings in DEGREES:
        shared = ("--num-images-per-prompt", "--width")  # options of the image, not of the ranks
        picture = [word for pair in zip(words, words[1:]) if pair[0] in shared for word in pair]
        expected = box.latents("a cat", "--seed", "5", *THREE_STEPS, *picture)
        outcome = box.generate("a cat", *LATENT, *THREE_STEPS, *words, "--report", "run.json")
        assert outcome.out == "out.safetensors\n", outcome
        assert_near(read_latents(box.folder / "out.safetensors"), expected, NEAR)
        report = box.report()
        assert report["settings"]["parallel"] == settings, report
        assert [rank["rank"] for rank in report["ranks"]] == list(range(settings["world_size"])), report
        for rank in report["ranks"]:
            assert rank["threads"] == 1, rank
            assert rank["peak_rss_bytes"] > 1 << 20 and rank["bytes_read"] > 0, rank
            for sum_ in rank["communication"]:
                assert sorted(sum_) == sorted(["axis", "operation", "count", "bytes", "seconds", "waited_seconds"]), sum_


def test_data_parallel_ranks_write_the_images_of_one(box):
    words = ["a cat", "a dog", "a red circle", "--seed", "5", "--dtype", "fp32", *SMALL]
    alone = box.generate(*words, "-o", "alone.png").out.split()
    shared = box.generate(*words, "-o", "shared.png", "--data-parallel-degree", "2").out.split()
    assert shared == ["shared-0.png", "shared-1.png", "shared-2.png"], shared
    alone, shared = ([read_png(box.folder / path) for path in paths] for paths in (alone, shared))
    for one, other in zip(alone, shared):
        assert psnr(one[2], other[2]) > 50 and one[3]["parameters"] == other[3]["parameters"], other[3]
    assert psnr(alone[0][2], alone[2][2]) < 50, "the images do not depend on the prompt"


def test_one_rank_simulates_several(box):
    words = ["--pipefusion-parallel-degree", "2", "--num-pipeline-patch", "2", "--warmup-steps", "1"]
    picture = ["a cat", "--seed", "5", *THREE_STEPS]
    expected = box.latents(*picture, *words)
    simulated = box.latents(*picture, *words, "--simulate-ranks", "--report", "run.json")
    assert_near(simulated, expected, NEAR)
    report = box.report()
    assert len(report["ranks"]) == 1, report
    assert report["settings"]["parallel"] == {"world_size": 1, "num_pipeline_patch": 2, "warmup_steps": 1}, report
    assert difference(expected[1], box.latents(*picture)[1]) > 1e-3, "no stale values were read"


def test_the_text_encoder_is_split_or_whole(box):
    results, read = [], []
    for word in ("--text-encoder-parallel", "--no-text-encoder-parallel"):
        results.append(box.latents("a cat", "--seed", "5", *THREE_STEPS, "--use-cfg-parallel", word, "--report", "run.json"))
        read.append(box.report()["ranks"][1]["bytes_read"])
    assert_near(*results, NEAR)
    assert read[0] < read[1], read


def test_pictures_of_ranks(box):
    for method, place in ([["--use-cfg-parallel"], "cfg 2"], [["--data-parallel-degree", "2"], "dp 2"]):
        words = ["a cat", "a dog", "a bird", "--seed", "5", *SMALL]  # wider than tall
        box.generate(*words, "--nproc", "1", "-o", "one.png")
        outcome = box.generate(*words, *method, "-o", "two.png")
        assert outcome.out.split() == ["two-0.png", "two-1.png", "two-2.png"], outcome
        assert f" on 2 ranks ({place}) with 1 thread each" in outcome.err, outcome
        for number in range(3):
            one, two = (box.folder / f"{name}-{number}.png" for name in ("one", "two"))
            (*size, expected, _), (*size_of_ranks, pixels, _) = read_png(one), read_png(two)
            assert size == size_of_ranks == [48, 32], (size, size_of_ranks)
            assert len(pixels) == len(expected) and difference(pixels, expected) <= 1
            one.unlink(), two.unlink()


def test_rules_of_degrees(box):
    for words, *needles in [
            (["--nproc", "3", "--ulysses-degree", "2"], "needs 2 ranks (--ulysses-degree 2), but there are 3"),
            (["--nproc", "0"], "[--nproc]"),
            (["--nproc", "two"], "[--nproc] expected an integer"),
            (["--nproc", "2000", "--data-parallel-degree", "2000", "--guidance-scale", "1"], "nearest valid"),
            (["--ulysses-degree", "0"], "[--ulysses-degree] must be from 1"),
            (["--ring-degree", "-2"], "[--ring-degree] must be from 1"),
            (["--data-parallel-degree", "2"], "--data-parallel-degree 2 needs as many images", "nearest valid"),
            (["--use-cfg-parallel", "--guidance-scale", "1"], "--use-cfg-parallel needs a guidance scale above 1"),
            (["--ulysses-degree", "16"], "needs a head for each rank", "nearest valid"),
            (["--pipefusion-parallel-degree", "64"], "needs a block for each stage", "nearest valid"),
            (["--pipefusion-parallel-degree", "2", "--attn-layer-num-for-pp", "9", "9"], "with the sum 2, such as 1 1"),
            (["--pipefusion-parallel-degree", "2", "--attn-layer-num-for-pp", "one"], "expected an integer"),
            (["--pipefusion-parallel-degree", "2", "--num-pipeline-patch", "1000"], "must be from 1 to"),
            (["--ring-degree", "2", "--rank-shares", "3", "2", "1"],
             "--rank-shares 3 2 1 must be 2 positive numbers, one for each rank"),
            (["--ring-degree", "2", "--rank-shares", "fast"], "[--rank-shares] expected a number, got 'fast'"),
            (["--rank-shares", "1"], "--rank-shares applies to runs with several ranks only"),
            (["--pipefusion-parallel-degree", "2", "--warmup-steps", "-1"], "must be 0 or more"),
            (["--num-pipeline-patch", "2"], "--num-pipeline-patch applies to PipeFusion only"),
            (["--split-scheme", "2d"], "--split-scheme needs --tensor-parallel-degree"),
            (["--split-scheme", "3d"], "expected 1d or 2d"),
            (["--timeout", "3"], "[--timeout] applies to runs with several ranks"),
            (["--interface", "lo"], "[--interface] applies to runs with several ranks"),
            (["--nproc", "2", "--use-cfg-parallel", "--timeout", "0"], "must be from 0.1 to 86400 seconds"),
            (["--no-shared-memory"], "[--no-shared-memory] applies to runs with several ranks"),
            (["--nproc", "2", "--use-cfg-parallel", "--interface", "lo"], "all ranks are on this host and share memory"),
            (["--nproc", "2", "--use-cfg-parallel", "--no-shared-memory", "--interface", "wire"], "no network interface 'wire'; it has "),
            (["--simulate-ranks"], "--simulate-ranks needs the degrees"),
            (["--simulate-ranks", "--use-cfg-parallel", "--nproc", "2"], "is for one rank, but there are 2"),
            (["--text-encoder-parallel"], "--text-encoder-parallel applies to runs with several ranks only"),
            (["--no-text-encoder-parallel"], "--no-text-encoder-parallel applies to runs with several ranks only"),
            (["--nprocs", "2"], "did you mean --nproc?")]:
        outcome = box.refuse(2, needles[0], "generate", "a cat", "--model", MODEL, *SMALL, *words)
        assert all(needle in outcome.err for needle in needles), (needles, outcome)
    # Several broken rules are reported in one line.
    outcome = box.refuse(2, "nearest valid", "generate", "a cat", "--model", MODEL, "--guidance-scale", "1",
                         "--use-cfg-parallel", "--data-parallel-degree", "2", "--num-pipeline-patch", "2")
    assert outcome.err.count("; ") >= 3, outcome


def test_an_error_of_all_ranks_is_reported_once(box):
    model = box.copy_model()
    path = model / "transformer" / "diffusion_pytorch_model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    outcome = box.refuse(3, str(path), "generate", "a cat", "--model", model, "--use-cfg-parallel", *SMALL)
    assert outcome.err.count("tessera: ") == 1, outcome


def test_help_names_every_option(box):
    text = box.run("generate", "--help").out
    for name in ("nproc", "data-parallel-degree", "use-cfg-parallel", "ulysses-degree", "ring-degree", "timeout",
                 "pipefusion-parallel-degree", "num-pipeline-patch", "attn-layer-num-for-pp", "warmup-steps", "rank-shares",
                 "tensor-parallel-degree", "split-scheme", "dynamic-sequence-parallel", "interface", "no-shared-memory", "simulate-ranks", "text-encoder-parallel"):
        assert f"--{name}" in text, name


# The following tests interrupt, stop or kill ranks.

def test_ranks_open_no_port(box):
    run = start_long_run(box)
    # No port is open, and no socket has a name.
    for of in (run.process.pid, *run.ranks):
        sockets = {os.readlink(path)[8:-1] for path in pathlib.Path(f"/proc/{of}/fd").iterdir()
                   if os.readlink(path).startswith("socket:[")}
        for table, inode in (("tcp", 9), ("tcp6", 9), ("udp", 9)):
            lines = pathlib.Path(f"/proc/{of}/net/{table}").read_text().splitlines()[1:]
            assert not sockets & {line.split()[inode] for line in lines}, (of, table)
        unix = [line.split() for line in pathlib.Path(f"/proc/{of}/net/unix").read_text().splitlines()[1:]]
        assert not [line for line in unix if line[6] in sockets and len(line) > 7], of
    run.process.send_signal(signal.SIGINT)
    assert run.finish()[0] == 130


def interrupt(run):
    for process in (run.process.pid, *run.ranks):  # a terminal sends the signal to all processes
        os.kill(process, signal.SIGINT)


def test_the_folder_of_an_output_is_removed_meanwhile(box):
    for method in ([], ["--use-cfg-parallel"]):
        (box.folder / "out").mkdir()
        run = start(box.program, box.folder, "a cat", "--model", MODEL, "--num-inference-steps", "900", *method, "-o", "out/cat.png")
        run.wait_for("denoise [")
        (box.folder / "out").rmdir()
        assert run.finish() == (2, "", ["tessera: [out/cat.png] its folder does not exist; create that first"]), (method, run.shown)
        assert box.files() == [], box.files()


def test_a_killed_rank_ends_the_run(box):
    for victim in (1, 0):
        run = start_long_run(box)
        os.kill(run.ranks[victim], signal.SIGKILL)
        code, out, lines = run.finish()
        assert code == 4 and out == "", (code, out, lines)
        assert len(lines) == 1 and f"[rank {victim}] killed by signal 9 (SIGKILL, as the kernel does when memory runs out) at step " in lines[0], lines
        assert "(cfg)" in lines[0], lines  # the axis of the rank's current or last collective
        assert box.files() == []


DECODING = [(("--use-cfg-parallel",), 2), (("--ring-degree", "3"), 3)]  # methods, ranks


def take_finished(box):
    """Returns the names of the images that are there, of which the last is the one that may be cut, and removes them."""
    names = box.files()
    assert names == [f"out-{i:02}.png" for i in range(len(names))], names
    assert not names or read_png(box.folder / names[-1])[:2] == (512, 512)
    for name in names:
        (box.folder / name).unlink()
    return names


def start_long_decoding(box, method, ranks):
    """Starts a run and returns it when all ranks together have decoded an image."""
    return start_long_run(box, "--height", "512", "--width", "512", "--no-resolution-binning", "--num-images-per-prompt", "60",
                          steps="1", method=method, ranks=ranks, until="decode [")


def test_a_killed_rank_ends_the_decoding(box):
    for method, ranks in DECODING:
        for victim in (ranks - 1, 0):
            run = start_long_decoding(box, method, ranks)
            os.kill(run.ranks[victim], signal.SIGKILL)
            code, out, lines = run.finish()
            assert code == 4 and len(lines) == 1, (code, out, lines)
            assert f"[rank {victim}] killed by signal 9 (SIGKILL, as the kernel does when memory runs out) in stage 'decode'" in lines[0], lines
            assert set(out.split()) <= set(take_finished(box)), out


def test_ctrl_c_ends_the_decoding(box):
    for method, ranks in DECODING:
        run = start_long_decoding(box, method, ranks)
        interrupt(run)
        code, out, lines = run.finish()
        files = take_finished(box)
        assert code == 130 and out.split() == files, (code, out, lines)
        assert lines[-1] == f"tessera: stopped; {'finished files stay' if files else 'nothing was written'}" and len(lines) == 2, lines


@pytest.mark.alone
def test_a_stopped_rank_ends_the_run(box):
    for victim in (1, 0):
        run = start_long_run(box, "--timeout", "2")
        os.kill(run.ranks[victim], signal.SIGSTOP)
        code, out, lines = run.finish()
        assert code == 4 and out == "", (code, out, lines)
        assert len(lines) == 1 and f"[rank {victim}] was stopped" in lines[0] and " at step " in lines[0], lines
        assert "(cfg)" in lines[0], lines
        assert box.files() == []


def test_a_rank_without_memory_ends_the_run(box):
    # There are too few addresses for a heap of tensors, which would serve all further steps from what it has, and one picture is
    # large enough to be given back to the system after each step. The tight limit is
    # set after a step, when all kernels exist, because oneDNN calls address 0 when there is no room for a kernel's code.
    run = start_long_run(box, "--height", "1536", "--width", "1536", "--no-resolution-binning",
                         method=("--data-parallel-degree", "2"), images="2", addresses=8 << 30)
    limit = address_space(run.ranks[1])
    resource.prlimit(run.ranks[1], resource.RLIMIT_AS, (limit, limit))
    code, out, lines = run.finish()
    assert code == 5 and out == "", (code, out, lines)
    assert len(lines) == 1 and "[rank 1] failed " in lines[0] and "not enough memory" in lines[0], lines
    assert " at step " in lines[0], lines
    assert box.files() == []


def test_a_limit_of_files_is_no_lack_of_memory(box):
    # The memory of messages does not fit; or it does, but a message of 64 KiB does not.
    large = ["--height", "512", "--width", "512", "--no-resolution-binning", "--num-inference-steps", "1"]
    for kilobytes, size in ((16, SMALL), (40, large)):
        box.refuse(2, "File too large (ulimit -f)", "generate", "a cat", "--model", MODEL, *size, "--use-cfg-parallel",
                   limits={resource.RLIMIT_FSIZE: kilobytes << 10})
    for size in (0, 20, 4096):
        box.refuse(2, "cannot connect 2 ranks: File too large (ulimit -f)", "generate", "a cat", "--model", MODEL, *SMALL,
                   "--use-cfg-parallel", "--no-shared-memory", limits={resource.RLIMIT_FSIZE: size})


def test_a_process_or_thread_too_many_is_a_lack_of_resources(box):
    user = 2_000_000_011  # of nobody else, since the limit counts all that a user runs; it does not hold for root
    box.folder.parent.chmod(0o711)
    box.folder.chmod(0o777)

    def run(processes, *words):
        def prepare():
            resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
            os.setgid(user)
            os.setuid(user)
        return subprocess.run([box.program, "generate", "a cat", "--model", MODEL, "--quiet", "--use-cfg-parallel", *SMALL, *words],
                              cwd=box.folder, capture_output=True, text=True, timeout=120, preexec_fn=prepare,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
    if os.geteuid() != 0 or run(100).returncode != 0:
        pytest.skip("no right to run as another user")
    (box.folder / "out.png").unlink()
    for words, most in (([], 4), (["--no-shared-memory"], 8)):  # three processes, and their threads
        for processes in range(1, most + 1):
            done = run(processes, *words)
            assert done.returncode == 5 and done.stdout == "" and len(done.stderr.splitlines()) == 1, (processes, words, done)
            assert "limit on processes" in done.stderr, (processes, words, done)
            assert box.files() == []


def test_ranks_have_all_descriptors_that_they_may_have(box):
    words = ["a cat", *SMALL, "--use-cfg-parallel"]
    few = 8
    box.refuse(3, "Too many open files (ulimit -n)", "generate", *words, "--model", MODEL, limits={resource.RLIMIT_NOFILE: (few, few)})
    box.generate(*words, limits={resource.RLIMIT_NOFILE: (few, 4096)})
    box.refuse(4, "Too many open files (ulimit -n)", "generate", "a cat", "--model", MODEL, *SMALL, "--data-parallel-degree", "16",
               "--num-images-per-prompt", "16", limits={resource.RLIMIT_NOFILE: 40})


def test_ranks_that_share_memory_need_no_proc(box):
    words = [box.program, "generate", "a cat", "--model", MODEL, "--quiet", "--use-cfg-parallel", *SMALL]
    mount = "mount -t tmpfs none /proc"
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode != 0:
        pytest.skip("no right to mount")
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}  # the ranks are forks, which have none of the threads before them
    done = subprocess.run(["unshare", "-m", "sh", "-c", f"{mount} && exec {shlex.join(map(os.fspath, words))}"], cwd=box.folder,
                          env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "out.png\n"), done


def test_out_of_memory_on_all_ranks(box):
    box.refuse(5, "not enough memory", "generate", "a cat", "--model", MODEL, "--dtype", "fp32", "--height", "4096",
               "--width", "4096", "--no-resolution-binning", "--num-images-per-prompt", "500", "--num-inference-steps", "1",
               "--use-cfg-parallel", limits={resource.RLIMIT_AS: 2_000_000_000})


def test_a_pause_is_no_failure(box):
    run = start_long_run(box, "--timeout", "30", steps="100")
    os.kill(run.ranks[1], signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(run.ranks[1], signal.SIGCONT)
    code, out, lines = run.finish()
    assert code == 0 and len(out.split()) == 16, (code, out, lines)


# Ctrl-Z stops all ranks, as a laptop that sleeps does. Rank 0 finds no sign of life of rank 1 when it goes on; the time in which
# rank 0 was stopped itself does not count.
@pytest.mark.alone
def test_a_pause_of_all_is_no_failure(box):
    run = start_long_run(box, "--timeout", "2.5", steps="50")
    os.kill(run.ranks[1], signal.SIGSTOP)
    time.sleep(0.5)
    others = (run.process.pid, run.ranks[0])
    for process in others:
        os.kill(process, signal.SIGSTOP)
    time.sleep(3)
    for process in reversed(others):
        os.kill(process, signal.SIGCONT)
    time.sleep(0.5)  # the others see that rank 1 is still stopped
    os.kill(run.ranks[1], signal.SIGCONT)
    code, out, lines = run.finish()
    assert code == 0 and len(out.split()) == 16, (code, out, lines)


@pytest.mark.alone
def test_a_long_computation_is_no_failure(box):
    # Only rank 0 decodes. Rank 1 waits for all its images, for longer than the timeout, and receives nothing meanwhile.
    pictures = 2
    for words in ([], ["--no-shared-memory"]):
        seconds, pictures = 0, pictures // 2
        while seconds < 2.5:  # doubles the images until decoding takes long enough on this machine
            pictures *= 2
            outcome = box.run("generate", "a cat", "--use-cfg-parallel", "--no-vae-parallel", "--num-images-per-prompt",
                              str(pictures), "--height", "512", "--width", "512", "--num-inference-steps", "1", "--timeout", "2",
                              "--report", "run.json", "-o", "p.png", *words)
            assert outcome.code == 0 and len(outcome.out.split()) == pictures, outcome
            seconds = box.report()["seconds"]["decode"]


def test_ctrl_c_ends_all_ranks(box):
    run = start_long_run(box)
    interrupt(run)
    code, out, lines = run.finish()
    assert code == 130 and out == "", (code, out, lines)
    assert lines[-1] == "tessera: stopped; nothing was written" and len(lines) == 2, lines
    assert box.files() == []


def test_ctrl_c_twice_and_termination_end_at_once(box):
    run = start_long_run(box, "--timeout", "60")
    os.kill(run.ranks[1], signal.SIGSTOP)  # otherwise the first signal might already end the run
    run.process.send_signal(signal.SIGINT)
    run.wait_for("tessera: ")
    run.process.send_signal(signal.SIGINT)
    code, _, lines = run.finish()
    assert code == 130, (code, lines)
    # A scheduler sends SIGUSR1 before a time limit, to the launcher or to all processes.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGXCPU):
        for to_ranks in (False, True):
            run = start_long_run(box)
            for process in [*(run.ranks if to_ranks else []), run.process.pid]:
                os.kill(process, number)
            code, _, lines = run.finish()
            assert code == 128 + number, (code, lines)
            assert box.files() == []


def test_nohup_outlives_the_terminal(box):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does; children inherit it
    try:
        run = start_long_run(box, "--timeout", "30", steps="100")
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for process in (run.process.pid, *run.ranks):
        os.kill(process, signal.SIGHUP)
    code, out, lines = run.finish()
    assert code == 0 and len(out.split()) == 16, (code, out, lines)
    run = start_long_run(box)
    run.process.send_signal(signal.SIGHUP)
    code, _, lines = run.finish()
    assert code == 129, (code, lines)


def test_ranks_die_with_their_parent(box):
    run = start_long_run(box)
    run.process.kill()
    run.process.communicate()
    deadline = time.monotonic() + 100
    while any(alive(rank) for rank in run.ranks):
        assert time.monotonic() < deadline, "orphans"
        time.sleep(0.05)
    assert box.files() == []
