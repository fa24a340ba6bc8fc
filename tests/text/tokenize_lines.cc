// tokenize_lines FOLDER reads a JSON array of texts from stdin and writes, for each, the result of
// lower_and_strip and T5's ids, as a JSON array of [cleaned, ids]. tokenize_lines FOLDER CLASS writes the ids
// of a BPE tokenizer, whole and padded or cut to the model's length, as [ids, padded].
// tools/parity/tokenizer.py and tools/parity/bpe_tokenizer.py use it.
#include <algorithm>
#include <iostream>
#include <iterator>

#include "core/error.h"
#include "core/json.h"
#include "text/bpe_tokenizer.h"
#include "text/t5_tokenizer.h"
#include "text/unicode.h"

namespace {

constexpr int64_t kNoLimit = 1'000'000;

tessera::Json tokenize(const tessera::text::T5Tokenizer& tokenizer, const std::string& text) {
  return {tessera::text::lower_and_strip(text), tokenizer.encode(text, kNoLimit)};
}

tessera::Json tokenize(const tessera::text::BpeTokenizer& tokenizer, const std::string& text) {
  const int64_t length = std::min<int64_t>(tokenizer.model_max_length(), 512);
  return {tokenizer.encode(text, kNoLimit),
          tokenizer.pad_id() ? tokenizer.encode_padded(text, length) : tokenizer.encode(text, length)};
}

template <typename Tokenizer>
void run(const Tokenizer& tokenizer) {
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  tessera::Json rows = tessera::Json::array();
  for (const tessera::Json& line : tessera::parse_json(input, "stdin"))
    rows.push_back(tokenize(tokenizer, line.get_ref<const std::string&>()));
  std::cout << rows.dump() << '\n';
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2 && argc != 3) tessera::usage_error("tokenize_lines", "FOLDER or FOLDER CLASS is needed");
  if (argc == 2) {
    run(tessera::text::T5Tokenizer(argv[1]));
  } else {
    run(tessera::text::BpeTokenizer(argv[1], argv[2]));
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
