// Determines which tensors of files describe how others are coded.
#include <algorithm>
#include <array>
#include <string_view>

#include "core/error.h"
#include "core/json.h"
#include "weights/named_tensor.h"

namespace tessera::weights {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr auto kFactors = std::to_array<std::string_view>({".scale_weight", ".weight_scale"});
constexpr auto kFactorsOfInput = std::to_array<std::string_view>({".scale_input", ".input_scale"});
constexpr std::string_view kFormat = ".comfy_quant", kMarker = "scaled_fp8";
constexpr const char* kFormats = "_quantization_metadata";
constexpr const char* kTakeAnother =
    "take a file of bf16, fp16, or fp8 with a factor for each weight or each of its rows";

bool is_eight_bit(const TensorEntry& entry) {
  return entry.dtype == at::kFloat8_e4m3fn || entry.dtype == at::kFloat8_e5m2;
}

int64_t count_in(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// The name without its ending, if it has one of these.
template <size_t count>
std::optional<std::string> without_end(const std::string& key,
                                       const std::array<std::string_view, count>& ends) {
  for (const std::string_view end : ends) {
    if (key.ends_with(end)) return key.substr(0, key.size() - end.size());
  }
  return std::nullopt;
}

// Whether the tensor, which some converters write in each file, adds nothing to the factors.
bool is_marker(const std::string& key) {
  return key == kMarker || key.ends_with(fmt::format(".{}", kMarker));
}

class FactorReader {
 public:
  explicit FactorReader(const TensorFiles& files) : files_(files) {
    for (size_t file = 0; file < files.size(); ++file) {
      for (const auto& [key, entry] : files[file]->header().tensors) {
        if (is_marker(key)) continue;
        const auto [place, is_new] = tensors_.emplace(key, NamedTensor{.entry = entry, .file = file});
        if (!is_new)
          input_error(path(file), "'{}' is also in {}", key,
                      files[place->second.file]->path().filename().string());
      }
    }
    result = tensors_;
  }

  void read() {
    for (size_t file = 0; file < files_.size(); ++file) read_formats(file);
    for (const auto& [key, tensor] : tensors_) {
      if (key.ends_with(kFormat)) {
        const auto bytes = files_[tensor.file]->bytes(tensor.entry);
        check_format(parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                fmt::format("{}: {}", path(tensor.file), key)),
                     key.substr(0, key.size() - kFormat.size()), key, tensor.file);
        result.erase(key);
      } else if (const auto layer = without_end(key, kFactors)) {
        add_factor(*layer, key, {tensor.entry, tensor.file});
      } else if (const auto reader = without_end(key, kFactorsOfInput)) {
        const auto weight = tensors_.find(*reader + std::string(kWeight));
        if (weight != tensors_.end() && is_eight_bit(weight->second.entry)) result.erase(key);
      } else {
        refuse_others(key, tensor.file);
      }
    }
    require_factors_of_all();
  }

  NamedTensors result;

 private:
  std::string path(size_t file) const { return files_[file]->path().string(); }

  // The formats of all layers listed in the metadata, in the form of the `comfy_quant` beside each.
  void read_formats(size_t file) {
    const std::map<std::string, std::string>& metadata = files_[file]->header().metadata;
    const auto found = metadata.find(kFormats);
    if (found == metadata.end()) return;
    const Json all = parse_json(found->second, fmt::format("{}: {}", path(file), kFormats));
    const Json layers = all.is_object() ? all.value("layers", Json()) : Json();
    if (!layers.is_object()) input_error(path(file), "'{}' must be an object with layers", kFormats);
    for (const auto& [layer, format] : layers.items()) {
      if (tensors_.contains(layer + std::string(kWeight))) check_format(format, layer, kFormats, file);
    }
  }

  void check_format(const Json& format, const std::string& layer, const std::string& key, size_t file) const {
    const std::string name = format.is_object() && format.contains("format") && format["format"].is_string()
                                 ? format["format"].get<std::string>()
                                 : std::string();
    std::string other = name == "float8_e4m3fn" || name == "float8_e5m2"
                            ? ""
                            : format.dump(-1, ' ', true, Json::error_handler_t::replace);
    for (const auto& item : format.items()) {
      // How products are computed on a GPU is not a property of the weights.
      if (other.empty() && item.key() != "format" && item.key() != "full_precision_matrix_mult")
        other = item.key();
    }
    if (!other.empty())
      input_error(path(file), "'{}' says that '{}' is quantised in a form that cannot be read ({}); {}", key,
                  layer, other.substr(0, 100), kTakeAnother);
    const bool has_factor = std::any_of(kFactors.begin(), kFactors.end(), [&](std::string_view end) {
      return tensors_.contains(layer + std::string(end));
    });
    if (!has_factor)
      input_error(path(file),
                  "'{}' says that '{}' has a factor, but '{}.weight_scale' is missing; get the file again",
                  key, layer, layer);
  }

  void add_factor(const std::string& layer, const std::string& key, const Factor& factor) {
    const std::string name = layer + std::string(kWeight);
    const auto weight = result.find(name);
    if (weight == result.end())
      input_error(path(factor.file), "'{}' is a factor of '{}', which is missing", key, name);
    const TensorEntry& entry = weight->second.entry;
    const int64_t rows = entry.shape.empty() ? 1 : entry.shape.front();
    const std::vector<int64_t>& shape = factor.entry.shape;
    const bool is_column = shape.empty() || shape.front() == count_in(shape);
    const bool is_known = at::isFloatingType(factor.entry.dtype) && !is_eight_bit(factor.entry) &&
                          is_column && (count_in(shape) == 1 || count_in(shape) == rows);
    if (!is_eight_bit(entry) || !is_known)
      input_error(
          path(factor.file),
          "'{}', {} of shape [{}], says that '{}', {}, is quantised in a form that cannot be read; {}", key,
          at::toString(factor.entry.dtype), fmt::join(shape, ", "), name, at::toString(entry.dtype),
          kTakeAnother);
    if (weight->second.factor)
      input_error(path(factor.file), "'{}' has two factors, one of them '{}'", name, key);
    weight->second.factor = factor;
    result.erase(key);
  }

  // If only some 8-bit matrices in a file have factors, those of the others are missing: without them, these
  // weights would be many times too large.
  void require_factors_of_all() const {
    const auto lacks = [](const auto& each) {
      return is_eight_bit(each.second.entry) && each.second.entry.shape.size() > 1 && !each.second.factor;
    };
    const auto lacking = std::find_if(result.begin(), result.end(), lacks);
    const bool has_some = std::any_of(result.begin(), result.end(),
                                      [](const auto& each) { return each.second.factor.has_value(); });
    if (has_some && lacking != result.end())
      input_error(path(lacking->second.file),
                  "'{}' has eight bits and no factor, though other weights have one; get the file again",
                  lacking->first);
  }

  // A tensor that is named after a weight describes it.
  void refuse_others(const std::string& key, size_t file) const {
    for (size_t at = key.find(kWeight); at != std::string::npos; at = key.find(kWeight, at + 1)) {
      const size_t end = at + kWeight.size();
      if (end == key.size() || (key[end] != '_' && key[end] != '.')) continue;
      if (tensors_.contains(key.substr(0, end)))
        input_error(path(file), "'{}' says that '{}' is quantised in a form that cannot be read; {}", key,
                    key.substr(0, end), kTakeAnother);
    }
  }

  const TensorFiles& files_;
  NamedTensors tensors_;
};

}  // namespace

NamedTensors named_tensors(const TensorFiles& files) {
  FactorReader reader(files);
  reader.read();
  return std::move(reader.result);
}

}  // namespace tessera::weights
