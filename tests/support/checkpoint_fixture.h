// Writes a checkpoint of given tensors into a temporary folder, which the destructor removes.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "tests/support/temporary_folder.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"
#include "weights/scope.h"

namespace tessera {

class CheckpointFixture {
 public:
  explicit CheckpointFixture(const std::map<std::string, at::Tensor>& tensors) {
    weights::write_safetensors(folder() / "model.safetensors", tensors);
    checkpoint_ = std::make_unique<weights::Checkpoint>(folder(), weights::Library::kTransformers);
  }

  weights::Scope scope(at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU) const {
    return {*checkpoint_, {.dtype = dtype, .device = device}};
  }
  const std::filesystem::path& folder() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  std::unique_ptr<weights::Checkpoint> checkpoint_;
};

}  // namespace tessera
