"""Selects the rows that a short parity run takes."""
import dataclasses
import re


def features(row):
    """Yields the features that a row tests: each field that is not at its default, options of a model or sampler by name, and
    the value of those that have few values."""
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        default = field.default if field.default is not dataclasses.MISSING else (
            field.default_factory() if field.default_factory is not dataclasses.MISSING else None)
        if field.name in ("name", "is_long") or value == default:
            continue
        if field.name == "scheduler":
            yield value[0]
            yield from (f"{value[0]} {key}" for key in value[1] if not key.startswith("beta_"))
        elif field.name == "flags":
            methods = re.findall(r"--[a-z-]+", value)
            yield from methods
            yield f"{len(methods)} methods"
        elif isinstance(value, dict):
            yield from (f"{field.name} {key}" for key in value)
        elif isinstance(value, (str, bool)):
            yield f"{field.name} {value}"
        elif field.name in ("guidance", "prompts", "size", "patches", "warmup", "layers", "sample_size"):
            kind = {"guidance": lambda: (value or 2) <= 1, "prompts": lambda: (len(value) > 1, "" in value, not all(map(str.isascii, value))),
                    "size": lambda: value is None or tuple(side % 16 == 0 for side in value)}
            yield f"{field.name} {kind.get(field.name, lambda: value > 1)()}"
        else:
            yield field.name


def short_list(rows):
    """Returns rows that together have every feature: all bf16 rows that are not long, since their errors are only judged
    together, because those of one row vary; then, repeatedly, the row with the most new features, the first of equals."""
    chosen = [(number, row) for number, row in rows if row.dtype == "bf16" and not row.is_long]
    left = [(number, row, set(features(row))) for number, row in rows if row.dtype != "bf16"]
    seen = {feature for _, row in chosen for feature in features(row)}
    while left:
        best = max(left, key=lambda each: len(each[2] - seen))
        if best[2] <= seen:
            break
        seen |= best[2]
        chosen.append(best[:2])
        left.remove(best)
    return sorted(chosen, key=lambda each: each[0])
