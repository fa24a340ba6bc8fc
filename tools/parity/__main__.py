"""Compares the built programs with diffusers and transformers. `--short` takes fewer lines, samplers and random checkpoints, and the
smallest set of pipeline rows in which every option of all rows occurs.

The tools run in parallel, as forks of this process, so that what they all import is imported once: that takes five seconds, as long as some
of them run."""
import argparse
import os
import runpy
import sys
import tempfile
import traceback

import diffusers  # noqa: F401  (for all tools)
import diffusers.pipelines.flux2  # noqa: F401
import diffusers.pipelines.pixart_alpha  # noqa: F401
import diffusers.pipelines.stable_diffusion_xl  # noqa: F401
import diffusers.pipelines.z_image  # noqa: F401
import torch  # noqa: F401
import transformers  # noqa: F401


def commands(build, short):
    lines, samplers, generated = (500, 100, 5) if short else (10000, 1000, 1000)
    rows = ["--tessera", f"{build}/tessera", *(["--short"] if short else [])]
    tokenize = ["--binary", f"{build}/tests/tokenize_lines", "--count", str(lines)]
    return [["stable_diffusion", *rows], ["pixart", *rows], ["parallel", *rows], ["checkpoints", *rows],
            ["stablehlo", f"{build}/tessera", *(["--short"] if short else [])],
            ["images", "--tessera", f"{build}/tessera", "--reader", f"{build}/tests/read_pictures"],
            ["generated", "--tessera", f"{build}/tessera", "--count", str(generated)],
            ["samplers", "--binary", f"{build}/tests/run_samplers", "--count", str(samplers)],
            ["tokenizer", *tokenize], ["bpe_tokenizer", *tokenize], ["z_image", *rows],
            ["flux2_klein", *rows], ["flux2_dev", *rows]]


def start(command, output):
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.argv[1:] = command[1:]
        runpy.run_module(f"tools.parity.{command[0]}", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # a fork must not go on in the caller's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main():
    parser = argparse.ArgumentParser(prog="python -m tools.parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()
    running, failed, outputs = {}, 0, []

    def wait_for_one():
        process, status = os.wait()
        del running[process]
        return status != 0

    for command in commands(args.build, args.short):
        if len(running) >= len(os.sched_getaffinity(0)):
            failed += wait_for_one()
        outputs.append(tempfile.TemporaryFile("w+"))
        running[start(command, outputs[-1])] = command
    while running:
        failed += wait_for_one()
    for output in outputs:
        output.seek(0)
        print(output.read(), end="")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
