"""Writes tests/golden/stablehlo/: a program that JAX lowered, with and without its locations."""
import pathlib
import re

from tools.reference import jax_transformer

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "stablehlo"


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    program = jax_transformer.lowered()
    (FOLDER / "transformer.mlir").write_text(program.as_text())
    # Files of this machine, which say where JAX was called.
    text = re.sub(r'"[^"\n]*/([^"/\n]+\.py)"', r'"\1"', program.as_text(debug_info=True))
    (FOLDER / "transformer_locations.mlir").write_text(text)


if __name__ == "__main__":
    main()
