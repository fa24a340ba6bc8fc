// tokenize_lines FOLDER: reads a JSON array of texts from stdin and writes, for each, what clean_prompt makes
// of it and its ids, as a JSON array of [cleaned, ids]. For tools/parity_tokenizer.py.
#include <iostream>
#include <iterator>

#include "core/error.h"
#include "core/json.h"
#include "text/t5_tokenizer.h"
#include "text/unicode.h"

int main(int argc, char** argv) try {
  if (argc != 2) tessera::usage_error("tokenize_lines", "one argument is needed: the tokenizer's folder");
  const tessera::text::T5Tokenizer tokenizer(argv[1]);
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  tessera::Json rows = tessera::Json::array();
  for (const tessera::Json& line : tessera::parse_json(input, "stdin")) {
    const auto& text = line.get_ref<const std::string&>();
    rows.push_back({tessera::text::clean_prompt(text), tokenizer.encode(text, 1'000'000)});
  }
  std::cout << rows.dump() << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
