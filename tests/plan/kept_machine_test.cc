// Which machine stands for this host, and when it is measured again.
#include "plan/calibration/kept_machine.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/file.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"

namespace tessera::plan {
namespace {

// While it lives, what is kept lies in a folder of its own.
class OwnCache {
 public:
  OwnCache() {
    if (const char* const value = std::getenv("XDG_CACHE_HOME")) before_ = value;
    ::setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
  }
  ~OwnCache() {
    if (before_) {
      ::setenv("XDG_CACHE_HOME", before_->c_str(), 1);
    } else {
      ::unsetenv("XDG_CACHE_HOME");
    }
  }
  OwnCache(const OwnCache&) = delete;
  OwnCache& operator=(const OwnCache&) = delete;
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  std::optional<std::string> before_;
};

class KeptMachine : public testing::Test {
 protected:
  Machine machine(const CalibrationOptions& options = {}) {
    said_.clear();
    const auto measure = [&] {
      ++measured_;
      OrderedJson json =
          OrderedJson::parse(read_file(golden_folder("../../machines/cpu-avx512.json"), 1 << 20));
      json["calibration"] = {{"threads", options.threads}};
      return json;
    };
    return machine_of_host(options, measure, [&](const std::string& line) { said_ += line + "\n"; });
  }

  OwnCache cache_;
  int measured_ = 0;
  std::string said_;
};

TEST_F(KeptMachine, IsMeasuredOnce) {
  const auto path = kept_machine_path(host_key({})).value();
  EXPECT_TRUE(path.string().starts_with((cache_.path() / "tessera" / "machines").string())) << path;
  EXPECT_EQ(machine().where, path.string());
  EXPECT_EQ(said_, "measuring this host once, about 90 s; kept in " + path.string() + "\n");
  EXPECT_EQ(machine().where, path.string());
  EXPECT_EQ(said_, "");
  EXPECT_EQ(measured_, 1);
  machine({.threads = 2});
  machine({.ranks = 2});
  machine({.dtypes = {at::kFloat, at::kBFloat16}});
  EXPECT_EQ(measured_, 4);
  machine({.threads = 2});
  EXPECT_EQ(measured_, 4);
  std::error_code code;
  EXPECT_EQ(list_folder(path.parent_path(), code).size(), 4U);  // nothing else lies there
}

TEST_F(KeptMachine, IsMeasuredAgainWhereItIsNoLongerThatOfTheHost) {
  const auto path = kept_machine_path(host_key({})).value();
  machine();
  const std::string whole = read_file(path, 1 << 20);
  const auto write = [&](const std::string& text) {
    AtomicFile file(path);
    file.write(text);
    file.commit();
  };
  Json other = Json::parse(whole);
  other["calibration"]["host"]["calibration"] = kCalibrationVersion + 1;
  Json none = Json::parse(whole);
  none["calibration"] = 5;
  for (const std::string& text :
       {other.dump(), none.dump(), whole.substr(0, whole.size() / 2), std::string()}) {
    write(text);
    measured_ = 0;
    machine();
    EXPECT_EQ(measured_, 1) << text;
    EXPECT_NE(said_.find(path.string()), std::string::npos) << said_;
    EXPECT_EQ(std::count(said_.begin(), said_.end(), '\n'), 1) << said_;
    EXPECT_EQ(read_file(path, 1 << 20), whole);
  }
}

TEST_F(KeptMachine, IsNotKeptWhereNothingCanBe) {
  AtomicFile file(cache_.path() / "tessera");  // a file in the place of the folder
  file.write("x");
  file.commit();
  EXPECT_EQ(machine().where, "this host");
  EXPECT_NE(said_.find("it cannot be kept"), std::string::npos) << said_;
  machine();
  EXPECT_EQ(measured_, 2);
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  const char* const home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  ::unsetenv("HOME");
  machine();
  ::setenv("HOME", before.c_str(), 1);
  EXPECT_NE(said_.find("neither XDG_CACHE_HOME nor HOME"), std::string::npos) << said_;
}

}  // namespace
}  // namespace tessera::plan
