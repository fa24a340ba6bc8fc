#include "text/bpe_tokenizer_files.h"

#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "text/tokenizer_config.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxMergesBytes = uint64_t{256} << 20;
constexpr int64_t kNoMaxLength = std::numeric_limits<int32_t>::max();

const Json& value_or_null(const JsonConfig& config, const std::string& key) {
  static const Json null;
  return config.has(key) ? config.values()[key] : null;
}

// Replaces the token with the same text, or appends `token`.
void set_token(std::vector<AddedToken>& tokens, const AddedToken& token) {
  const auto place =
      std::find_if(tokens.begin(), tokens.end(), [&](const AddedToken& t) { return t.text == token.text; });
  if (place != tokens.end()) {
    *place = token;
  } else {
    tokens.push_back(token);
  }
}

// Adds tokens that are not present yet; of two with the same text, the later one counts. With `raw`, existing
// tokens too are matched in the raw text from now on.
void add_special_tokens(const std::vector<AddedToken>& special, bool raw, std::vector<AddedToken>& tokens) {
  const std::vector<AddedToken> saved = tokens;
  for (const AddedToken& token : special) {
    if (raw) {
      set_token(tokens, {.text = token.text});
    } else if (!has_text(saved, token.text)) {
      set_token(tokens, token);
    }
  }
}

// transformers writes 1e30 for an unlimited length.
int64_t parse_max_length(const JsonConfig& config) {
  const auto largest = static_cast<double>(kNoMaxLength);
  const double length = config.number("model_max_length", largest, Null::kDefault);
  if (!(length >= 1)) config.fail("model_max_length", "a number from 1 on");
  return static_cast<int64_t>(std::min(length, largest));
}

// Parses the options that a class or a tokenizer.json has in addition to tokens and merges.
BpeOptions parse_bpe_options(const JsonConfig& model) {
  const std::string type = model.string("type", "BPE", Null::kDefault);
  if (type != "BPE") input_error(model.where(), "a tokenizer of type {}; BPE is needed", type);
  if (model.number("dropout", 0, Null::kDefault) != 0) model.fail("dropout", "0");
  if (model.boolean("byte_fallback", false)) model.fail("byte_fallback", "false");
  if (!model.string("continuing_subword_prefix", "", Null::kDefault).empty())
    model.fail("continuing_subword_prefix", "empty");
  BpeOptions options;
  if (model.has("unk_token")) options.unknown_token = model.string("unk_token");
  options.fuse_unknown = model.boolean("fuse_unk", false);
  options.end_of_word_suffix = model.string("end_of_word_suffix", "", Null::kDefault);
  options.ignore_merges = model.boolean("ignore_merges", false);
  return options;
}

std::string require_token(const TokenizerConfig& config, const char* key, const Json& defaults) {
  if (const auto token = config.token(key, defaults)) return token->text;
  config.values().fail(key, "a token");
}

// Replaces the settings of tokenizer.json by those of the class `row`.
void apply_class(const TokenizerClass& row, const JsonConfig& description, const TokenizerConfig& config,
                 const Json& defaults, BpeTokenizerFiles& files) {
  files.options = parse_bpe_options(JsonConfig(description.values()["model"], description.where()));
  if (row.maps_to_unknown) files.options.unknown_token = require_token(config, "unk_token", defaults);
  files.normalizer = description.values()["normalizer"];
  files.pre_tokenizer = description.values()["pre_tokenizer"];
  if (config.values().boolean("add_prefix_space", false)) config.values().fail("add_prefix_space", "false");
  if (!row.surrounds_text) return;
  files.post_processor = Json();
  files.before = {require_token(config, "bos_token", defaults)};
  files.after = {require_token(config, "eos_token", defaults)};
}

// Reads the tokens around a text from a folder without a tokenizer.json.
void read_surrounding_tokens(const TokenizerConfig& config, const Json& defaults, BpeTokenizerFiles& files) {
  const auto add = [&](const char* flag, const char* key, std::vector<std::string>& tokens) {
    const auto token = config.token(key, defaults);
    if (token && config.values().boolean(flag, false)) tokens.push_back(token->text);
  };
  add("add_bos_token", "bos_token", files.before);
  add("add_eos_token", "eos_token", files.after);
}

BpeTokenizerFiles read_vocabulary_and_merges(const fs::path& folder) {
  BpeTokenizerFiles files;
  files.where = (folder / "vocab.json").string();
  files.vocabulary = parse_vocabulary(read_json(folder / "vocab.json"), files.where);
  const fs::path merges = folder / "merges.txt";
  files.merges = parse_merge_lines(read_file(merges, kMaxMergesBytes), merges.string());
  return files;
}

// See transformers/models/clip/tokenization_clip.py and qwen2/tokenization_qwen2.py.
constexpr TokenizerClass kClasses[] = {
    {.name = "CLIPTokenizer",
     .description = R"json({
       "normalizer": {"type": "Sequence", "normalizers": [
         {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, {"type": "Lowercase"}]},
       "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
         {"type": "Split", "behavior": "Removed", "invert": true, "pattern": {"Regex":
           "<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+"}},
         {"type": "ByteLevel", "add_prefix_space": false}]},
       "model": {"end_of_word_suffix": "</w>"},
       "special_tokens": {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>",
                          "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}})json",
     .surrounds_text = true,
     .maps_to_unknown = true,
     .finds_raw = false},
    {.name = "Qwen2Tokenizer",
     .description = R"json({
       "normalizer": {"type": "NFC"},
       "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
         {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
           "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
         {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
       "model": {},
       "special_tokens": {"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
                          "pad_token": "<|endoftext|>"}})json",
     .surrounds_text = false,
     .maps_to_unknown = false,
     .finds_raw = true},
};

}  // namespace

BpeTokenizerFiles parse_bpe_tokenizer_json(const JsonConfig& document) {
  if (!document.has("model") || !document.values()["model"].is_object()) document.fail("model", "an object");
  const JsonConfig model(document.values()["model"], document.where());
  BpeTokenizerFiles files;
  files.where = document.where();
  files.options = parse_bpe_options(model);
  files.vocabulary = parse_vocabulary(value_or_null(model, "vocab"), document.where());
  files.merges = parse_merge_rows(value_or_null(model, "merges"), document.where());
  files.normalizer = value_or_null(document, "normalizer");
  files.pre_tokenizer = value_or_null(document, "pre_tokenizer");
  files.post_processor = value_or_null(document, "post_processor");
  for (const auto& [id, token] : parse_added_tokens(document)) set_token(files.tokens, token);
  files.model_max_length = kNoMaxLength;
  return files;
}

BpeTokenizerFiles read_bpe_tokenizer_files(const fs::path& folder, const std::string& tokenizer_class) {
  require_folder(folder);
  const TokenizerConfig config(folder);
  const std::string name = tokenizer_class.empty()
                               ? config.values().string("tokenizer_class", "", Null::kDefault)
                               : tokenizer_class;
  const TokenizerClass* row = find_tokenizer_class(name);
  const fs::path json = folder / "tokenizer.json";
  const bool has_json = type_at(json) == fs::file_type::regular;
  if (!has_json && row == nullptr) {
    input_error(folder.string(), "there is no tokenizer.json, which tokenizers of class '{}' need", name);
  }
  if (!has_json && type_at(folder / "vocab.json") == fs::file_type::not_found) {
    input_error(folder.string(),
                "holds neither tokenizer.json nor vocab.json with merges.txt; get the files of the tokenizer "
                "again");
  }
  const JsonConfig document = has_json ? JsonConfig::read(json) : JsonConfig();
  BpeTokenizerFiles files =
      has_json ? parse_bpe_tokenizer_json(document) : read_vocabulary_and_merges(folder);

  Json defaults = Json::object();
  if (row != nullptr) {
    const JsonConfig description(parse_json(row->description, name), name);
    defaults = description.values()["special_tokens"];
    files.tokens.clear();
    if (!has_json) read_surrounding_tokens(config, defaults, files);
    apply_class(*row, description, config, defaults, files);
  }
  for (const auto& [id, token] : config.saved_tokens(document)) set_token(files.tokens, token);
  add_special_tokens(config.named_tokens(defaults), row != nullptr && row->finds_raw, files.tokens);

  if (const auto pad = config.token("pad_token", defaults)) files.pad_token = pad->text;
  const std::string side = config.values().string("padding_side", "right", Null::kDefault);
  if (side != "left" && side != "right") config.values().fail("padding_side", "left or right");
  files.pads_left = side == "left";
  files.model_max_length = parse_max_length(config.values());
  if (config.values().boolean("split_special_tokens", false))
    config.values().fail("split_special_tokens", "false");
  files.truncation_side = config.truncation_side(document);
  return files;
}

const TokenizerClass* find_tokenizer_class(std::string_view name) {
  if (name.ends_with("Fast")) name.remove_suffix(4);
  for (const TokenizerClass& row : kClasses) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace tessera::text
