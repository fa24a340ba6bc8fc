// A test that changes a copy of a golden's folder.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "core/json.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/golden.h"

namespace tessera {

class GoldenFolderFixture : public FolderFixture {
 protected:
  void copy_golden(const std::string& name) const {
    std::filesystem::copy(golden_folder(name), folder_, std::filesystem::copy_options::recursive);
  }

  // Sets keys of a file of the folder; those that are null are removed.
  void change(const std::filesystem::path& file, const Json& keys) const {
    Json values = read_json(folder_ / file);
    values.merge_patch(keys);
    std::ofstream(folder_ / file) << values;
  }
};

}  // namespace tessera
