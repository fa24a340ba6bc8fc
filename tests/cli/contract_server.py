"""contract_server.py PROGRAM [--model MODEL] [--max-examples N] [--include REGEX]: sends a server what docs/openapi.yaml allows and what it
does not, by schemathesis, and checks each answer against the document. Its Python needs schemathesis and PyYAML."""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import yaml

from server import Server

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KEY = "0123456789abcdef-contract"
# What a model takes cannot be said by a schema, so that a request may be refused that it allows.
UNCHECKED = "positive_data_acceptance"
# Operations that are there to answer 501, which schemathesis holds for a failure.
REFUSED = "img2img|extra-|interrogate|load-checkpoint|(create|train)/"


def document():
    """The document with one form of the key, since the check of wrong keys changes one form alone."""
    with (ROOT / "docs" / "openapi.yaml").open() as file:
        value = yaml.safe_load(file)
    value["security"] = [{"bearer": []}]
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--model", default=os.fspath(ROOT / "models" / "shapes"))
    parser.add_argument("--max-examples", default="30")
    parser.add_argument("--phases", default="examples,coverage,fuzzing,stateful")
    parser.add_argument("--include", default=".", help="regular expression of paths")
    parser.add_argument("--workers", default="1")
    options = parser.parse_args()
    tool = shutil.which("schemathesis", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]))
    if not tool:
        sys.exit("contract_server.py: there is no schemathesis; pip install schemathesis")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        keys = folder / "keys"
        keys.write_text(f"contract {KEY}\n")
        keys.chmod(0o600)
        (folder / "openapi.json").write_text(json.dumps(document()))
        # Small pictures of few steps; jobs that nobody waits for do not hold up the others.
        limits = ["--max-steps", 20, "--max-pixels", 128 * 128, "--max-prompts", 2, "--max-queue", 4]
        with Server(os.path.realpath(options.program), folder, "--model", options.model, "--api-keys", keys, *limits) as server:
            words = [tool, "run", folder / "openapi.json", "--url", f"http://127.0.0.1:{server.port}", "--header",
                     f"Authorization: Bearer {KEY}", "--max-examples", options.max_examples, "--phases", options.phases,
                     "--include-path-regex", options.include, "--request-timeout", "60", "--workers", options.workers,
                     "--generation-database", "none", "--seed", "1", "--warnings", "off", "--continue-on-failure"]
            # Those that are there to answer 501 are not asked whether they fail.
            done = [subprocess.run([*words, "--exclude-checks", UNCHECKED, "--exclude-path-regex", REFUSED], cwd=folder).returncode]
            if options.include == ".":
                words[words.index("--include-path-regex") + 1], words[words.index("--phases") + 1] = REFUSED, "coverage,fuzzing"
                done.append(subprocess.run([*words, "--exclude-checks", f"{UNCHECKED},not_a_server_error"], cwd=folder).returncode)
            assert server.get("/health")[0] == 200
            code = server.stop()
            log = server.log_text()
    for line in log.splitlines():
        if not line.startswith("{"):
            print(line)
    sys.exit(max(done) or code)


if __name__ == "__main__":
    main()
