#include "text/t5_tokenizer_files.h"

#include "core/error.h"
#include "core/file.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer_config.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxModelBytes = uint64_t{256} << 20;
constexpr int64_t kDefaultSentinels = 100;
constexpr int64_t kMaxSentinels = 100'000;

std::string sentinel(int64_t index) {
  return fmt::format("<extra_id_{}>", index);
}

void add(std::vector<AddedToken>& tokens, AddedToken token) {
  if (!has_text(tokens, token.text)) tokens.push_back(std::move(token));
}

// transformers ignores a list of extra tokens if there is also a table of named ones; the list of the
// sentinels is the default anyway.
void refuse_list_beside_table(const JsonConfig& config) {
  constexpr const char *kTable = "extra_special_tokens", *kList = "additional_special_tokens";
  const Json* const table = config.value(kTable);
  const Json* const list = config.value(kList);
  if (!table || !table->is_object() || !list || !list->is_array()) return;
  for (const Json& token : *list) {
    const std::string text = parse_added_token(token, false, config.where()).text;
    if (!text.starts_with("<extra_id_"))
      config.refuse(kList,
                    fmt::format("transformers ignores this list where {} has names; leave one out", kTable));
  }
}

}  // namespace

T5TokenizerFiles read_t5_tokenizer_files(const fs::path& folder) {
  require_folder(folder);
  const fs::path json = folder / "tokenizer.json";
  const fs::path spiece = folder / "spiece.model";
  const bool has_json = type_at(json) == fs::file_type::regular;
  if (!has_json && type_at(spiece) != fs::file_type::regular) {
    input_error(folder.string(), "no T5 tokenizer: neither spiece.model nor tokenizer.json");
  }
  const TokenizerConfig config(folder);
  const JsonConfig document = has_json ? JsonConfig::read(json) : JsonConfig();
  const int64_t sentinels = config.values().integer("extra_ids", kDefaultSentinels, Null::kDefault);
  if (sentinels < 0 || sentinels > kMaxSentinels)
    config.values().fail("extra_ids", "a number from 0 to 100000");

  T5TokenizerFiles files;
  files.where = (has_json ? json : spiece).string();
  files.model = has_json ? parse_tokenizer_json(document)
                         : parse_sentencepiece_model(read_file(spiece, kMaxModelBytes), files.where);
  if (!has_json) {
    for (int64_t i = sentinels - 1; i >= 0; --i) files.model.pieces.push_back({sentinel(i), 0.0});
  }

  refuse_list_beside_table(config.values());
  for (const auto& [id, token] : config.saved_tokens(document)) add(files.tokens, token);
  for (const char* token : {"</s>", "<unk>", "<pad>"}) add(files.tokens, {.text = token});
  for (const AddedToken& token : config.named_tokens()) add(files.tokens, token);
  for (const std::string& symbol : files.model.symbols) add(files.tokens, {.text = symbol});
  // transformers has one list of extra tokens. If a file sets it, sentinels are not special tokens.
  for (int64_t i = 0; !config.extra_tokens() && i < sentinels; ++i) add(files.tokens, {.text = sentinel(i)});
  files.end_token = config.token("eos_token").value_or(AddedToken{.text = "</s>"}).text;
  files.truncation_side = config.truncation_side(document);
  return files;
}

}  // namespace tessera::text
