"""Writes src/text/html_entities.cc: the named character references of HTML 5, as Python's html.entities has them."""
import html.entities
import pathlib
import textwrap

TARGET = pathlib.Path(__file__).resolve().parent.parent / "src" / "text" / "html_entities.cc"

CODE = '''// Written by tools/make_html_entities.py.
#include "text/html_text.h"

#include <charconv>
#include <unordered_map>

namespace tessera::text {{
namespace {{

// Each row is a name, '=' or, if the name counts without a semicolon too, '!', and the hexadecimal code
// points of the text with '+' between them.
// clang-format off
constexpr std::string_view kRows =
{rows};
// clang-format on

std::unordered_map<std::string_view, HtmlEntity> read_rows() {{
  std::unordered_map<std::string_view, HtmlEntity> entities;
  for (std::string_view rows = kRows; !rows.empty();) {{
    const std::string_view row = rows.substr(0, rows.find(' '));
    rows.remove_prefix(row.size() + 1);
    const size_t name_length = row.find_first_of("=!");
    HtmlEntity& entity = entities[row.substr(0, name_length)];
    entity.counts_without_semicolon = row[name_length] == '!';
    for (size_t begin = name_length; begin != std::string_view::npos; begin = row.find('+', begin + 1)) {{
      uint32_t character = 0;
      std::from_chars(row.data() + begin + 1, row.data() + row.size(), character, 16);
      entity.text += static_cast<char32_t>(character);
    }}
  }}
  return entities;
}}

}}  // namespace

const HtmlEntity* find_html_entity(std::string_view name) {{
  static const auto& entities = *new std::unordered_map<std::string_view, HtmlEntity>(read_rows());
  const auto found = entities.find(name);
  return found == entities.end() ? nullptr : &found->second;
}}

}}  // namespace tessera::text
'''


def main():
    entities = html.entities.html5
    rows = []
    for name in sorted(name[:-1] for name in entities if name.endswith(";")):
        text = entities[name + ";"]
        assert entities.get(name, text) == text
        rows.append(name + ("!" if name in entities else "=") + "+".join(f"{ord(character):x}" for character in text))
    assert all(name.endswith(";") or name + ";" in entities for name in entities)
    lines = textwrap.wrap(" ".join(rows), 103, break_long_words=False, break_on_hyphens=False)
    TARGET.write_text(CODE.format(rows="\n".join(f'    "{line} "' for line in lines)))


if __name__ == "__main__":
    main()
