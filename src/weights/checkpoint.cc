#include "weights/checkpoint.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "core/field_name.h"
#include "core/file.h"
#include "core/json.h"
#include "weights/loading_hook.h"
#include "weights/memory_counter.h"
#include "weights/shard_index.h"

namespace tessera::weights {
namespace {

namespace fs = std::filesystem;

// The names under which a library looks for weights, the first choice first.
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

// Names of weights in a folder that have none of the names that count.
[[noreturn]] void refuse_names(const fs::path& folder, Library library) {
  std::vector<std::string> others;
  bool other_format = false;
  std::error_code code;
  for (const fs::path& path : list_folder(folder, code)) {
    const std::string name = path.filename().string();
    // `model-00001-of-00002.safetensors` is a shard, which is only usable through an index.
    const bool is_shard = name.find("-of-") != std::string::npos;
    if (name.find(".safetensors") != std::string::npos && !is_shard) others.push_back(name);
    other_format |= name.ends_with(".bin") || name.ends_with(".ckpt") || name.ends_with(".pt");
  }
  if (code) input_error(folder.string(), "cannot list the folder: {}", code.message());
  const std::string wanted = names_of(library, "").at(library == Library::kDiffusers ? 1 : 0);
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

// A view of the mapping, of which `held_bytes` are in use; a copy if the bytes are not aligned.
at::Tensor whole_tensor(const std::shared_ptr<SafetensorsFile>& file, const TensorEntry& entry,
                        int64_t held_bytes) {
  const std::span<const std::byte> bytes = file->bytes(entry);
  const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % c10::elementSize(entry.dtype) == 0;
  const auto options = at::TensorOptions().dtype(entry.dtype);
  if (!aligned) {
    at::Tensor copy = at::empty(entry.shape, options);
    std::memcpy(copy.mutable_data_ptr(), bytes.data(), bytes.size());
    return copy;
  }
  // The deleter keeps the mapping alive as long as any tensor views it. When the last view is gone, because
  // the weight was converted or packed, its pages need not stay in memory.
  MemoryCounter::add_view(const_cast<std::byte*>(bytes.data()), held_bytes);
  return at::from_blob(
      const_cast<std::byte*>(bytes.data()), entry.shape,
      [file, entry, held_bytes](void* data) {
        MemoryCounter::add_view(data, -held_bytes);
        file->release(entry);
      },
      options);
}

// Weights with factors of their own are another format: without the factors they would be wrong numbers.
void refuse_scaled(const SafetensorsFile& file) {
  for (const auto& [key, entry] : file.header().tensors) {
    for (const std::string_view end :
         {"scale_weight", "weight_scale", "scaled_fp8", "weight.absmax", "weight.quant_map"}) {
      if (!key.ends_with(end)) continue;
      input_error(
          file.path().string(),
          "'{}' says that weights are quantised, with factors; such weights cannot run yet, take the file "
          "of fp16 or bf16",
          key);
    }
  }
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
    add_file(start);
    return;
  }
  const JsonConfig index = JsonConfig::read(start);
  const std::map<std::string, std::string> file_of = parse_shard_index(index);
  std::set<std::string> names;
  for (const auto& [key, name] : file_of) names.insert(name);
  std::map<std::string, size_t> position;
  for (const std::string& name : names) {
    position[name] = files_.size();
    add_file(folder / name);
  }
  for (const auto& [key, name] : file_of) {
    const auto found = places_.find(key);
    if (found == places_.end() || found->second.file != position[name]) {
      input_error(index.where(), "'{}' should be in {}, but is not", key, name);
    }
  }
}

Checkpoint::Checkpoint(std::shared_ptr<SafetensorsFile> file, std::map<std::string, NamedTensor> tensors)
    : folder_(file->path()) {
  refuse_scaled(*file);
  files_.push_back(std::move(file));
  for (auto& each : tensors) places_.emplace(each.first, Place{0, std::move(each.second)});
}

void Checkpoint::add_file(const std::filesystem::path& path) {
  const size_t index = files_.size();
  files_.push_back(std::make_shared<SafetensorsFile>(path));
  refuse_scaled(*files_.back());
  for (const auto& [key, entry] : files_.back()->header().tensors) {
    const auto [place, fresh] = places_.emplace(key, Place{index, {entry}});
    if (!fresh) {
      input_error(path.string(), "'{}' is also in {}", key,
                  files_[place->second.file]->path().filename().string());
    }
  }
}

bool Checkpoint::has(const std::string& key) const {
  return places_.contains(key);
}

const Checkpoint::Place& Checkpoint::find(const std::string& key) const {
  const auto place = places_.find(key);
  if (place == places_.end()) input_error(folder_.string(), "weight '{}' is missing", key);
  return place->second;
}

const TensorEntry& Checkpoint::entry(const std::string& key) const {
  return find(key).tensor.entry;
}

std::vector<std::string> Checkpoint::keys() const {
  std::vector<std::string> result;
  for (const auto& [key, place] : places_) result.push_back(key);
  return result;
}

const Checkpoint::Place& Checkpoint::use(const std::string& key, at::IntArrayRef shape) {
  const Place& place = find(key);
  const TensorEntry& entry = place.tensor.entry;
  const std::string& path = files_[place.file]->path().native();
  if (shape != at::IntArrayRef(entry.shape)) {
    input_error(path, "weight '{}' has shape [{}], expected [{}]", key, fmt::join(entry.shape, ", "),
                fmt::join(shape, ", "));
  }
  if (!at::isFloatingType(entry.dtype)) {
    input_error(path, "weight '{}' has dtype {}, expected a floating-point type", key,
                at::toString(entry.dtype));
  }
  used_.insert(key);
  return place;
}

at::Tensor Checkpoint::view(const Place& place, int64_t held_bytes) const {
  if (!place.tensor.is_transposed) return whole_tensor(files_[place.file], place.tensor.entry, held_bytes);
  TensorEntry as_stored = place.tensor.entry;
  std::swap(as_stored.shape[0], as_stored.shape[1]);
  return whole_tensor(files_[place.file], as_stored, held_bytes).t();
}

at::Tensor Checkpoint::load(const std::string& key, at::IntArrayRef shape, at::ScalarType dtype,
                            at::ArrayRef<Slice> slices, at::Device device) {
  const Place& place = use(key, shape);
  const TensorEntry& entry = place.tensor.entry;
  const std::vector<int64_t> part_shape = sliced_shape(key, shape, slices);
  const auto bytes_in = [count = element_count(part_shape)](at::ScalarType type) {
    return count * static_cast<int64_t>(c10::elementSize(type));
  };
  bytes_held_ += static_cast<uint64_t>(bytes_in(dtype));
  bytes_used_ += static_cast<uint64_t>(bytes_in(entry.dtype));
  if (device.is_meta()) {
    // What is mapped stands beside its copy for a moment, which counts in the peak
    // (weights/memory_counter.h).
    const at::Tensor mapped = at::empty(part_shape, at::TensorOptions().device(device).dtype(entry.dtype));
    at::Tensor part = at::empty(part_shape, at::TensorOptions().device(device).dtype(dtype));
    record_loading({key, shape, slices, entry.dtype, part});
    return part;
  }
  const at::DisableRecordFunctionGuard unrecorded;  // laying a weight out is no operation of the model
  at::Tensor part = view(place, bytes_in(entry.dtype));
  for (const Slice& slice : slices) part = part.narrow(slice.dim, slice.begin, slice.length);
  return part.to(device, dtype).contiguous();
}

at::Tensor Checkpoint::stored(const std::string& key, at::IntArrayRef shape) {
  at::Tensor table = view(use(key, shape), /*held_bytes=*/0);
  record_loading({key, shape, {}, table.scalar_type(), table});
  return table;
}

at::Tensor Checkpoint::buffer(const std::string& key) {
  const Place& place = find(key);
  used_.insert(key);
  return whole_tensor(files_[place.file], place.tensor.entry, /*held_bytes=*/0);
}

std::vector<std::string> Checkpoint::unused() const {
  std::vector<std::string> result;
  for (const auto& [key, place] : places_) {
    if (!used_.contains(key)) result.push_back(key);
  }
  return result;
}

at::ScalarType Checkpoint::dtype() const {
  std::map<at::ScalarType, uint64_t> bytes;
  for (const auto& [key, place] : places_) {
    const TensorEntry& tensor = place.tensor.entry;
    if (at::isFloatingType(tensor.dtype)) bytes[tensor.dtype] += tensor.end - tensor.begin;
  }
  const auto most = std::max_element(bytes.begin(), bytes.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? at::kFloat : most->first;
}

bool is_near(const at::Tensor& stored, const at::Tensor& computed) {
  if (stored.sizes() != computed.sizes()) return false;
  if (!at::isFloatingType(stored.scalar_type())) return at::equal(stored, computed.to(stored.scalar_type()));
  constexpr double kDigits = 0x1p-7;  // twice what bf16 rounds
  return at::allclose(stored.to(at::kDouble), computed.to(at::kDouble), kDigits, /*atol=*/1e-6);
}

}  // namespace tessera::weights
