#include "text/t5_tokenizer_files.h"

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "text/tokenizer_json.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;
using Token = T5TokenizerFiles::Token;

constexpr uint64_t kMaxModelBytes = uint64_t{256} << 20;
constexpr int64_t kDefaultSentinels = 100;
constexpr int64_t kMaxSentinels = 100'000;

JsonConfig read_if_there(const fs::path& path) {
  std::error_code code;
  return fs::is_regular_file(path, code) ? JsonConfig::read(path) : JsonConfig(Json::object(), path.string());
}

std::string sentinel(int64_t index) {
  return fmt::format("<extra_id_{}>", index);
}

void add(std::vector<Token>& tokens, Token token) {
  const auto same = [&](const Token& other) { return other.text == token.text; };
  if (std::none_of(tokens.begin(), tokens.end(), same)) tokens.push_back(std::move(token));
}

// A token as configs write it: its text, or an object with the text and flags. White space around a token is
// dropped by the splitting into words in any case, so `lstrip` and `rstrip` change nothing.
Token parse_token(const Json& value, bool normalized, const std::string& where) {
  if (value.is_string()) return {value.get<std::string>(), normalized};
  const JsonConfig token(value, where);
  if (token.boolean("single_word", false)) token.fail("single_word", "false");
  return {token.string("content"), token.boolean("normalized", normalized)};
}

// The special tokens that `config` names: those for the end, the unknown and padding, and the further ones.
std::vector<Token> named_tokens(const JsonConfig& config) {
  std::vector<Token> tokens;
  for (const char* key : {"eos_token", "unk_token", "pad_token"}) {
    if (config.has(key)) add(tokens, parse_token(config.values()[key], false, config.where()));
  }
  for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
    if (!config.has(key) || !config.values()[key].is_array()) continue;
    for (const Json& value : config.values()[key]) add(tokens, parse_token(value, false, config.where()));
  }
  return tokens;
}

// Tokens that were added to the vocabulary of a saved tokenizer, by id.
std::map<int64_t, Token> saved_tokens(const fs::path& folder, const JsonConfig& config,
                                      const JsonConfig& document, const std::vector<Token>& named) {
  std::map<int64_t, Token> tokens;
  if (config.has("added_tokens_decoder")) {
    const Json& values = config.values()["added_tokens_decoder"];
    if (!values.is_object()) config.fail("added_tokens_decoder", "an object");
    for (const auto& [id, value] : values.items()) {
      const bool digits =
          !id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == std::string::npos;
      if (!digits) config.fail("added_tokens_decoder", "an object whose keys are ids");
      const bool special = value.is_object() && value.value("special", Json(false)) == Json(true);
      tokens.emplace(std::stoll(id), parse_token(value, !special, config.where()));
    }
    return tokens;
  }
  const JsonConfig added = read_if_there(folder / "added_tokens.json");
  for (const auto& item : added.values().items()) {
    const bool special =
        std::any_of(named.begin(), named.end(), [&](const Token& t) { return t.text == item.key(); });
    if (!item.value().is_number_integer()) added.fail(item.key(), "an integer");
    tokens.insert_or_assign(item.value().get<int64_t>(), Token{item.key(), !special});
  }
  if (document.has("added_tokens") && document.values()["added_tokens"].is_array()) {
    for (const Json& value : document.values()["added_tokens"]) {
      const JsonConfig token(value, document.where());
      const bool special = token.boolean("special", false);
      tokens.insert_or_assign(token.integer("id"), parse_token(value, !special, document.where()));
    }
  }
  return tokens;
}

}  // namespace

T5TokenizerFiles read_t5_tokenizer_files(const fs::path& folder) {
  std::error_code code;
  if (!fs::is_directory(folder, code)) input_error(folder.string(), "no such folder");
  const fs::path json = folder / "tokenizer.json";
  const fs::path spiece = folder / "spiece.model";
  const bool has_json = fs::is_regular_file(json, code);
  if (!has_json && !fs::is_regular_file(spiece, code)) {
    input_error(folder.string(), "no T5 tokenizer: neither spiece.model nor tokenizer.json");
  }
  const JsonConfig config = read_if_there(folder / "tokenizer_config.json");
  const JsonConfig document = has_json ? JsonConfig::read(json) : JsonConfig();
  const int64_t sentinels = config.integer("extra_ids", kDefaultSentinels);
  if (sentinels < 0 || sentinels > kMaxSentinels) config.fail("extra_ids", "a number from 0 to 100000");

  T5TokenizerFiles files;
  files.where = (has_json ? json : spiece).string();
  files.model = has_json ? parse_tokenizer_json(document)
                         : parse_sentencepiece_model(read_file(spiece, kMaxModelBytes), files.where);
  if (!has_json) {
    for (int64_t i = sentinels - 1; i >= 0; --i) files.model.pieces.push_back({sentinel(i), 0.0});
  }

  // The older file counts only where the newer one lists no tokens.
  std::vector<Token> named;
  if (!config.has("added_tokens_decoder")) {
    named = named_tokens(read_if_there(folder / "special_tokens_map.json"));
  }
  for (const Token& token : named_tokens(config)) add(named, token);

  for (const auto& [id, token] : saved_tokens(folder, config, document, named)) add(files.tokens, token);
  for (const char* token : {"</s>", "<unk>", "<pad>"}) add(files.tokens, {token, false});
  for (const Token& token : named) add(files.tokens, token);
  for (const std::string& symbol : files.model.symbols) add(files.tokens, {symbol, false});
  for (int64_t i = 0; i < sentinels; ++i) add(files.tokens, {sentinel(i), false});
  files.end_token = config.has("eos_token")
                        ? parse_token(config.values()["eos_token"], false, config.where()).text
                        : "</s>";
  return files;
}

}  // namespace tessera::text
