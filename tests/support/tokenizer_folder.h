// A folder for a test's tokenizer, and the errors with which a tokenizer refuses it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "core/error.h"

namespace tessera {

class TokenizerFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("tessera-tokenizer-{}", ::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

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

  std::filesystem::path folder_;
};

}  // namespace tessera
