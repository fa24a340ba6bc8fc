// Writes a checkpoint of given tensors into a temporary folder, which the destructor removes.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "weights/checkpoint.h"
#include "weights/scope.h"

namespace tessera {

class CheckpointFixture {
 public:
  explicit CheckpointFixture(const std::map<std::string, at::Tensor>& tensors) {
    static std::atomic<int> count{0};
    folder_ = std::filesystem::temp_directory_path() / fmt::format("tessera-test-{}-{}", ::getpid(), count++);
    std::filesystem::create_directories(folder_);
    weights::write_safetensors(folder_ / "model.safetensors", tensors);
    checkpoint_ = std::make_unique<weights::Checkpoint>(folder_, weights::Library::kTransformers);
  }
  ~CheckpointFixture() { std::filesystem::remove_all(folder_); }
  CheckpointFixture(const CheckpointFixture&) = delete;
  CheckpointFixture& operator=(const CheckpointFixture&) = delete;

  weights::Scope scope(at::ScalarType dtype = at::kFloat) const { return {*checkpoint_, {.dtype = dtype}}; }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::unique_ptr<weights::Checkpoint> checkpoint_;
};

}  // namespace tessera
