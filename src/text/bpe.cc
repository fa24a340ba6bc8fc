#include "text/bpe.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "core/error.h"
#include "core/text.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

constexpr int64_t kMaxGap = 10'000;  // largest number of consecutive ids without a token
constexpr std::string_view kHeader = "#version";

// Parses "a b"; nullopt if it is not two tokens with one space between them.
std::optional<Merge> split_merge(std::string_view text) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
    return std::nullopt;
  return Merge{std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
}

std::optional<Merge> read_merge(const Json& row) {
  if (row.is_string()) return split_merge(row.get_ref<const std::string&>());
  if (!row.is_array() || row.size() != 2 || !row[0].is_string() || !row[1].is_string()) return std::nullopt;
  return Merge{row[0].get<std::string>(), row[1].get<std::string>()};
}

// Ids are below 2^31 (parse_vocabulary()).
uint64_t pair_key(int64_t left, int64_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint64_t>(right);
}

// Holds a possible merge. Of those with the same rank, the leftmost comes first.
struct Candidate {
  int64_t rank;
  ptrdiff_t position;
  int64_t id;

  bool operator>(const Candidate& other) const {
    return std::tie(rank, position) > std::tie(other.rank, other.position);
  }
};

}  // namespace

TokenMap parse_vocabulary(const Json& tokens, const std::string& where) {
  if (!tokens.is_object() || tokens.empty())
    input_error(where, "the vocabulary must be an object of tokens and their ids");
  TokenMap ids;
  std::vector<std::pair<int64_t, const std::string*>> order;
  for (const auto& item : tokens.items()) {
    const Json& id = item.value();
    if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<int32_t>::max())
      input_error(where, "the id of the token '{}' must be a number from 0 to 2147483647", item.key());
    order.emplace_back(id.get<int64_t>(), &ids.emplace(item.key(), id.get<int64_t>()).first->first);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.first < b.first || (a.first == b.first && *a.second < *b.second);
  });
  int64_t before = -1;
  for (const auto& [id, token] : order) {
    if (id == before) input_error(where, "two tokens have the id {}; one is '{}'", id, *token);
    if (id - before > kMaxGap + 1)
      input_error(where, "no token has an id from {} to {}; '{}' is next", before + 1, id - 1, *token);
    before = id;
  }
  return ids;
}

std::vector<Merge> parse_merge_lines(std::string_view lines, const std::string& where) {
  std::vector<Merge> merges;
  for (int64_t number = 1; !lines.empty(); ++number) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with(kHeader)) continue;
    auto merge = split_merge(line);
    if (!merge || find_invalid_utf8(line))
      input_error(where, "line {} must be two tokens with a space between them", number);
    merges.push_back(std::move(*merge));
  }
  return merges;
}

std::vector<Merge> parse_merge_rows(const Json& rows, const std::string& where) {
  if (!rows.is_array()) input_error(where, "'merges' must be an array");
  std::vector<Merge> merges;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].is_string() && rows[i].get_ref<const std::string&>().starts_with(kHeader)) continue;
    auto merge = read_merge(rows[i]);
    if (!merge) input_error(where, "'merges' row {} must be \"a b\" or [\"a\", \"b\"]", i);
    merges.push_back(std::move(*merge));
  }
  return merges;
}

Bpe::Bpe(TokenMap vocabulary, const std::vector<Merge>& merges, BpeOptions options, const std::string& where)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)) {
  for (const auto& [token, id] : vocabulary_) max_id_ = std::max(max_id_, id);
  const auto require = [&](const std::string& token, size_t rank) {
    if (const auto id = find(token)) return *id;
    input_error(where, "merge {}, '{} {}': '{}' is not in the vocabulary", rank + 1, merges[rank].left,
                merges[rank].right, token);
  };
  products_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const uint64_t pair = pair_key(require(left, rank), require(right, rank));
    products_.insert_or_assign(pair, Product{static_cast<int64_t>(rank), require(left + right, rank)});
  }
  if (!options_.unknown_token) return;
  unknown_id_ = find(*options_.unknown_token);
  if (!unknown_id_)
    input_error(where, "the unknown token '{}' is not in the vocabulary", *options_.unknown_token);
}

std::optional<int64_t> Bpe::find(std::string_view token) const {
  const auto place = vocabulary_.find(token);
  if (place == vocabulary_.end()) return std::nullopt;
  return place->second;
}

void Bpe::encode(std::string_view word, std::vector<int64_t>& ids) const {
  if (options_.ignore_merges) {
    if (const auto id = find(word)) return ids.push_back(*id);
  }
  std::vector<Symbol> parts = symbols(word);
  merge(parts);
  for (const Symbol& symbol : parts) {
    if (!symbol.merged_away) ids.push_back(symbol.id);
  }
}

std::vector<Bpe::Symbol> Bpe::symbols(std::string_view word) const {
  std::vector<Symbol> result;
  bool after_unknown = false;
  std::string last;
  for (size_t position = 0; position < word.size();) {
    std::string_view character = word.substr(position, character_length(word[position]));
    position += character.size();
    if (position == word.size()) {
      last = std::string(character) + options_.end_of_word_suffix;
      character = last;
    }
    const auto known = find(character);
    const auto id = known ? known : unknown_id_;
    if (id && (known || !after_unknown || !options_.fuse_unknown)) {
      const auto place = static_cast<ptrdiff_t>(result.size());
      result.push_back({*id, place - 1, place + 1, false});
    }
    after_unknown = !known;
  }
  if (!result.empty()) result.back().next = -1;
  return result;
}

void Bpe::merge(std::vector<Symbol>& symbols) const {
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](ptrdiff_t left, ptrdiff_t right) {
    if (left < 0 || right < 0) return;
    if (const Product* found = product(symbols[left].id, symbols[right].id))
      queue.push({found->rank, left, found->id});
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i)
    offer(static_cast<ptrdiff_t>(i), static_cast<ptrdiff_t>(i) + 1);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[top.position];
    if (left.merged_away || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    // Another merge may have changed the pair since. If the new pair has the same product, it is merged now,
    // as in Hugging Face's tokenizers.
    const Product* found = product(left.id, right.id);
    if (found == nullptr || found->id != top.id) continue;
    left.id = top.id;
    left.next = right.next;
    right.merged_away = true;
    if (left.next >= 0) symbols[left.next].previous = top.position;
    offer(left.previous, top.position);
    offer(top.position, left.next);
  }
}

const Bpe::Product* Bpe::product(int64_t left, int64_t right) const {
  const auto place = products_.find(pair_key(left, right));
  return place == products_.end() ? nullptr : &place->second;
}

}  // namespace tessera::text
