"""Writes tests/golden/defaults.json: the options of each class that a configuration names, with the values that diffusers and
transformers take where a file lacks them. They come from the signatures of the constructors; parameters without a default, and
those whose default is no JSON, are left out."""
import inspect
import json
import pathlib

import diffusers
import transformers

from tools.golden.samplers import ROWS

MODELS = (diffusers.AutoencoderKL, diffusers.AutoencoderKLFlux2, diffusers.Flux2Transformer2DModel,
          diffusers.PixArtTransformer2DModel, diffusers.UNet2DConditionModel, diffusers.ZImageTransformer2DModel,
          transformers.CLIPTextConfig, transformers.T5Config, transformers.Qwen3Config)
SCHEDULERS = [getattr(diffusers, name) for name in sorted({row[1] for row in ROWS})]


def defaults(of_class):
    parameters = inspect.signature(of_class.__init__).parameters.values()
    return {each.name: each.default for each in parameters
            if each.default is None or isinstance(each.default, (bool, int, float, str, list, tuple))}


def main():
    text = ",\n".join(f"{json.dumps(each.__name__)}: {json.dumps(defaults(each))}" for each in (*MODELS, *SCHEDULERS))
    path = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "defaults.json"
    path.write_text(f"{{\n{text}\n}}\n")


if __name__ == "__main__":
    main()
