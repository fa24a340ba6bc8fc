#include "weights/checkpoint.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "weights/denoiser_file.h"
#include "weights/loading_hook.h"
#include "weights/safetensors.h"
#include "weights/shard_index.h"
#include "weights/single_file.h"

namespace tessera::weights {
namespace {

namespace fs = std::filesystem;

// The names under which a library looks for weights, in order of preference.
std::vector<std::string> names_of(Library library, const std::string& variant) {
  const std::string stem = library == Library::kDiffusers ? "diffusion_pytorch_model" : "model";
  std::vector<std::string> names = {stem + ".safetensors.index.json"};
  std::string single = stem + ".safetensors";
  if (!variant.empty()) {
    single = fmt::format("{}.{}.safetensors", stem, variant);
    names = {fmt::format("{}.safetensors.index.{}.json", stem, variant),
             fmt::format("{}.safetensors.{}.index.json", stem, variant)};  // of older releases
  }
  names.insert(library == Library::kDiffusers ? names.end() : names.begin(), single);
  return names;
}

std::optional<fs::path> find_variant(const fs::path& folder, Library library, const std::string& variant) {
  for (const std::string& name : names_of(library, variant)) {
    if (type_at(folder / name) == fs::file_type::regular) return folder / name;
  }
  return std::nullopt;
}

// Reports the names of weights in a folder when none of them is a name that is looked for.
[[noreturn]] void refuse_names(const fs::path& folder, Library library) {
  const size_t plain = library == Library::kDiffusers ? 1 : 0;
  const std::string wanted = names_of(library, "").at(plain), index = names_of(library, "").at(1 - plain);
  const std::string stem = wanted.substr(0, wanted.find('.'));
  std::vector<std::string> others;
  bool other_format = false;
  std::error_code code;
  for (const fs::path& path : list_folder(folder, code)) {
    const std::string name = path.filename().string();
    // `model-00001-of-00002.safetensors` is a shard, which is only usable through an index.
    const bool is_file = name.find(".safetensors") != std::string::npos;
    const bool is_shard = name.find("-of-") != std::string::npos;
    if (is_file && is_shard && name.starts_with(stem)) {
      input_error(folder.string(),
                  "holds {}, which is a part of the weights, but no {}, which says what the parts hold; get "
                  "that file too",
                  name, index);
    }
    if (is_file && !is_shard) others.push_back(name);
    other_format |= name.ends_with(".bin") || name.ends_with(".ckpt") || name.ends_with(".pt");
  }
  if (code) input_error(folder.string(), "cannot list the folder: {}", code.message());
  for (const std::string& name : others) {
    if (name.ends_with(".safetensors"))
      refuse_additions(SafetensorsFile(folder / name).header(), (folder / name).string());
  }
  if (!others.empty()) {
    input_error(
        folder.string(),
        "holds no {}, which is the file that counts, but {}; for NAME.VARIANT.safetensors give {}, or rename "
        "the file",
        wanted, fmt::join(others, ", "), field("variant"));
  }
  if (other_format) {
    input_error(folder.string(),
                "holds weights only in a pickle format; save them as safetensors "
                "(save_pretrained(..., safe_serialization=True))");
  }
  input_error(folder.string(), "no {} in this folder", wanted);
}

// The file with which loading starts: the weights, or an index of them.
fs::path find_weights(const fs::path& folder, Library library, const std::string& variant) {
  require_folder(folder);
  for (const std::string& each : {variant, std::string(), std::string("fp16")}) {
    if (const auto found = find_variant(folder, library, each)) return *found;
  }
  refuse_names(folder, library);
}

int64_t element_count(at::IntArrayRef shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

}  // namespace

Library library_named(const std::string& name) {
  return name == "diffusers" ? Library::kDiffusers : Library::kTransformers;
}

bool holds_variant(const fs::path& folder, Library library, const std::string& variant) {
  return find_variant(folder, library, variant).has_value();
}

Checkpoint::Checkpoint(const fs::path& folder, Library library, const std::string& variant)
    : folder_(folder) {
  const fs::path start = find_weights(folder, library, variant);
  if (start.extension() != ".json") {
    files_.push_back(std::make_shared<SafetensorsFile>(start));
    tensors_ = named_tensors(files_);
    return;
  }
  const JsonConfig index = JsonConfig::read(start);
  const std::map<std::string, std::string> file_of = parse_shard_index(index);
  std::set<std::string> names;
  for (const auto& [key, name] : file_of) names.insert(name);
  std::map<std::string, size_t> position;
  for (const std::string& name : names) {
    position[name] = files_.size();
    files_.push_back(std::make_shared<SafetensorsFile>(folder / name));
  }
  for (const auto& [key, name] : file_of) {
    if (!files_[position[name]]->header().tensors.contains(key))
      input_error(index.where(), "'{}' should be in {}, but is not", key, name);
  }
  tensors_ = named_tensors(files_);
}

Checkpoint::Checkpoint(std::shared_ptr<TensorFile> file, NamedTensors tensors)
    : folder_(file->path()), files_{std::move(file)}, tensors_(std::move(tensors)) {}

bool Checkpoint::has(const std::string& key) const {
  return tensors_.contains(key);
}

const NamedTensor& Checkpoint::find(const std::string& key) const {
  const auto place = tensors_.find(key);
  if (place != tensors_.end()) return place->second;
  std::string what;
  for (const std::shared_ptr<TensorFile>& file : files_) {
    if (!used_.empty()) break;  // of the right model, so what is missing is all that can be reported
    refuse_additions(file->header(), file->path().string());
    if (const KnownFile* const known = recognise(file->header()))
      what = fmt::format("; by its names {} is of {}", file->path().filename().string(), known->title);
  }
  const std::string original = files_.empty() ? "" : original_name(files_.front()->header(), key);
  if (!original.empty()) what = fmt::format(", which is '{}' in the names of this file", original);
  input_error(folder_.string(), "weight '{}' is missing{}", key, what);
}

const TensorEntry& Checkpoint::entry(const std::string& key) const {
  return find(key).entry;
}

std::vector<std::string> Checkpoint::keys() const {
  std::vector<std::string> result;
  for (const auto& [key, tensor] : tensors_) result.push_back(key);
  return result;
}

const NamedTensor& Checkpoint::use(const std::string& key, at::IntArrayRef shape) {
  const NamedTensor& tensor = find(key);
  const TensorEntry& entry = tensor.entry;
  const std::string& path = files_[tensor.file]->path().native();
  if (shape != at::IntArrayRef(entry.shape)) {
    input_error(path, "weight '{}' has shape [{}], expected [{}]", key, fmt::join(entry.shape, ", "),
                fmt::join(shape, ", "));
  }
  if (!at::isFloatingType(entry.dtype)) {
    input_error(path, "weight '{}' has dtype {}, expected a floating-point type", key,
                at::toString(entry.dtype));
  }
  used_.insert(key);
  return tensor;
}

at::Tensor Checkpoint::whole(const NamedTensor& tensor, at::ScalarType dtype, int64_t held_bytes) const {
  NamedTensor stored = tensor;
  if (stored.is_transposed) std::swap(stored.entry.shape[0], stored.entry.shape[1]);
  at::Tensor all = stored.is_coded() ? decoded_tensor(files_, stored, dtype, {}, held_bytes)
                                     : mapped_tensor(files_[stored.file], stored.entry, held_bytes);
  if (stored.is_transposed) all = all.t();
  return stored.has_halves_swapped ? all.to(dtype).roll(all.size(0) / 2, 0) : all;
}

at::Tensor Checkpoint::load(const std::string& key, at::IntArrayRef shape, at::ScalarType dtype,
                            at::ArrayRef<Slice> slices, at::Device device) {
  const NamedTensor& tensor = use(key, shape);
  const std::vector<int64_t> part_shape = sliced_shape(key, shape, slices);
  const int64_t count = element_count(part_shape), in_file = bytes_in_file(tensor.entry, count);
  bytes_held_ += static_cast<uint64_t>(count) * c10::elementSize(dtype);
  bytes_used_ += static_cast<uint64_t>(in_file);
  if (device.is_meta()) {
    // The mapped bytes exist beside their copy for a moment, which counts in the peak
    // (weights/memory_counter.h).
    const at::Tensor mapped = at::empty({in_file}, at::TensorOptions().device(device).dtype(at::kByte));
    at::Tensor part = at::empty(part_shape, at::TensorOptions().device(device).dtype(dtype));
    // For coded weights, the file's dtype is not meaningful.
    record_loading({key, shape, slices, tensor.is_coded() ? dtype : tensor.entry.dtype, part});
    return part;
  }
  const at::DisableRecordFunctionGuard unrecorded;  // changing a weight's layout is not an operation of the
                                                    // model
  if (tensor.is_coded() && !tensor.is_transposed && !tensor.has_halves_swapped)
    return decoded_tensor(files_, tensor, dtype, slices, in_file).to(device);
  at::Tensor part = whole(tensor, dtype, in_file);
  for (const Slice& slice : slices) part = part.narrow(slice.dim, slice.begin, slice.length);
  return part.to(device, dtype).contiguous();
}

at::Tensor Checkpoint::stored(const std::string& key, at::IntArrayRef shape) {
  at::Tensor table = whole(use(key, shape), at::kFloat, /*held_bytes=*/0);
  record_loading({key, shape, {}, table.scalar_type(), table});
  return table;
}

at::Tensor Checkpoint::buffer(const std::string& key) {
  const NamedTensor& tensor = find(key);
  used_.insert(key);
  return whole(tensor, at::kFloat, /*held_bytes=*/0);
}

std::vector<std::string> Checkpoint::unused() const {
  std::vector<std::string> result;
  for (const auto& [key, tensor] : tensors_) {
    if (!used_.contains(key)) result.push_back(key);
  }
  return result;
}

bool is_near(const at::Tensor& stored, const at::Tensor& computed) {
  if (stored.sizes() != computed.sizes()) return false;
  if (!at::isFloatingType(stored.scalar_type())) return at::equal(stored, computed.to(stored.scalar_type()));
  constexpr double kDigits = 0x1p-7;  // twice the rounding of bf16
  return at::allclose(stored.to(at::kDouble), computed.to(at::kDouble), kDigits, /*atol=*/1e-6);
}

}  // namespace tessera::weights
