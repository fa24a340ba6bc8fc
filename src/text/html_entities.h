// The named character references of HTML 5, such as &eacute;.
#pragma once

#include <string>
#include <string_view>

namespace tessera::text {

struct HtmlEntity {
  std::u32string text;
  bool counts_without_semicolon = false;  // &eacute, for the references of the first HTML versions
};

// Returns the entity of a name without its semicolon, or null if HTML 5 has none. Capitals count.
const HtmlEntity* find_html_entity(std::string_view name);

}  // namespace tessera::text
