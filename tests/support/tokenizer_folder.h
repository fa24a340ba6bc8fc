// A folder for a test's tokenizer, and the errors with which a tokenizer refuses it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "core/error.h"
#include "tests/support/temporary_folder.h"

namespace tessera {

class TokenizerFolder : public ::testing::Test {
 protected:
  void write(const std::string& name, std::string_view content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }

  // Returns the message of the input error with which `load` refuses the folder.
  template <typename Load>
  std::string refusal_of(Load&& load) {
    try {
      load(folder_);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
      return error.what();
    }
    return "accepted";
  }

  TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

}  // namespace tessera
