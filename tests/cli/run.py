#!/usr/bin/env python3
"""run.py PROGRAM [NAME...] [-MODULE...] [--alone | --together]: runs the tests of the command line, or those whose names contain
one of NAME, without those of the modules named with a dash. It only needs the standard library."""
import pathlib
import sys

import test_analyze  # noqa: F401  (registers its tests)
import test_auto  # noqa: F401
import test_broken_files  # noqa: F401
import test_calibrate  # noqa: F401
import test_compare  # noqa: F401  (registers its tests)
import test_denoiser_files  # noqa: F401
import test_errors  # noqa: F401
import test_flux2_klein  # noqa: F401
import test_generate  # noqa: F401
import test_launchers  # noqa: F401
import test_mesh  # noqa: F401
import test_models  # noqa: F401
import test_options  # noqa: F401
import test_plan  # noqa: F401
import test_published  # noqa: F401
import test_ranks  # noqa: F401
import test_recording  # noqa: F401
import test_requests  # noqa: F401
import test_stable_diffusion  # noqa: F401
import test_stablehlo  # noqa: F401
import test_trace  # noqa: F401
import test_video  # noqa: F401
import test_z_image  # noqa: F401
from harness import run_all

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: run.py PROGRAM [NAME...] [-MODULE...] [--alone | --together]")
    sys.exit(run_all(str(pathlib.Path(sys.argv[1]).resolve()), sys.argv[2:]))
