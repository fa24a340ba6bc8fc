"""Draws small changes of the sources at random, for tools/ci/mutants.py: the same for one seed and one state of the sources."""
import dataclasses
import random
import re

# What is no code of the line: comments and texts. Digits may be parted by quotes.
NO_CODE = re.compile(r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^\#[^\n]*""", re.S | re.M)

# clang-format puts blanks around operators of two sides, and none where `<`, `&&` and `*` belong to a type.
OTHERS = {" == ": " != ", " != ": " == ", " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " + ": " - ", " - ": " + ",
          " * ": " / ", " / ": " * ", " % ": " / ", " += ": " -= ", " -= ": " += ", " *= ": " /= ", "++": "--", "--": "++",
          " && ": " || ", " || ": " && ", "true": "false", "false": "true", "std::min": "std::max", "std::max": "std::min"}
TOKEN = re.compile("|".join(r"\b" + word + r"\b" if word[0].isalpha() else re.escape(word) for word in OTHERS))
NUMBER = re.compile(r"(?<![\w.'])(\d[\d']*)(\.\d+)?(?=[^\w.'x]|$)")
CONDITION = re.compile(r"\bif \(")
DECLARES = re.compile(r"\s*(template|using|namespace|enum|case)\b")
# Checks of what always holds, with the messages that nobody should see.
CHECKS = re.compile(r"\b(static_assert|TESSERA_CHECK)\([^;]*;")


@dataclasses.dataclass(frozen=True)
class Change:
    begin: int
    end: int
    text: str


def blanked(found):
    return re.sub(r"[^\n]", " ", found.group())


def without_texts(text):
    """Returns the text with blanks in place of comments, literals of text, directives, and checks."""
    return CHECKS.sub(blanked, NO_CODE.sub(blanked, text))


def end_of_condition(line, begin):
    """Returns where the bracket that is open at `begin` closes, or None if it does not, or if it declares something."""
    depth = 1
    for at in range(begin, len(line)):
        depth += (line[at] == "(") - (line[at] == ")")
        if depth == 0:
            condition = line[begin:at]
            declares = ";" in condition or re.search(r"[\w>&*] \w+ = ", condition)
            return None if declares else at
    return None


def changes_of(line, at):
    """Returns the changes of one token in a line of code that begins at `at`."""
    if DECLARES.match(line):
        return []
    changes = [Change(at + found.start(), at + found.end(), OTHERS[found.group()]) for found in TOKEN.finditer(line)]
    for found in NUMBER.finditer(line):
        whole, rest = found.groups()
        changes.append(Change(at + found.start(), at + found.end(), str(int(whole.replace("'", "")) + 1) + (rest or "")))
    for found in CONDITION.finditer(line):
        end = end_of_condition(line, found.end())
        if end is not None:
            changes.append(Change(at + found.end(), at + end, f"!({line[found.end():end]})"))
    return changes


def lines_with_changes(text):
    """Yields the changes of each line that has any."""
    code, at = without_texts(text), 0
    for line in code.splitlines(keepends=True):
        if changes := changes_of(line.rstrip("\n"), at):
            yield changes
        at += len(line)


def draw(root, count, seed):
    """Returns `count` of (file, its text, its text with one token changed), each of another line."""
    texts = {path: path.read_text() for path in sorted((root / "src").rglob("*.[hc]*"))}
    lines = [(path, changes) for path, text in texts.items() for changes in lines_with_changes(text)]
    chance = random.Random(seed)
    drawn = []
    for path, changes in chance.sample(lines, min(count, len(lines))):
        change, text = chance.choice(changes), texts[path]
        new = change.text
        if new.startswith("!("):  # of the text itself, whose literals are no blanks
            new = f"!({text[change.begin:change.end]})"
        drawn.append((path.relative_to(root), text, text[:change.begin] + new + text[change.end:]))
    return drawn
